"""``sta export``: a pruned model as a file that other programs run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from sta.cli import inference as cli
from sta.cli.several import SeveralValues

if TYPE_CHECKING:
    from torch import Tensor

    from sta.inference.classifier import Classifier
    from sta.video.views import ViewSpec

_CHECKED, _CALIBRATED = 8, 32  # clips, where none are given

FormatName = Literal["onnx", "openvino", "pt2"]
PrecisionName = Literal["float32", "float16", "bfloat16", "int8"]


class ExportCommand(SeveralValues):
    """Takes all the videos that follow an option."""

    several: ClassVar[Mapping[str, Callable[[str], bool]]] = {
        name: lambda word: not word.startswith("--") for name in ("--check", "--calibrate")
    }


def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="What to write.")],
    file_format: Annotated[
        FormatName, typer.Option("--format", help="For which runtime.")
    ] = "onnx",
    model: cli.ModelOption = "vit-digits",
    r: Annotated[int, typer.Option(min=0, help=cli.R_HELP)] = 0,
    method: Annotated[
        cli.MethodName, typer.Option(help="How tokens are chosen.")
    ] = cli.MethodName.STA,
    config: cli.ConfigOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Clips that the file takes.")] = 1,
    precision: Annotated[
        PrecisionName, typer.Option(help="float32; openvino also float16 (weights) and int8.")
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
) -> None:
    """Write a model, pruned or not, as ONNX, OpenVINO or PyTorch's .pt2, and check the file.

    The file has a static shape and gives the logits and which tokens each step kept. It is run
    beside the model itself on real clips; the exit code is 1 if they differ by more than rounding
    explains. OpenVINO files (.xml) have their weights beside them (.bin).
    """
    from sta.inference.classifier import Classifier
    from sta.inference.setup import Setup
    from sta.runtime import export as write
    from sta.runtime import open_file, probe
    from sta.runtime.figures import compare
    from sta.runtime.files import check_format

    check_format(file_format, precision, out)
    if precision == "int8":
        probe.ready("openvino", precision)
    setup = Setup.make(
        model,
        methods=[method.value] if config is None else [],
        r=[r],
        config=config,
        overrides=cli.parse_settings(settings or ()),
        random_weights=random_weights,
        device="cpu",
        views="1x1",
        frames=frames,
        stride=stride,
        size=size,
    )
    classifier = Classifier(setup.opened.model, setup.opened.clip, list(setup.methods.values()))
    batches = _batches(classifier, setup.spec, check, "test", max(_CHECKED, batch_size), batch_size)
    calibration: list[Tensor] = []
    if precision == "int8":
        calibration = _batches(
            classifier, setup.spec, calibrate, "train", max(_CALIBRATED, batch_size), batch_size
        )
    write(
        classifier.model,
        batches[0],
        out,
        file_format=file_format,
        precision=precision,
        calibration=calibration,
    )
    typer.echo(f"{out}: {tuple(batches[0].shape)} pixels to logits, {precision}")
    run = open_file(out, precision="int8" if precision == "int8" else "float32")
    figures = compare(classifier.model, run, batches)
    for line in figures.lines():
        typer.echo(f"  {line}")
    if failures := figures.failures(precision, tolerance):
        typer.echo(f"Error: {out}: not the same as the model: {'; '.join(failures)}", err=True)
        raise typer.Exit(1)


def _batches(
    classifier: Classifier,
    spec: ViewSpec,
    videos: list[str] | None,
    split: Any,
    count: int,
    size: int,
) -> list[Tensor]:
    """Pixels of these videos, or of drawn clips, in whole batches."""
    from sta.measure.clips import drawn_clips
    from sta.runtime.clips import full_batches, read

    clips = read(videos, spec) if videos else drawn_clips(range(count), spec, split)
    return [classifier.clip.pixels(batch, classifier.device) for batch in full_batches(clips, size)]
