"""`sta.fit`: the method and score that suit a model, from a few dozen clips without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.console import RenderableType
from torch import Tensor, nn

from sta.backbones import find
from sta.backbones.zoo.video_model import VideoModel
from sta.core.schedule import NamedSchedule
from sta.measure.contenders import Source
from sta.measure.matching import cost_counter
from sta.methods import METHODS, Config, r_of
from sta.progress import ProgressArg, reporting
from sta.results import Result
from sta.runtime.devices import choose_device
from sta.tuning.families import families, method_families, tuned_methods
from sta.tuning.fidelity import FidelityMeter
from sta.tuning.scores import Scored, choices, compare, score_table
from sta.video.clips import Videos, load_clips
from sta.video.prefetch import default_workers

CLIPS = 32
SAVED = 0.5
FIRST = 3  # clips that all scores are compared on
SHARE = 3  # each round keeps a third of the scores and triples the clips
MORE = 8  # clips more for the last two, until one is ahead


@dataclass(frozen=True)
class FitResult(Result):
    """The settings that stay closest to the unpruned model, and those they were compared with.

    Attributes:
        model: The model's name.
        config: The settings to use, for `sta.apply`.
        gflops: Of one clip with them.
        unpruned: Of one clip without pruning.
        scores: All that were compared, best first; the further they came, the more clips each saw.
        clips: How many there were.
        failures: Path and error of each video that could not be read.
    """

    model: str
    config: Config
    gflops: float
    unpruned: float
    scores: tuple[Scored, ...]
    clips: int
    failures: tuple[tuple[str, str], ...] = ()

    def records(self) -> list[dict[str, Any]]:
        return [{"score": one.name, **asdict(one.fidelity)} for one in self.scores]

    def tables(self) -> Iterator[RenderableType]:
        """The scores, then the settings."""
        yield score_table(self.scores)
        cost = f"{self.gflops:.4g} of {self.unpruned:.4g} GFLOPs"
        less = f"{1 - self.gflops / self.unpruned:.0%} less"
        yield f"{self.config.title}, r={r_of(self.config)}: {cost}, {less}"


def fit(
    videos: Videos | Tensor,
    model: str | nn.Module | VideoModel = "vit-digits",
    *,
    saved: float | None = None,
    r: int | None = None,
    methods: str | Sequence[str] | None = None,
    clips: int = CLIPS,
    seed: int = 0,
    device: str = "auto",
    root: str | None = None,
    timeout: float = 60.0,
    workers: int | None = None,
    progress: ProgressArg = True,
) -> FitResult:
    """Let the model choose how tokens are chosen: the least divergence from what it says unpruned.

    >>> sta.apply(model, sta.fit(clips, model).config)

    STA's scores that suit the model (on Swin with two schedules), and other methods, are compared
    at the same GFLOPs on a few clips; the best third on three times as many; the last two on eight
    more at a time, until one is ahead by twice the standard error. The same clips and seed give the
    same settings.

    Args:
        videos: Files, folders or lists, without labels; "digits"; clips (n, T, H, W, 3) uint8; or
            pixels as the model takes them.
        model: What `sta.load` takes, or a model without a method applied, which is left as it is.
        saved: Share of the unpruned model's GFLOPs to save; default: half.
        r: Instead of `saved`: as much as STA saves with this r.
        methods: To choose from: "sta" with any score, others with their default settings. Default:
            "sta" and those that are `tuned`, such as "ward".
        clips: The most clips to compare on.
        seed: Of the choice and order of the clips.
        device: "cpu", "cuda", "cuda:1" ...; "auto" is where a given model is, or a GPU.
        root: Where a list's paths start.
        timeout: Seconds without a sign of life after which a video is given up.
        workers: Decoding processes.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.

    Raises:
        ValueError: Both saved and r are given, they cannot be met, or no video can be read.
    """
    if saved is not None and r is not None:
        raise ValueError(f"saved={saved:g} and r={r}: give one of them")
    share = SAVED if saved is None else saved
    if not 0 < share < 1:
        raise ValueError(f"saved={share:g}: give a share between 0 and 1, e.g. 0.5 for half")
    if isinstance(methods, str):
        methods = [methods]
    methods = ["sta", *tuned_methods()] if methods is None else methods
    if unknown := sorted(set(methods) - set(METHODS)):
        raise ValueError(f"methods={unknown}: unknown; use some of {', '.join(METHODS)}")
    where = choose_device(device, model)
    source = Source(model, {}, False, where, None)
    opened = source.open()
    schedules: tuple[NamedSchedule, ...] = ("decreasing",)
    if find(opened.model).layout.staged:
        schedules += ("even",)
    costs = [one.costs for one in families(opened.model, opened.clip.shape())[: len(schedules)]]
    unpruned = costs[0].gflops(0) or 0.0
    with reporting(progress, "fitting") as report:
        report("counting GFLOPs")
        if r is not None and (r < 1 or costs[0].gflops(r) is None):
            raise ValueError(f"r={r}: use r from 1 to {costs[0].largest()} on this model")
        most = 1.001 * ((1 - share) * unpruned if r is None else costs[0].gflops(r) or 0.0)
        drops = [(name, cost.within(most)) for name, cost in zip(schedules, costs, strict=True)]
        if not any(drop for _, drop in drops):
            least = min(cost.gflops(cost.largest()) or 0.0 for cost in costs)
            raise ValueError(
                f"saved={share:g}: this model can save {1 - least / unpruned:.2f} at most"
            )
        given: Any = videos
        failures: list[tuple[str, str]] = []
        if isinstance(videos, Tensor) and videos.dtype == torch.uint8:
            given = videos.cpu().numpy()
        if not isinstance(given, Tensor):
            how: dict[str, Any] = {"root": root, "timeout": timeout}
            how["workers"] = workers or default_workers()
            limit = None if isinstance(given, np.ndarray) else clips
            given, failures = load_clips(
                given, opened.clip.views, limit, split="train", seed=seed, progress=report, **how
            )
        given = given[np.random.default_rng(seed).permutation(len(given))[:clips]]
        measure = FidelityMeter(opened, given, device=where)
        scores_of = choices(opened.model) if "sta" in methods else []
        configs: list[Config] = [
            replace(base, r=drop, schedule=schedule)
            for schedule, drop in drops
            if drop
            for base in scores_of
        ]
        names = [name for name in methods if name != "sta"]
        for other in method_families(opened.model, opened.clip.shape(), names):
            if same := other.costs.within(most):
                configs.append(other.make(same))
        if not configs:
            raise ValueError(f"methods={tuple(methods)}: none suits this model at that cost")
        scores = successive_halving(configs, measure, len(given), report)
    config = scores[0].config
    return FitResult(
        source.name,
        config,
        cost_counter(opened.model, opened.clip.shape())(config),
        unpruned,
        tuple(scores),
        len(given),
        tuple(failures),
    )


def successive_halving(
    configs: Sequence[Config],
    measure: FidelityMeter,
    clips: int,
    report: Callable[[str], None] = lambda _: None,
) -> list[Scored]:
    """Settings, most faithful first: few clips for all of them, more for the last two."""
    out: list[Scored] = []
    left, many = list(configs), min(clips, FIRST)
    while True:
        found = compare(left, measure, many, report)
        survivors = found[:1]
        for one in found[1 : max(2, -(-len(found) // SHARE))]:
            best, other = (measure.divergences(o.config, many) for o in (found[0], one))
            behind = other - best
            error = behind.std(ddof=1) / np.sqrt(many) if many > 1 else np.inf
            if many <= FIRST or behind.mean() <= 2 * error:  # a few clips do not tell
                survivors.append(one)
        out = [one for one in found if one not in survivors] + out
        if len(survivors) == 1 or many == clips:
            return survivors + out
        left = [one.config for one in survivors]
        many = min(clips, many + MORE if len(left) == 2 else SHARE * many)
