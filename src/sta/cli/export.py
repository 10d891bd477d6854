"""``sta export``: a pruned model as a file that other programs run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from sta.cli import options as cli
from sta.cli.options import MultiValueCommand

FormatName = Literal["onnx", "openvino", "pt2"]


class ExportCommand(MultiValueCommand):
    """Takes all the videos that follow an option."""

    multi_value: ClassVar[Mapping[str, Callable[[str], bool]]] = {
        name: lambda word: not word.startswith("--") for name in ("--check", "--calibrate")
    }


def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="What to write.")],
    format_: Annotated[FormatName, typer.Option("--format", help="For which runtime.")] = "onnx",
    model: cli.ModelOption = "vit-digits",
    r: Annotated[int, typer.Option(min=0, help=cli.R_HELP)] = 0,
    method: Annotated[
        cli.MethodName, typer.Option(help="How tokens are chosen.")
    ] = cli.MethodName.STA,
    config: cli.ConfigOption = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Clips that the file takes. Default: any number.")
    ] = None,
    precision: Annotated[
        cli.PrecisionName, typer.Option(help="float32; openvino also float16 (weights) and int8.")
    ] = "float32",
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIDEO...", help="Videos to check the file with, instead of drawn ones."
        ),
    ] = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(metavar="VIDEO...", help="Videos that int8 takes its ranges from."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Of the logits, as a share of the largest; by the precision."),
    ] = None,
    frames: cli.FramesOption = None,
    stride: cli.StrideOption = None,
    size: cli.SizeOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file, if it is there.")
    ] = False,
) -> None:
    """Write a model, pruned or not, as ONNX, OpenVINO or PyTorch's .pt2, and check the file.

    The file takes clips of one shape, and gives the logits and which tokens each step kept. It is
    run beside the model itself on real clips; the exit code is 1 if they differ by more than
    rounding explains, and no file is written. OpenVINO files (.xml) have their weights beside them
    (.bin).
    """
    options = cli.arguments(locals(), format_="format")
    from sta.runtime.export import export as write

    result = write(**options)
    cli.print_result(result)
    for path, error in result.failures:
        typer.echo(f"failed: {path}: {error}", err=True)
    if not result.ok:
        differences = "; ".join(result.differences)
        typer.echo(f"Error: {out}: not written, not the same as the model: {differences}", err=True)
    if result.failures or not result.ok:
        raise typer.Exit(1)
