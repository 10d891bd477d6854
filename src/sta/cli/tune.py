"""``sta tune``: settings that meet a target on this machine, from a few videos without labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sta.cli import inference as cli

if TYPE_CHECKING:
    from sta.tuning.scores import Scored
    from sta.tuning.search import Point, Tuned

CLIPS = 320  # enough to vouch for 99 % agreement


def tune(
    videos: Annotated[
        list[str],
        typer.Argument(
            metavar="VIDEOS...|digits", help="Files, folders or lists, without labels; or digits."
        ),
    ],
    speedup: Annotated[
        float | None, typer.Option(help="Be so many times faster than the unpruned model.")
    ] = None,
    gflops: Annotated[float | None, typer.Option(help="Cost no more GFLOPs a clip.")] = None,
    agreement: Annotated[
        float | None,
        typer.Option(help="Agree with the unpruned model on such a share of videos, e.g. 0.99."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Write the settings, for --config and sta.apply.")
    ] = Path("tuned.json"),
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the frontier: .png, .pdf, .svg.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all points as JSON.")
    ] = None,
    model: cli.ModelOption = "vit-digits",
    fidelity_clips: Annotated[
        int, typer.Option(min=1, help="Clips to compare on, at most.")
    ] = CLIPS,
    batch_size: Annotated[int, typer.Option(min=1, help="Clips per forward when timed.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="How often each candidate is timed.")] = 9,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Rank tokens by the paper's score; choose r and steps.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of clips.")] = 0,
    device: cli.DeviceOption = "auto",
    root: cli.RootOption = None,
    views: cli.ViewsOption = None,
    stride: cli.StrideOption = None,
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Find score, r, schedule and blocks for a speed-up, GFLOPs, or agreement. No training.

    Times are measured here, in turn with the unpruned model; fidelity is agreement with it, and KL,
    the divergence of its probabilities. Of the settings that meet --speedup or --gflops, those with
    the least divergence win; of those that meet --agreement, with 95 % confidence, the fastest.
    """
    targets = {"speedup": speedup, "gflops": gflops, "agreement": agreement}
    asked = {name: value for name, value in targets.items() if value is not None}
    if len(asked) != 1:
        raise ValueError(
            f"give exactly one target, --speedup, --gflops or --agreement; got "
            f"{', '.join(f'--{name} {value:g}' for name, value in asked.items()) or 'none'}"
        )
    where = cli.choose_device(device)
    for file in (out, plot, json_file):
        if file is not None:  # found out now, not when the work is done
            file.parent.mkdir(parents=True, exist_ok=True)
    from sta.measure.allocator import keep_memory

    keep_memory()
    import torch

    from sta.backbones.zoo.video_model import view_spec
    from sta.explain.clips import single_view
    from sta.measure.contenders import Source, pixels
    from sta.methods import STAConfig
    from sta.tuning.clock import make_clock
    from sta.tuning.families import families
    from sta.tuning.fidelity import Judge
    from sta.tuning.scores import choices, compare
    from sta.tuning.search import Tuner, part_of
    from sta.tuning.videos import tuning_clips

    if threads is not None:
        torch.set_num_threads(threads)
    overrides = cli.parse_settings(settings or ())
    opened = Source(model, overrides, random_weights, where, threads).open()
    spec = single_view(opened, stride)
    if views is not None:
        spec = view_spec(opened, views=views, stride=stride)
    chosen = families(opened.model, opened.clip.shape(), STAConfig.paper(0))
    scores: list[Scored] = []
    with _progress() as tell:
        clips, failures = tuning_clips(
            videos,
            spec,
            fidelity_clips,
            root=root,
            seed=seed,
            workers=workers,
            timeout=timeout,
            tell=tell,
        )
        timed = pixels(opened, clips[[i % len(clips) for i in range(batch_size)]], where)
        judge = Judge(opened, clips, device=where)
        if not paper:
            part = part_of(len(clips))
            scores = compare(choices(opened.model), chosen[0], judge, part, tell)
            chosen = families(opened.model, opened.clip.shape(), scores[0].base)
        tuner = Tuner(
            chosen,
            judge,
            len(clips),
            make_clock(opened, timed, rounds),
            tell,
        )
        ((name, target),) = asked.items()
        tuned: Tuned = getattr(tuner, f"for_{name}")(target)
    whole = chosen[0].gflops(0) or 0.0
    _show_scores(scores)
    _show(tuned, whole)
    tuned.chosen.config.to_file(out)
    typer.echo(f"wrote {out}")
    if plot is not None:
        from sta.tuning.plot import draw

        draw(tuned, whole, f"{Path(model).name}, --{name} {target:g}", plot)
        typer.echo(f"wrote {plot}")
    if json_file is not None:
        rows = [_row(point, tuned) for point in tuned.points]
        told = {"model": model, "target": asked, "gflops": whole, "points": rows}
        told["scores"] = [{"name": one.name, **asdict(one.fidelity)} for one in scores]
        json_file.write_text(json.dumps(told, indent=1) + "\n")
    cli.finish(len(clips) // spec.views + len(failures), failures, None)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A bar that says what is being done and for how long."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


def _show_scores(scores: list[Scored]) -> None:
    """What ranks the tokens, most faithful first."""
    if not scores:
        return
    table = Table("", "score", "agree", "KL")
    for one in scores:
        agree = f"{one.fidelity.agree}/{one.fidelity.clips}"
        mark = "chosen" if one is scores[0] else ""
        table.add_row(mark, one.name, agree, f"{one.fidelity.kl:.4f}")
    Console().print(table)


def _show(tuned: Tuned, whole: float) -> None:
    """All points, cheapest first; those of the frontier and the chosen one are marked."""
    edge = set(tuned.frontier())
    table = Table()
    for column in ("", "r", "steps", "GFLOPs", "speed-up", "agree", "95 % interval", "KL"):
        table.add_column(column, no_wrap=True)
    for point in sorted(tuned.points, key=lambda p: p.gflops):
        low, high = point.fidelity.interval
        mark = "chosen" if point == tuned.chosen else "*" if point in edge else ""
        table.add_row(
            mark,
            str(point.config.r),
            point.family,
            f"{point.gflops:.4g}",
            "-" if point.speedup is None else f"{point.speedup:.2f}x",
            f"{point.fidelity.agree}/{point.fidelity.clips}",
            f"{100 * low:.1f}-{100 * high:.1f} %",
            f"{point.fidelity.kl:.4f}",
            style="bold" if point == tuned.chosen else None,
        )
    console = Console()
    if not console.is_terminal:  # a file has room enough
        console = Console(width=max(console.width, 120))
    console.print(table)
    fidelity, speed = tuned.chosen.fidelity, tuned.chosen.speedup
    faster = "" if speed is None else f"{speed:.2f} times as fast as unpruned, "
    console.print(
        f"r={tuned.chosen.config.r}, {tuned.chosen.family}: {faster}"
        f"{tuned.chosen.gflops:.4g} of {whole:.4g} GFLOPs, agrees on {fidelity.agree} of "
        f"{fidelity.clips} clips: at least {100 * fidelity.low:.1f} % with 95 % confidence",
        highlight=False,
    )


def _row(point: Point, tuned: Tuned) -> dict[str, Any]:
    low, high = point.fidelity.interval
    return {
        "chosen": point == tuned.chosen,
        "frontier": point in tuned.frontier(),
        "steps": point.family,
        "settings": asdict(point.config),
        "gflops": point.gflops,
        "speedup": point.speedup,
        "clips": point.fidelity.clips,
        "agreement": point.fidelity.agreement,
        "agreement_low": low,
        "agreement_high": high,
        "agreement_at_least": point.fidelity.low,
        "kl": point.fidelity.kl,
    }
