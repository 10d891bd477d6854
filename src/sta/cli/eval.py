"""``sta eval``: how accurate is a model on labelled videos, with and without pruning?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sta.cli import options as cli
from sta.cli.startup import start


@cli.with_run_options
def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="LIST|FOLDER|digits|digits-jitter",
            help="'path label' lines, Something-Something's JSON, a folder per class, or clips "
            "made here: digits, and digits-jitter with a camera that shakes.",
        ),
    ],
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Folders' names in label order, or Something-Something's labels."
        ),
    ] = None,
    model: cli.ModelOption = "vit-digits",
    r: Annotated[
        list[int], typer.Option(min=0, help=f"{cli.R_HELP} Several values: --r 0 32 64.")
    ] = [0],  # noqa: B006, typer copies it
    method: Annotated[
        list[cli.MethodName] | None,
        typer.Option(help="How tokens are chosen; several are compared. Default: sta."),
    ] = None,
    match_gflops: cli.MatchGflopsOption = False,
    protocol: cli.ProtocolOption = None,
    views: cli.ViewsOption = None,
    clips: cli.ClipsOption = None,
    json_file: cli.JsonOption = None,
    csv_file: cli.CsvOption = None,
    out: cli.OutOption = None,
    **options: Any,
) -> None:
    """Accuracy, agreement with the unpruned model, GFLOPs and speed on labelled videos.

    Every video is decoded once for all methods and r. Shares in --json and --csv are 0..1, each
    with its 95 % interval; difference is top1 minus the unpruned model's on the same videos (with
    0 among --r); gflops and clips_per_s are of one view. With --out, each video's predictions are
    kept, too, and --resume goes on with them. The exit code is 1 if a video could not be read or
    the model does not take one of several methods; they are left out. It is 3 if a result could
    not be written.
    """
    given = cli.arguments(locals(), "json_file", "csv_file", method="methods")
    start("sta.inference.evaluate", model, options["settings"])
    import sta

    cli.check_files(json_file, csv_file)
    result, interrupted = cli.until_interrupted(lambda: sta.evaluate(**given))
    cli.note_methods_without_r(given["methods"], r)
    cli.print_result(result)
    cli.write_json(json_file, result.records())
    cli.write_csv(csv_file, result.records())
    stopped_after = result.done if interrupted else None
    cli.finish(result.total, result.failures, out, stopped_after=stopped_after)
    if result.left_out:
        raise typer.Exit(1)
