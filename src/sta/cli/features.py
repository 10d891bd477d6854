"""``sta features``: what a model knows of videos, window by window."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from sta.cli import options as cli
from sta.cli.startup import start


@cli.with_run_options
def features(
    inputs: Annotated[
        list[str], typer.Argument(metavar="VIDEO|FOLDER|LIST...", help="Videos to encode.")
    ],
    model: Annotated[
        str, typer.Option(help="What sta.load takes, or the folder or hub id of a bare encoder.")
    ] = "vit-digits",
    every: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="From one window to the next. Default: its length."),
    ] = None,
    windows: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="What a window spans. Default: the model's own clip."),
    ] = None,
    block: Annotated[
        int | None, typer.Option(min=1, help="Take this block's output. Default: the model's.")
    ] = None,
    dense: Annotated[
        bool, typer.Option("--dense", help="The whole grid of tokens instead of one vector.")
    ] = False,
    fill: Annotated[
        Literal["nearest", "delta"],
        typer.Option(help="With --dense: what stands at dropped places."),
    ] = "nearest",
    r: Annotated[int | None, typer.Option(min=0, help=f"{cli.R_HELP} Default: 0.")] = None,
    method: Annotated[
        cli.MethodName | None, typer.Option(help="How tokens are chosen. Default: sta.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="K/N", help="Only the K-th of N parts of the videos.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="A row per window (.parquet, .jsonl, .csv), or a folder: an array per video.",
        ),
    ] = None,
    array_format: Annotated[
        Literal["npy", "npz"] | None,
        typer.Option("--format", help="Of arrays in a folder; npz has times. Default: npy."),
    ] = None,
    **options: Any,
) -> None:
    """Features of videos of any length: files, folders of them, or lists.

    Cuts each video into windows of the model's clip and writes a vector per window: path, start and
    end in seconds, vector. A folder as --out gets one array per video instead, and an index. The
    exit code is 1 if a video could not be read, and 3 if a result could not be written.
    """
    given = cli.arguments(locals())
    start("sta.inference.features", model, options["settings"], options["engine"])
    import sta

    result, interrupted = cli.until_interrupted(lambda: sta.features(**given))
    if out is None:
        cli.print_result(result)
    stopped_after = result.done if interrupted else None
    cli.finish(result.total, result.failures, out, stopped_after=stopped_after)
