"""``sta ui``: the page in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sta.cli import options as cli


def ui(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Models or exported files to choose from. Default: the embedded ones."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On this machine; 0: any.")] = 7860,
    max_megabytes: Annotated[int, typer.Option(min=1, help="Largest upload.")] = 100,
    curve: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Accuracy and compute of each model, as sta eval --json writes it."
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser window.")] = True,
    device: cli.DeviceOption = "auto",
    precision: Annotated[
        cli.PrecisionName,
        typer.Option(help="float32, float16, bfloat16; int8 of files that were exported so."),
    ] = "float32",
    timeout: cli.TimeoutOption = 60.0,
) -> None:
    """Try clips in the browser: which tokens stay, what the model predicts, what it saves.

    The page is for this machine only and connects to no other. Its address has a token: whoever has
    it can use the page. Uploads are removed as soon as they are read. Ctrl-C ends it.
    """
    import webbrowser

    from sta.backbones.zoo import embedded
    from sta.runtime.devices import choose_device
    from sta.ui.app import page_server, when_ready
    from sta.ui.curve import read_curve

    names = model or embedded.names()
    if not names:
        raise ValueError("there is no embedded model here; name one with --model")
    files = curve or []
    if len(files) > len(names):
        raise ValueError(f"{len(files)} curves for {len(names)} models; give one per --model")
    curves = {name: read_curve(file) for name, file in zip(names, files, strict=False)}
    with page_server(
        names,
        port=port,
        max_megabytes=max_megabytes,
        curves=curves,
        device=choose_device(device),
        precision=precision,
        timeout=timeout,
    ) as page:
        typer.echo(f"{page.address} (Ctrl-C ends it)")
        if browser:
            when_ready(page.server, lambda: webbrowser.open(page.launcher.as_uri()))
        page.server.run()
