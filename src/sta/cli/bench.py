"""``sta bench``: time, memory and GFLOPs of methods and runtimes, measured in turn."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sta.cli import inference as cli
from sta.cli.several import SEVERAL, SeveralValues

if TYPE_CHECKING:
    from sta.backbones.zoo.video_model import VideoModel
    from sta.measure.contenders import Source


class BenchCommand(SeveralValues):
    """`sta bench` has no arguments: words that follow an option of several values are its own."""

    several = {  # noqa: RUF012, a ClassVar of its base
        **SEVERAL,
        "--method": lambda word: not word.startswith("-"),
        "--model": lambda word: not word.startswith("-"),
        "--batch-size": lambda word: word.lstrip("-").isdigit(),
        "--runtime": lambda word: not word.startswith("-"),
        "--precision": lambda word: not word.startswith("-"),
    }


def bench(
    model: Annotated[
        list[str], typer.Option(help="Zoo name, hub id, folder or checkpoint; several in turn.")
    ] = ["vit-s-k400"],  # noqa: B006, typer copies it
    r: Annotated[
        list[int] | None,
        typer.Option(min=1, help=f"{cli.R_HELP} About a third without."),
    ] = None,
    method: Annotated[
        list[str],
        typer.Option(
            help="stock, sta, random, tome, frame-difference, dense, released; several are compared"
        ),
    ] = ["stock", "sta"],  # noqa: B006
    config: cli.ConfigOption = None,
    match_gflops: Annotated[
        bool,
        typer.Option(
            "--match-gflops", help="Give every other method the r that comes closest to STA's cost."
        ),
    ] = False,
    batch_size: Annotated[
        list[int], typer.Option(min=1, help="Clips per forward; several are measured.")
    ] = [1],  # noqa: B006
    runtime: Annotated[
        list[str], typer.Option(help="torch, compile, onnxruntime, openvino; several are compared.")
    ] = ["torch"],  # noqa: B006
    precision: Annotated[
        list[str], typer.Option(help="float32, float16, bfloat16, int8, where the runtime has it.")
    ] = ["float32"],  # noqa: B006
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    device: cli.DeviceOption = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="How often each is timed.")] = 9,
    warmup: Annotated[int, typer.Option(min=0, help="Rounds before that do not count.")] = 2,
    video: Annotated[
        str | None, typer.Option(metavar="FILE", help="Cut clips from it; drawn digits without.")
    ] = None,
    memory: Annotated[bool, typer.Option(help="Measure peak memory as well.")] = True,
    gemm: Annotated[bool, typer.Option(help="Measure the matrix products alone as well.")] = True,
    chain: Annotated[
        bool, typer.Option("--chain", help="Time the choice of tokens alone, at 8 to 64 frames.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")
    ] = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Time methods and runtimes in turn, and say how much of the machine's speed each one reaches.

    All contenders of a model and batch size take turns, after a warm-up, so that a slow spell of
    the machine hits all of them; medians count. "of GEMM" is the time that the forward's matrix
    products take alone, as a share of the forward's: what is left of 100 % is not matrix products.
    """
    from sta.measure.allocator import keep_memory

    where = cli.choose_device(device)
    if json_file is not None:  # found out now, not when the work is done
        json_file.parent.mkdir(parents=True, exist_ok=True)
    keep_memory()
    import torch

    from sta.measure.contenders import Source

    if threads is not None:
        torch.set_num_threads(threads)
    overrides = cli.parse_settings(settings or ())
    sources = [Source(name, overrides, random_weights, where, threads) for name in model]
    about = _about(where, rounds, video)
    rows: list[dict[str, Any]] = []
    for source in sources:
        opened = source.open()
        if chain:
            rows += _chain(source, opened, r, rounds, max(batch_size))
            continue
        rows += _compare(
            source,
            opened,
            r=r,
            method=method,
            config=config,
            match_gflops=match_gflops,
            batch_sizes=batch_size,
            runtimes=runtime,
            precisions=precision,
            video=video,
            options={"rounds": rounds, "warmup": warmup, "memory": memory, "gemm": gemm},
        )
    if json_file is not None:
        json_file.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


def _compare(
    source: Source,
    opened: VideoModel,
    *,
    r: list[int] | None,
    method: Sequence[str],
    config: str | None,
    match_gflops: bool,
    batch_sizes: Sequence[int],
    runtimes: Sequence[str],
    precisions: Sequence[str],
    video: str | None,
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    """The rows of one model, shown as a table."""
    from sta.explain.comparable import default_r
    from sta.measure.bench import Bench
    from sta.measure.clips import measuring_clips
    from sta.measure.contenders import Contender, choose_methods, pairs

    both = pairs(runtimes, precisions)
    drops = r or [default_r(opened)]
    methods = choose_methods(opened, method, drops, file=config, match=match_gflops)
    clips = measuring_clips(max(batch_sizes), opened.clip.views, video)
    contenders = [Contender(m, *pair) for pair in both for m in methods]
    found = Bench(source, opened, contenders, clips, **options)
    console = Console(stderr=True)
    rows = []
    for batch in batch_sizes:
        with console.status(f"{source.model}, batch {batch}") as status:
            told = lambda text, batch=batch: status.update(  # noqa: E731
                f"{source.model}, batch {batch}: {text}"
            )
            rows += found.rows(batch, told)
    _show(source.model, rows, several=len(both) > 1)
    return rows


def _show(model: str, rows: list[dict[str, Any]], *, several: bool) -> None:
    import torch

    table = Table(title=f"{model}, {torch.get_num_threads()} threads")
    columns = ["method", *(["runtime"] if several else []), "batch", "GFLOPs", "ms (p50)"]
    columns += ["p95", "spread", "clips/s", "speed-up", *(["over torch"] if several else [])]
    for column in (*columns, "of GEMM", "MB"):
        left = column in ("method", "runtime")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            *([f"{row['runtime']} {row['precision']}"] if several else []),
            str(row["batch_size"]),
            f"{row['gflops']:.4g}",
            f"{row['p50_ms']:.4g}",
            f"{row['p95_ms']:.4g}",
            f"{row['spread']:.1%}",
            f"{row['clips_per_s']:.4g}",
            f"{row['speedup']:.2f}x",
            *([_maybe(row["speedup_over_torch"], "{:.2f}x")] if several else []),
            _maybe(row["gemm_share"], "{:.0%}"),
            _maybe(row["memory_mb"], "{:.0f}"),
        )
    _wide_console().print(table)


def _wide_console() -> Console:
    """For tables that must not be cut where the output is a file."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 120))


def _chain(
    source: Source, opened: VideoModel, drops: list[int] | None, rounds: int, batch: int
) -> list[dict[str, Any]]:
    """The cost of choosing tokens, shown as a table and a line."""
    from sta.explain.comparable import default_r
    from sta.measure.chain import chain_rows, share_of_forward
    from sta.measure.clips import measuring_clips
    from sta.measure.contenders import pixels

    r = drops[0] if drops else default_r(opened)
    rows = chain_rows(opened, r, rounds=rounds, device=source.device)
    table = Table(title=f"choosing tokens as in {source.model}, r={r}, one step")
    for column in ("frames", "batch", "ms", "ms per frame of a clip"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = (f"{row['ms']:.2f}", f"{row['ms_per_frame']:.3f}")
        table.add_row(str(row["frames"]), str(row["batch_size"]), *cells)
    console = Console()
    console.print(table)
    clip = pixels(opened, measuring_clips(batch, opened.clip.views), source.device)
    part = share_of_forward(opened, clip, r, rounds=rounds)
    console.print(
        f"all steps of a forward of {batch} take {part['steps_ms']:.2f} ms of "
        f"{part['forward_ms']:.1f} ms: {part['share']:.2%}"
    )
    return [{"model": source.model, "r": r, **row} for row in (*rows, part)]


def _about(device: str, rounds: int, video: str | None) -> dict[str, Any]:
    """What the figures depend on, beside the model."""
    import torch

    import sta

    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {
        "sta": sta.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "device": gpu or "cpu",
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "clips": video or "digits drawn at the model's size",
    }


def _maybe(value: float | None, shape: str) -> str:
    return "-" if value is None else shape.format(value)
