"""``sta analyze``: how redundant are the tokens, and do the kept ones matter?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from sta.cli import inference as cli

if TYPE_CHECKING:
    from sta.explain.report import Analysis, Importance
    from sta.inference.samples import Sample
    from sta.video.views import ViewSpec

DIGIT_CLIPS = 256  # of "digits", unless told otherwise


def analyze(
    source: Annotated[
        str,
        typer.Argument(
            metavar="LIST|FOLDER|VIDEO|digits|digits-jitter", help="The clips to look at."
        ),
    ],
    root: cli.RootOption = None,
    model: cli.ModelOption = "vit-digits",
    r: Annotated[
        int | None,
        typer.Option(min=0, help=f"{cli.R_HELP} About a third without."),
    ] = None,
    config: cli.ConfigOption = None,
    compare: Annotated[
        list[cli.MethodName],
        typer.Option(help="Other methods, left with as many tokens."),
    ] = [cli.MethodName.RANDOM],  # noqa: B006, typer copies it
    gradnorm: Annotated[
        bool, typer.Option("--gradnorm", help="Also: do the kept tokens carry the gradient?")
    ] = False,
    loss: Annotated[
        Literal["answer", "label"],
        typer.Option(help="Gradient of the model's own answer, or of the list's label."),
    ] = "answer",
    clips: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    figures: Annotated[int, typer.Option(min=0, help="Clips to draw with --gradnorm.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("out"),
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the tables as JSON.")
    ] = None,
    stride: cli.StrideOption = None,
    device: cli.DeviceOption = "auto",
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Redundancy of the tokens (trajectory sum S), and with --gradnorm their importance.

    S is 0 to T - 1: how much of the last frame the earlier ones show already, after the last block.
    The middle clip of each video counts. The exit code is 1 if a video could not be read.
    """
    from sta.backbones.zoo.video_model import load_video_model
    from sta.explain.report import Analysis
    from sta.explain.source import rivals, single_view

    opened = load_video_model(
        model, random_weights=random_weights, **cli.parse_settings(settings or ())
    )
    methods = rivals(opened, "sta", r, compare, config)
    found = Analysis(opened, methods, cli.choose_device(device))
    spec = single_view(opened, stride)
    failures: list[tuple[str, str]] = []
    count = 0
    for file, sample in _samples(source, root, spec, clips, workers, timeout):
        count += 1
        if sample.clips is None:
            failures.append((sample.path, sample.error or "cannot be read"))
            continue
        found.redundancy(sample.clips[:1])
        if gradnorm:
            figure = found.importance(sample.clips[0], sample.label if loss == "label" else None)
            if count - len(failures) <= figures:
                _draw(figure, file, spec, Path(model).name, out)
    if count > len(failures):
        _report(found, list(methods), json_file)
    cli.finish(count, failures, None)


def _samples(
    source: str,
    root: str | None,
    spec: ViewSpec,
    limit: int | None,
    workers: int | None,
    timeout: float,
) -> Iterator[tuple[str, Sample]]:
    """What to open, and the clip that came out of it."""
    from sta.explain.source import read_clip
    from sta.inference.local import decode_ahead
    from sta.inference.samples import Sample
    from sta.video.digits import NAMES
    from sta.video.lists import find_videos

    if source in NAMES:
        for number in range(limit or DIGIT_CLIPS):
            clip = read_clip(f"{source}:{number}", spec)
            yield f"{source}:{number}", Sample(clip.name, clip.seen[None], clip.label)
        return
    entries = find_videos([source], root)[:limit]
    samples = decode_ahead(entries, spec, workers=workers, timeout=timeout)
    for entry, sample in zip(entries, samples, strict=True):
        yield entry.source, sample


def _draw(figure: Importance, file: str, spec: ViewSpec, model: str, out: Path) -> None:
    """The three rows of one clip, as PNG and PDF."""
    from sta.explain.importance import importance
    from sta.explain.source import read_clip
    from sta.explain.strip import save

    clip = read_clip(file, spec)
    out.mkdir(parents=True, exist_ok=True)
    drawn = importance(clip.shown, figure, f"{model} · {clip.name}", scale=clip.scale)
    for ending in ("png", "pdf"):
        typer.echo(f"wrote {save(drawn, out / f'{clip.name}-gradnorm.{ending}')}")


def _report(found: Analysis, names: list[str], json_file: Path | None) -> None:
    """The tables, on the screen and as JSON."""
    sums, shares = found.redundancy_table(), found.importance_table()
    gaps = [found.difference(names[0], other) for other in names[1:]]
    table = Table(
        "method", "tokens a frame", "clips", f"S (0 to {found.frames - 1})", "95 % interval"
    )
    for row in sums:
        counts = (str(row["tokens_per_frame"]), str(row["clips"]))
        table.add_row(row["method"], *counts, f"{row['S']:.3f}", _interval(row))
    console = Console()
    console.print(table)
    for row in gaps:
        console.print(f"{row['method']} minus {row['other']}: {row['S']:+.3f} ({_interval(row)})")
    if shares:
        table = Table("method", "after", "tokens kept", "gradient on them", "95 % interval")
        for row in shares:
            table.add_row(
                row["method"],
                row["after"],
                f"{100 * row['tokens']:.1f} %",
                f"{100 * row['gradient']:.1f} %",
                _interval(row, 100, " %"),
            )
        console.print(table)
    if json_file is not None:
        told = {"frames": found.frames, "S": sums, "differences": gaps, "gradnorm": shares}
        json_file.write_text(json.dumps(told, indent=1) + "\n")


def _interval(row: dict[str, Any], times: float = 1.0, unit: str = "") -> str:
    if row["low"] is None:
        return "-"
    digits = 3 if times == 1.0 else 1
    return f"{times * row['low']:.{digits}f} to {times * row['high']:.{digits}f}{unit}"
