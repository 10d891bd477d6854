"""`sta.tune`: settings that meet a target on this machine, from a few videos without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import RenderableType
from torch import Tensor, nn

from sta.backbones.copies import shared_copy
from sta.backbones.patch import apply
from sta.backbones.zoo.video_model import VideoModel, view_spec
from sta.measure.contenders import Source
from sta.measure.memory import keep_memory
from sta.measure.stats import nats
from sta.measure.timing import interleave
from sta.measure.timing import speedup as measured_speedup
from sta.methods import Config, STAConfig
from sta.progress import ProgressArg, reporting
from sta.results import Result, table
from sta.runtime.devices import choose_device
from sta.runtime.with_torch import in_precision
from sta.tuning.families import families, method_families, tuned_methods
from sta.tuning.fidelity import FidelityMeter
from sta.tuning.scores import Scored, choices, compare, score_table, shared_r
from sta.tuning.search import Clock, Point, Tuned, Tuner, part_of
from sta.tuning.thresholds import threshold_families
from sta.video.clips import Videos, load_clips, views_of
from sta.video.prefetch import default_workers

CLIPS = 320  # enough to guarantee 99 % agreement
TIMED_BATCHES = 4  # where the time depends on the clip


@dataclass(frozen=True)
class TuneResult(Result):
    """Settings that meet a target, and all that were measured on the way.

    Attributes:
        model: The model's name.
        target: What was asked for, e.g. {"speedup": 2.0}.
        gflops: Of the unpruned model.
        tuned: The chosen settings and all points.
        scores: The scores that were compared first, most faithful first.
        clips: How many clips were read.
        videos: How many videos they are of, unreadable ones included.
        failures: Path and error of each video that could not be read.
    """

    model: str
    target: dict[str, float]
    gflops: float
    tuned: Tuned
    scores: tuple[Scored, ...]
    clips: int
    videos: int
    failures: tuple[tuple[str, str], ...] = ()

    @property
    def config(self) -> Config:
        """The settings to use, for `sta.apply`."""
        return self.tuned.chosen.config

    @property
    def chosen(self) -> Point:
        """The settings to use, with what was measured of them."""
        return self.tuned.chosen

    def save(self, path: str | Path) -> None:
        """Write the settings to a file, for `sta.Config.from_file` and ``--config``."""
        self.config.to_file(path)

    def plot(self, path: str | Path) -> None:
        """Draw the frontier into a file, ``.png``, ``.pdf`` or ``.svg``."""
        from sta.tuning.plots import draw_frontier

        ((name, value),) = self.target.items()
        title = f"{Path(self.model).name}, {name} {value:g}"
        draw_frontier(self.tuned, self.gflops, title, Path(path))

    def records(self) -> list[dict[str, Any]]:
        """A row per point that was measured."""
        edge = self.tuned.frontier()
        return [self._record(point, edge) for point in self.tuned.points]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "model": self.model,
            "target": self.target,
            "gflops": self.gflops,
            "points": self.records(),
            "scores": [{"name": one.name, **asdict(one.fidelity)} for one in self.scores],
        }

    def _record(self, point: Point, edge: list[Point]) -> dict[str, Any]:
        low, high = point.fidelity.interval
        return {
            "chosen": point == self.chosen,
            "frontier": point in edge,
            "steps": point.family,
            "settings": asdict(point.config),
            "gflops": point.gflops,
            "speedup": point.speedup,
            "clips": point.fidelity.clips,
            "agreement": point.fidelity.agreement,
            "agreement_low": low,
            "agreement_high": high,
            "agreement_at_least": point.fidelity.low,
            "kl": point.fidelity.kl,
        }

    def tables(self) -> Iterator[RenderableType]:
        """The scores, then all points with the frontier marked, then the chosen settings."""
        from rich.text import Text

        if self.scores:
            yield score_table(self.scores)
        yield self._point_table()
        point = self.chosen
        faster = "" if point.speedup is None else f"{point.speedup:.2f} times as fast as unpruned, "
        yield Text(
            f"{point.amount}, {point.family}: {faster}{point.gflops:.4g} of {self.gflops:.4g} "
            f"GFLOPs, agrees on {point.fidelity.agree} of {point.fidelity.clips} videos: at least "
            f"{100 * point.fidelity.low:.1f} % with 95 % confidence"
        )

    def _point_table(self) -> RenderableType:
        edge = set(self.tuned.frontier())
        rows = []
        for point in sorted(self.tuned.points, key=lambda p: p.gflops):
            low, high = point.fidelity.interval
            rows.append(
                (
                    "chosen" if point == self.chosen else "*" if point in edge else "",
                    point.amount.partition("=")[2],
                    point.family,
                    f"{point.gflops:.4g}",
                    "-" if point.speedup is None else f"{point.speedup:.2f}x",
                    f"{point.fidelity.agree}/{point.fidelity.clips}",
                    f"{100 * low:.1f}-{100 * high:.1f} %",
                    nats(point.fidelity.kl),
                )
            )
        heads = (
            "",
            self.chosen.amount.partition("=")[0],
            "steps",
            "GFLOPs",
            "speed-up",
            "agree",
            "95 %",
            "KL",
        )
        return table(heads, rows, text=("steps",))


def tune(
    videos: Videos,
    model: str | nn.Module | VideoModel = "vit-digits",
    *,
    speedup: float | None = None,
    gflops: float | None = None,
    agreement: float | None = None,
    fidelity_clips: int = CLIPS,
    batch_size: int = 1,
    rounds: int = 9,
    threads: int | None = None,
    paper: bool = False,
    budget: Literal["auto"] | None = None,
    seed: int = 0,
    device: str = "auto",
    root: str | None = None,
    views: str | None = None,
    stride: int | None = None,
    timeout: float = 60.0,
    workers: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    progress: ProgressArg = True,
) -> TuneResult:
    """Find score, r, schedule and blocks for a speed-up, GFLOPs, or agreement. No training.

    Times are measured here, in turn with the unpruned model; fidelity is agreement with it, and KL,
    the divergence of its probabilities. Of the settings that meet `speedup` or `gflops`, those with
    the least divergence win; of those that meet `agreement`, with 95 % confidence, the fastest.
    Give exactly one of the three.

    Args:
        videos: Files, folders or lists, without labels; "digits"; or clips.
        model: What `sta.load` takes, or a model without a method applied, which is left as it is.
        speedup: How many times faster than the unpruned model, e.g. 2.0.
        gflops: Cost no more GFLOPs per clip.
        agreement: Agree with the unpruned model on this share of videos, e.g. 0.99.
        fidelity_clips: The most clips to compare on; of several views, all of each video.
        batch_size: Clips per forward when timed.
        rounds: How often each candidate is timed.
        threads: Of the CPU; None leaves them as they are.
        paper: Rank tokens by the paper's score; choose only r, schedule and blocks.
        budget: "auto" finds a threshold instead of r: every clip keeps as many tokens as it needs.
            GFLOPs are then the mean over the clips.
        seed: Of the choice of clips.
        device: "cpu", "cuda", "cuda:1" ...; "auto" is where a given model is, or a GPU.
        root: Where a list's paths start.
        views: Clips x crops per video, e.g. "2x3", which count as one by the mean of their
            probabilities; default: one clip.
        stride: Distance between the frames of a clip.
        timeout: Seconds without a sign of life after which a video is given up.
        workers: Decoding processes.
        overrides: Fields of the backbone's config, for `sta.load`.
        random_weights: Build the model without loading weights.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.

    Returns:
        The settings, with everything that was measured.

    Raises:
        ValueError: There is not one target, it cannot be reached, or no video can be read.
    """
    targets = {"speedup": speedup, "gflops": gflops, "agreement": agreement}
    asked = {name: float(value) for name, value in targets.items() if value is not None}
    if len(asked) != 1:
        given = ", ".join(f"{name}={value:g}" for name, value in asked.items()) or "none"
        raise ValueError(f"give exactly one target of speedup, gflops and agreement; got {given}")
    if budget not in (None, "auto") or (budget and paper):
        raise ValueError(f"budget={budget!r}: use 'auto', without paper, or leave it out")
    where = choose_device(device, model)
    keep_memory()
    source = Source(model, overrides or {}, random_weights, where, threads)
    opened = source.open()
    spec = view_spec(opened, views=views or "1x1", stride=stride)
    per_video = views_of(videos, spec)
    candidates = families(opened.model, opened.clip.shape(), STAConfig.paper(0))
    scores: list[Scored] = []
    with reporting(progress, "tuning") as report:
        clips, failures = load_clips(
            videos,
            spec,
            max(1, fidelity_clips // per_video) * per_video,  # all views of whole videos
            split="train",
            root=root,
            seed=seed,
            workers=workers or default_workers(),
            timeout=timeout,
            progress=report,
        )
        # Where the number of tokens follows the clip, one batch does not tell the time of others.
        batches = TIMED_BATCHES if budget else 1
        rows = np.arange(batches * batch_size) * max(1, len(clips) // (batches * batch_size))
        timed = opened.pixels(clips[rows % len(clips)], where).split(batch_size)
        measure = FidelityMeter(opened, clips, device=where, views=per_video)
        read = len(clips) // per_video
        if budget:
            report(f"scores of {len(clips)} clips")
            candidates = threshold_families(opened, clips, where)
        elif not paper:
            part = part_of(read)
            r = shared_r(candidates[0].costs)
            bases = [replace(base, r=r) for base in choices(opened.model)]
            scores = compare(bases, measure, part, report)
            best = scores[0].config
            assert isinstance(best, STAConfig)
            shape = opened.clip.shape()
            candidates = families(opened.model, shape, best)
            candidates += method_families(opened.model, shape, tuned_methods())
        clock = make_clock(opened, timed, rounds)
        tuner = Tuner(candidates, measure, read, clock, report, per_video)
        ((name, target),) = asked.items()
        tuned: Tuned = getattr(tuner, f"for_{name}")(target)
    return TuneResult(
        source.name,
        asked,
        candidates[0].costs.gflops(0) or 0.0,
        tuned,
        tuple(scores),
        len(clips),
        read + len(failures),
        tuple(failures),
    )


def make_clock(
    opened: VideoModel,
    batches: Sequence[Tensor],
    rounds: int = 9,
    precision: str = "float32",
) -> Clock:
    """A clock for a model without a method applied; batches of pixels are timed together."""
    device = batches[0].device

    def run(model: nn.Module) -> None:
        with in_precision(precision, device.type):
            for batch in batches:
                model(batch)

    def clock(configs: Sequence[Config]) -> list[float]:
        runs: dict[Config | None, Callable[[], object]] = {None: partial(run, opened.model)}
        for config in configs:
            runs[config] = partial(run, apply(shared_copy(opened.model), config))
        timings = interleave(runs, rounds=rounds, device=device)
        return [measured_speedup(timings, config, None) for config in configs]

    return clock
