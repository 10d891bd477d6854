"""``sta predict``: what is in these videos?"""

from __future__ import annotations

from typing import Annotated

import typer

from sta.cli import inference as cli


def predict(
    inputs: Annotated[
        list[str], typer.Argument(metavar="VIDEO|FOLDER|LIST...", help="What to look at.")
    ],
    model: cli.ModelOption = "vit-digits",
    r: Annotated[int | None, typer.Option(min=0, help=f"{cli.R_HELP} Default: 0.")] = None,
    method: Annotated[
        cli.MethodName | None, typer.Option(help="How tokens are chosen. Default: sta.")
    ] = None,
    config: cli.ConfigOption = None,
    views: cli.ViewsOption = None,
    protocol: cli.ProtocolOption = None,
    frames: cli.FramesOption = None,
    stride: cli.StrideOption = None,
    size: cli.SizeOption = None,
    batch_size: cli.BatchOption = 8,
    device: cli.DeviceOption = "auto",
    runtime: cli.RuntimeOption = "torch",
    top_k: Annotated[int, typer.Option(min=1, help="Classes per video.")] = 5,
    logits: Annotated[
        bool, typer.Option("--logits", help="Add each video's logits to its row.")
    ] = False,
    shard: Annotated[
        str | None, typer.Option(metavar="K/N", help="Only the K-th of N parts of the videos.")
    ] = None,
    out: cli.OutOption = None,
    resume: cli.ResumeOption = False,
    overwrite: cli.OverwriteOption = False,
    retry_failed: cli.RetryFailedOption = False,
    root: cli.RootOption = None,
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    engine: cli.EngineOption = "local",
    address: cli.AddressOption = None,
    actors: cli.ActorsOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Predict the classes of videos: files, folders of them, or lists.

    Prints a table, or with --out writes a row per video: path, predictions (label and score, best
    first), error and error_kind. One view per video unless --views or --protocol ask for more. The
    exit code is 1 if a video could not be read, and 3 if a result could not be written.
    """
    options = cli.arguments(locals())
    import sta

    result, interrupted = cli.until_interrupted(lambda: sta.predict(**options))
    if out is None:
        cli.print_result(result)
    stopped_after = result.done if interrupted else None
    cli.finish(result.total, result.failures, out, stopped_after=stopped_after)
