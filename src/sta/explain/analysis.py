"""`sta.analyze`: redundancy S and GradNorm over many clips, under several methods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text
from torch import nn

from sta.backbones import find
from sta.backbones.zoo.video_model import VideoModel, model_name
from sta.explain.clips import read_clip, single_view
from sta.explain.comparable import comparable_configs
from sta.explain.draw import Frames
from sta.explain.gradnorm import GradNorm, gradnorm, share_on
from sta.explain.inspect import UNPRUNED, StepResult, inspect_steps, variants_of
from sta.explain.redundancy import last_tokens, trajectory_sum
from sta.measure.stats import UNBOUNDED, bootstrap
from sta.methods import Config
from sta.progress import ProgressArg, track
from sta.results import Result, table
from sta.runtime.devices import choose_device
from sta.video.clips import digit_entries, is_digits, read_samples
from sta.video.decode import VideoError
from sta.video.lists import Entry, find_videos

DIGIT_CLIPS = 256  # of "digits", unless a limit is given


@dataclass(frozen=True)
class RedundancyRow:
    """Trajectory sum S of one method.

    Attributes:
        method: Its title, or "Unpruned".
        tokens_per_frame: Tokens that are left of each frame at the end.
        clips: How many were measured.
        S: Mean over the clips: 0 to T - 1, how much of the last frame the earlier ones show.
        low: Of the 95 % interval; None where clips do not differ, as a single one.
        high: Of the same.
    """

    method: str
    tokens_per_frame: int
    clips: int
    S: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class RedundancyDifference:
    """S of one method minus S of another, clip by clip; attributes as of `RedundancyRow`."""

    method: str
    other: str
    S: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class GradNormRow:
    """The gradient on what one step of a method keeps.

    Attributes:
        method: Its title.
        after: Where the step is: "input", "block 5" or "stage 2".
        clips: How many were measured.
        tokens: Share of the tokens kept.
        gradient: Share of the gradient on them.
        low: Of the 95 % interval of `gradient`; None where clips do not differ, as a single one.
        high: Of the same.
    """

    method: str
    after: str
    clips: int
    tokens: float
    gradient: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class GradNormFigure:
    """Frames, GradNorm and what is kept of one clip, to be drawn.

    Attributes:
        clip: Name of the clip.
        model: Name of the model.
        frames: (F, H, W, 3), for drawing.
        scale: How many pixels of `frames` a pixel of the model's input is wide.
        found: GradNorm, and what the methods keep of it.
    """

    clip: str
    model: str
    frames: Frames = field(repr=False)
    scale: int
    found: GradNorm = field(repr=False)

    def save(self, path: str | Path) -> Path:
        """Draw it as .png or .pdf; folders on the way are made."""
        from sta.explain import strip

        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        heading = f"{self.model} · {self.clip}"
        return strip.save(
            strip.gradnorm_strip(self.frames, self.found, heading, scale=self.scale), path
        )


@dataclass(frozen=True)
class Analysis(Result):
    """What `sta.analyze` found. `print` gives its tables.

    Attributes:
        frames: Frames of tokens, T; S is at most T - 1.
        redundancy: S of the unpruned model and of each method.
        differences: S of the first method minus S of each other.
        gradnorm: A row per method and step, if it was asked for.
        figures: Of the first clips, if they were asked for.
        videos: How many there were, with those that could not be read.
        failures: Path and error of each video that could not be read.
    """

    frames: int
    redundancy: tuple[RedundancyRow, ...]
    differences: tuple[RedundancyDifference, ...]
    gradnorm: tuple[GradNormRow, ...]
    figures: tuple[GradNormFigure, ...]
    videos: int
    failures: tuple[tuple[str, str], ...]

    def records(self) -> list[dict[str, Any]]:
        """All rows of all tables, each with the name of its "table", e.g. for a data frame."""
        tables: dict[str, Sequence[Any]] = {
            "redundancy": self.redundancy,
            "difference": self.differences,
            "gradnorm": self.gradnorm,
        }
        return [{"table": name, **asdict(row)} for name, rows in tables.items() for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """The tables as `sta analyze --json` writes them."""
        return {
            "frames": self.frames,
            "S": [asdict(row) for row in self.redundancy],
            "differences": [asdict(row) for row in self.differences],
            "gradnorm": [asdict(row) for row in self.gradnorm],
        }

    def tables(self) -> Iterator[RenderableType]:
        """S of each method, the differences, and GradNorm where it was measured."""
        if not self.redundancy:
            yield "no clip could be read"
            return
        scale = f"S (0 to {self.frames - 1})"
        yield table(
            ("method", "tokens a frame", "clips", scale, "95 % interval"),
            [
                (
                    *(row.method, str(row.tokens_per_frame), str(row.clips), f"{row.S:.3f}"),
                    _between(row.low, row.high),
                )
                for row in self.redundancy
            ],
        )
        for gap in self.differences:
            yield Text(
                f"S of {gap.method} minus {gap.other}: {gap.S:+.3f} ({_between(gap.low, gap.high)})"
            )
        if self.gradnorm:
            yield table(
                ("method", "step after", "tokens kept", "gradient on them", "95 % interval"),
                [
                    (
                        *(step.method, step.after),
                        *(f"{100 * step.tokens:.1f} %", f"{100 * step.gradient:.1f} %"),
                        _between(step.low, step.high, percent=True),
                    )
                    for step in self.gradnorm
                ],
            )


def _between(low: float | None, high: float | None, *, percent: bool = False) -> str:
    """The ends of an interval; "-" where there is none."""
    if low is None or high is None:
        return "-"
    return f"{100 * low:.1f} to {100 * high:.1f} %" if percent else f"{low:.3f} to {high:.3f}"


@dataclass
class _Shares:
    """What one step keeps of the tokens and of the gradient, clip by clip."""

    after: str
    tokens: list[float] = field(default_factory=list)
    gradient: list[float] = field(default_factory=list)


class Analyzer:
    """Measures clips one by one and collects the figures.

    Args:
        model: The model; it is not changed.
        configs: The methods by title; the unpruned model is measured, too.
        device: Where to run.

    Attributes:
        frames: Frames of tokens, T, once a clip was measured; S is at most T - 1.
        sums: S of every clip, by method.
        left: Tokens that are left of each frame at the end, by method.
    """

    def __init__(
        self, model: VideoModel, configs: Mapping[str, Config], device: str = "cpu"
    ) -> None:
        self.clip, self.device = model.clip, device
        self.models = variants_of(model.model, configs, device)
        self.frames = 0
        self.sums: dict[str, list[float]] = {name: [] for name in self.models}
        self.left: dict[str, int] = {}
        self._shares: dict[str, list[_Shares]] = {}

    def measure_redundancy(self, clips: NDArray[np.uint8]) -> None:
        pixels = self.clip.pixels(clips, self.device)
        for name, model in self.models.items():
            with torch.inference_mode():
                tokens = last_tokens(model, partial(model, pixels))
            self.frames, self.left[name] = tokens.shape[1:3]
            self.sums[name] += trajectory_sum(tokens).tolist()

    def measure_gradnorm(self, clip: NDArray[np.uint8], label: int | None = None) -> GradNorm:
        """Measure GradNorm on a clip (F, H, W, 3), of its label or of the model's prediction."""
        pixels = self.clip.pixels(clip[None], self.device)
        labels = None if label is None else torch.tensor([label], device=pixels.device)
        norm = gradnorm(self.models[UNPRUNED], pixels, labels)
        finest = find(self.models[UNPRUNED]).token_pixels()
        kept: dict[str, list[tuple[StepResult, float]]] = {}
        for name, model in self.models.items():
            if name == UNPRUNED:
                continue
            with torch.inference_mode():
                steps, _ = inspect_steps(model, pixels)
            rows = self._shares.setdefault(name, [_Shares(step.after) for step in steps])
            kept[name] = []
            for row, step in zip(rows, steps, strict=True):
                mask = torch.from_numpy(step.kept).to(norm.device).unsqueeze(0)
                share = float(share_on(mask, norm, step.patch[1] // finest[1]))
                row.tokens.append(float(step.kept.mean()))
                row.gradient.append(share)
                kept[name].append((step, share))
        return GradNorm(norm[0].float().cpu().numpy(), finest, kept)

    def redundancy(self) -> list[RedundancyRow]:
        return [
            RedundancyRow(name, self.left[name], len(sums), float(np.mean(sums)), *_interval(sums))
            for name, sums in self.sums.items()
            if sums
        ]

    def difference(self, name: str, other: str) -> RedundancyDifference:
        gaps = np.subtract(self.sums[name], self.sums[other]).tolist()
        return RedundancyDifference(name, other, float(np.mean(gaps)), *_interval(gaps))

    def gradnorm(self) -> list[GradNormRow]:
        """A row per method and step: share of the tokens kept, share of the gradient on them."""
        return [
            GradNormRow(
                name,
                step.after,
                len(step.gradient),
                float(np.mean(step.tokens)),
                float(np.mean(step.gradient)),
                *_interval(step.gradient),
            )
            for name, steps in self._shares.items()
            for step in steps
        ]


def analyze(
    videos: str | Path | Sequence[str | Path],
    model: str | nn.Module | VideoModel = "vit-digits",
    *,
    r: int | None = None,
    compare: Sequence[str | Config] = ("random",),
    config: Config | str | Path | None = None,
    gradnorm: bool = False,
    loss: Literal["answer", "label"] = "answer",
    clips: int | None = None,
    figures: int = 0,
    root: str | Path | None = None,
    stride: int | None = None,
    device: str = "auto",
    timeout: float = 60.0,
    workers: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    progress: ProgressArg = True,
) -> Analysis:
    """How redundant are the tokens that are left, and do they carry the gradient?

    The middle clip of each video is measured: redundancy by the trajectory sum S after the last
    block and, if asked for, the share of the gradient on kept tokens (GradNorm). A video that
    cannot be read is left out and named in the result. The model is not changed.

    >>> found = sta.analyze("val.txt", "vit-b-k400", r=64, clips=500)
    >>> print(found)  # the tables, with 95 % intervals
    >>> found.records()  # the same as rows

    Args:
        videos: A list of videos, a folder, a video file or several of these; or generated clips:
            "digits", "digits-jitter", or "digits:5" for one of them.
        model: What `sta.load` takes, or a loaded model.
        r: Tokens to drop per frame at STA's first step; None drops about a third.
        compare: Names of other methods, which are given the r that leaves as many tokens; or
            configs, which are taken as they are.
        config: A method with its settings, or a file with them, instead of STA with `r`.
        gradnorm: Measure GradNorm, too.
        loss: GradNorm of the model's own "answer", or of the list's "label".
        clips: Limit to the first videos; of "digits", 256 unless given.
        figures: Keep GradNorm of the first clips, to be drawn.
        root: Where the list's paths start; the list's own folder unless given.
        stride: Distance between the frames of a clip; None is the model's own.
        device: Where to run; "auto" is where a loaded model is, else a GPU if there is one.
        timeout: Seconds without a sign of life after which a video is given up.
        workers: Decoding processes.
        overrides: Passed on to `sta.load`.
        random_weights: Do not load weights.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.
    """
    opened = VideoModel.open(model, overrides=overrides, random_weights=random_weights)
    methods = comparable_configs(opened, "sta", r, compare, config)
    spec, title = single_view(opened, stride), Path(model_name(model)).name
    if is_digits(str(videos)):
        entries = digit_entries(str(videos), clips or DIGIT_CLIPS)
    else:
        entries = find_videos(videos, root)[:clips]
    if gradnorm and loss == "label":
        _check_labels(entries, len(opened.class_names))
    analyzer = Analyzer(opened, methods, choose_device(device, model))
    failures: list[tuple[str, str]] = []
    drawn: list[GradNormFigure] = []
    samples = read_samples(entries, spec, workers=workers, timeout=timeout)
    videos_read = zip(entries, samples, strict=True)
    for entry, sample in track(videos_read, len(entries), "videos", progress):
        if sample.clips is None:
            failures.append((sample.path, sample.error or "cannot be read"))
            continue
        analyzer.measure_redundancy(sample.clips[:1])
        if not gradnorm:
            continue
        label = sample.label if loss == "label" else None
        found = analyzer.measure_gradnorm(sample.clips[0], label)
        if len(drawn) < figures:
            with suppress(VideoError):  # it was read once: only its figure is missing
                clip = read_clip(entry.source, spec, timeout=timeout)
                drawn.append(GradNormFigure(clip.name, title, clip.display, clip.scale, found))
    first, *others = methods
    measured = len(entries) > len(failures)
    return Analysis(
        frames=analyzer.frames,
        redundancy=tuple(analyzer.redundancy()),
        differences=tuple(analyzer.difference(first, other) for other in others if measured),
        gradnorm=tuple(analyzer.gradnorm()),
        figures=tuple(drawn),
        videos=len(entries),
        failures=tuple(failures),
    )


def _check_labels(entries: Sequence[Entry], classes: int) -> None:
    for entry in entries:
        if entry.label is None or entry.label >= classes:
            raise ValueError(
                f"{entry.path}: label {entry.label} is not one of the model's classes, 0 to "
                f"{classes - 1}; give each video its label, or use loss='answer'"
            )


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % interval of the mean; JSON has no infinity, so None where there is none."""
    ends = bootstrap(values, bounds=UNBOUNDED)
    low, high = (end if math.isfinite(end) else None for end in ends)
    return low, high
