"""`sta.export`: a model, pruned or not, as a file that other programs run; written and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor, nn

import sta
from sta import runtime
from sta.backbones.copies import shared_copy
from sta.backbones.hooks import StepHook, hooks_in
from sta.backbones.zoo.video_model import VideoModel, view_spec
from sta.methods import Config, make_config
from sta.progress import ProgressArg, reporting
from sta.results import Result
from sta.runtime.comparison import Comparison, compare
from sta.runtime.exported import ANY, facts_of
from sta.runtime.graph import FixedBatch
from sta.runtime.probe import make_safe
from sta.runtime.sessions import check_format, files_of
from sta.video.clips import DIGITS, Failures, Videos, full_batches, load_clips
from sta.video.digits import Split
from sta.video.views import ViewSpec

_CHECKED, _CALIBRATED = 8, 32  # clips, where none are given

Format = Literal["onnx", "openvino", "pt2"]


@dataclass(frozen=True)
class ExportResult(Result):
    """A file and how it compares with the model.

    Attributes:
        path: The file.
        shape: Of the pixels that it takes; the batch is -1 where it may be any.
        precision: What it computes in.
        comparison: Its outputs beside the model's.
        differences: What differs by more than the tolerance, a sentence each; empty if nothing.
        failures: Path and error of each video that could not be read.
    """

    path: Path
    shape: tuple[int, ...]
    precision: str
    comparison: Comparison
    differences: tuple[str, ...]
    failures: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the file does what the model does; there is none otherwise."""
        return not self.differences

    def records(self) -> list[dict[str, Any]]:
        """One row: the file and the figures of the comparison."""
        row = {"path": str(self.path), "shape": self.shape, "precision": self.precision}
        return [{**row, **asdict(self.comparison), "differences": list(self.differences)}]

    def tables(self) -> Iterator[RenderableType]:
        """The file, and lines about the comparison."""
        shape = ", ".join("any" if size == ANY else str(size) for size in self.shape)
        head = f"{self.path}: ({shape}) pixels to logits, {self.precision}"
        for line in (head, *(f"  {line}" for line in self.comparison.lines())):
            yield Text(line, no_wrap=True, overflow="ignore")  # a path stays whole


def export(
    model: str | nn.Module | VideoModel,
    out: str | Path,
    *,
    format: Format = "onnx",
    method: str = "sta",
    r: int = 0,
    config: str | Path | Config | None = None,
    batch_size: int | None = None,
    precision: str = "float32",
    check: Videos | None = None,
    calibrate: Videos | None = None,
    tolerance: float | None = None,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    overwrite: bool = False,
    progress: ProgressArg = True,
) -> ExportResult:
    """Write a model, pruned or not, as ONNX, OpenVINO or PyTorch's .pt2, and check the file.

    The file takes clips of one shape, and gives the logits and which tokens each step kept. It is
    run beside the model itself on real clips, and is only there if it does what the model does.

    Args:
        model: What `sta.load` takes, or a model; with a method applied, that method is exported
            where neither `r` nor `config` is given.
        out: The file: ``.onnx``, ``.xml`` (OpenVINO; weights go beside it as ``.bin``), ``.pt2``.
        format: "onnx", "openvino" or "pt2".
        method: How tokens are chosen, by name.
        r: Tokens to drop per frame at the first step.
        config: A method's settings, or a file with them, instead of `method` and `r`.
        batch_size: Clips that the file takes; None is any number of them, or one where the model
            or its method does not allow that.
        precision: "float32"; for OpenVINO also "float16" (of the stored weights) and "int8".
        check: Videos or clips to check the file with, instead of drawn digits.
        calibrate: Videos or clips that int8 takes its ranges from, instead of drawn digits.
        tolerance: Of the logits, as a share of the largest; None takes the precision's.
        frames: Frames per clip, where the model takes others than its own.
        stride: Distance between the frames of a clip.
        size: Side of a clip, where the model takes others than its own.
        overrides: Fields of the backbone's config, for `sta.load`.
        random_weights: Build the model without loading weights.
        overwrite: Replace a file that is there.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.

    Returns:
        How the file compares; `ok` says whether it is within the tolerance. If it is not, no file
        is written, and one that was there stays.

    Raises:
        ValueError: An argument does not fit, or no video can be read.
        FileExistsError: The file is there, or the one of its weights.
        ImportError: The runtime is not installed; the message has the line that installs it.
    """
    path = Path(out)
    check_format(format, precision, path)
    if not overwrite:
        for file in files_of(path):
            if file.exists():
                raise FileExistsError(f"{file}: is there already; overwrite=True replaces it")
    if precision == "int8":
        make_safe("openvino", precision)  # before anything is computed, while it can take effect
    settings = _settings(method, r, config)
    opened = VideoModel.open(model, overrides=overrides, random_weights=random_weights)
    spec = view_spec(opened, views="1x1", frames=frames, stride=stride, size=size)
    network = opened.model.eval()
    if settings is not None:
        network = sta.apply(shared_copy(network), settings)
    applied = next((hook.config for hook in hooks_in(network, StepHook)), None)
    if applied is not None and applied.follows_clip and not getattr(applied, "buckets", None):
        raise ValueError(
            f"{applied.title} keeps as many tokens as a clip needs, and a file has one shape: set "
            "buckets in its settings, e.g. buckets=(800,)"
        )
    with ExitStack() as within:
        report = within.enter_context(reporting(progress, "export"))
        report("reading clips")
        batches, failures = _batches(opened, spec, check, "test", _CHECKED, batch_size or 1)
        calibration: list[Tensor] = []
        if precision == "int8":
            calibration, missing = _batches(
                opened, spec, calibrate, "train", _CALIBRATED, batch_size or 1
            )
            failures += missing
        report(f"writing {path}")
        with torch.no_grad():
            network(batches[0])  # the facts have the steps of a forward
        clip = batches[0].shape[1:]
        own = view_spec(opened, frames=frames, stride=stride, size=size)
        cost = sta.gflops(network, (1, *clip))
        facts = facts_of(opened, network, own, (ANY, *clip), precision, cost)

        path.parent.mkdir(parents=True, exist_ok=True)
        unchecked = Path(within.enter_context(TemporaryDirectory(dir=path.parent))) / path.name

        def write(batch: int) -> tuple[int, ...]:
            shape = (batch, *clip)
            runtime.write_file(
                network,
                batches[0],
                unchecked,
                file_format=format,
                precision=precision,
                any_batch=batch == ANY,
                calibration=calibration,
                facts=replace(facts, shape=shape).to_json(),
            )
            return shape

        try:
            shape = write(batch_size or ANY)
        except FixedBatch:
            shape = write(1)
        report(f"checking {path}")
        run = runtime.open_file(unchecked, precision="int8" if precision == "int8" else "float32")
        if shape[0] == ANY and len(batches) > 2:  # one alone, and some together
            batches = [batches[0], torch.cat(batches[1:4]), *batches[4:]]
        found = compare(network, run, batches)
        differences = tuple(found.failures(precision, tolerance))
        if not differences:
            for file in unchecked.parent.iterdir():  # weights may be beside it
                file.replace(path.with_name(file.name))
    return ExportResult(path, shape, precision, found, differences, tuple(failures))


def _settings(method: str, r: int, config: str | Path | Config | None) -> Config | None:
    """The method to apply; None leaves the model as it is."""
    if config is None:
        made = make_config(method, r)
        return made if r or not made.drops else None
    if r:
        raise ValueError(f"config has the settings: leave r={r} out")
    return config if isinstance(config, Config) else Config.from_file(config)


def _batches(
    opened: VideoModel,
    spec: ViewSpec,
    videos: Videos | None,
    split: Split,
    count: int,
    batch_size: int,
) -> tuple[list[Tensor], Failures]:
    """Pixels of these videos, or of drawn clips, in full batches; what could not be read."""
    drawn = max(count, batch_size) if videos is None else None
    source = DIGITS if videos is None else videos
    clips, failures = load_clips(source, spec, drawn, split=split)
    return [opened.pixels(batch) for batch in full_batches(clips, batch_size)], failures
