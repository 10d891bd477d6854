"""``sta analyze``: how redundant are the tokens, and do the kept ones matter?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sta.cli import options as cli


def analyze(
    source: Annotated[
        str,
        typer.Argument(
            metavar="LIST|FOLDER|VIDEO|digits|digits-jitter", help="The clips to measure."
        ),
    ],
    root: cli.RootOption = None,
    model: cli.ModelOption = "vit-digits",
    r: Annotated[
        int | None,
        typer.Option(min=0, help=f"{cli.R_HELP} Default: about a third."),
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
    clips: cli.ClipsOption = None,
    figures: Annotated[int, typer.Option(min=0, help="Clips to draw with --gradnorm.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("out"),
    json_file: cli.JsonOption = None,
    stride: cli.StrideOption = None,
    device: cli.DeviceOption = "auto",
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Redundancy of the tokens (trajectory sum S), and with --gradnorm their importance.

    S is 0 to T - 1: how much of the last frame the earlier ones show already, after the last block.
    The middle clip of each video is measured. The exit code is 1 if a video could not be read.
    """
    options = cli.arguments(locals(), "out", "json_file", source="videos")
    import sta

    cli.check_files(json_file)
    found = sta.analyze(**options)
    for figure in found.figures:
        for ending in ("png", "pdf"):
            typer.echo(f"wrote {figure.save(out / f'{figure.clip}-gradnorm.{ending}')}")
    if found.redundancy:
        cli.print_result(found)
        cli.write_json(json_file, found.to_dict())
    cli.finish(found.videos, found.failures, None)
