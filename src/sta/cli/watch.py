"""``sta watch``: what happens in front of a camera, or in a stream?"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from sta.cli import options as cli
from sta.cli.startup import start


def watch(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A camera (/dev/video0), rtsp://..., a file, or - for a pipe."
        ),
    ],
    model: cli.ModelOption = "vit-digits",
    every: Annotated[
        str, typer.Option(metavar="SECONDS", help="From one window to the next.")
    ] = "1s",
    windows: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="What a window spans. Default: the model's own clip."),
    ] = None,
    r: Annotated[int | None, typer.Option(min=0, help=f"{cli.R_HELP} Default: 0.")] = None,
    method: Annotated[
        cli.MethodName | None, typer.Option(help="How tokens are chosen. Default: sta.")
    ] = None,
    config: cli.ConfigOption = None,
    features: Annotated[
        bool, typer.Option("--features", help="A vector per window instead of classes.")
    ] = False,
    top_k: Annotated[int, typer.Option(min=1, help="Classes per line.")] = 5,
    fps: Annotated[
        float | None, typer.Option(help="Frames per second, where the source says it wrongly.")
    ] = None,
    device: cli.DeviceOption = "auto",
    runtime: Annotated[
        cli.RuntimeName | None,
        typer.Option(help="What runs the model: torch, or what an exported file is for."),
    ] = None,
    precision: cli.PrecisionOption = "float32",
    calibrate: cli.CalibrateOption = None,
    timeout: Annotated[
        float, typer.Option(min=0.5, help="Seconds of silence after which the source is lost.")
    ] = 20.0,
    idle: Annotated[
        float, typer.Option(min=0.1, help="Seconds without growth after which a file has ended.")
    ] = 10.0,
    duration: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds after which to end.")
    ] = None,
    settings: cli.SettingOption = None,
) -> None:
    """Watch live video: a line of JSON on standard output every --every seconds.

    When the model is slower than the stream, windows are skipped and counted, never queued. A lost
    camera or address is opened again. Ctrl-C ends with a summary on standard error.
    """
    start("sta.inference.watch", model, settings)
    from sta.inference.predict import check_one_method
    from sta.inference.stream import StreamModel
    from sta.inference.watch import Watch
    from sta.methods import make_config
    from sta.video.errors import VideoError
    from sta.video.sources import live_source

    check_one_method(config, r, method)
    opened = live_source(source, rate=fps, idle=idle)
    chosen: Any = config
    if config is None and (r or method is not None):
        chosen = make_config("sta" if method is None else method.value, r or 0)
    given: Any = {} if runtime is None else {"runtime": runtime}
    prepared = StreamModel(
        model,
        chosen,
        every=every,
        windows=windows,
        features=features,
        top_k=top_k,
        device=device,
        precision=precision,
        calibrate=calibrate,
        overrides=cli.parse_settings(settings or ()),
        **given,
    )

    def report(line: str) -> None:
        typer.echo(f"{source}: {line}", err=True)

    if not features:
        cli.note_default_model(context, model)
    watched = Watch(opened, prepared, timeout=timeout, duration=duration, report=report)
    failed: VideoError | None = None
    rows = watched.rows()
    try:
        for row in rows:
            if features and row["vector"] is not None:
                row["vector"] = row["vector"].tolist()
            typer.echo(json.dumps({**row, "skipped": watched.summary.skipped}))
        if not watched.summary.windows:
            why = "it ended before its first window was whole"
            failed = VideoError((watched.summary.errors or [why])[-1], "unreadable")
    except KeyboardInterrupt:
        rows.close()
    except VideoError as error:
        failed = error
    typer.echo(str(watched.summary), err=True)
    if failed is not None:
        typer.echo(f"failed: {source}: {failed}", err=True)
    if failed is not None or watched.summary.failed:
        raise typer.Exit(1)
