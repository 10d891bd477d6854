"""Where counts follow the clip: what thresholds cost, and the scores `sta tune` chooses from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sta.backbones.copies import meta_copy, shared_copy
from sta.backbones.hooks import ask_first_step
from sta.backbones.patch import apply, remove
from sta.backbones.zoo.video_model import VideoModel
from sta.measure.flops import gflops
from sta.methods import Config, STAConfig
from sta.methods.base import Site
from sta.tuning.families import Family

LEVELS = 64  # thresholds of a family; each lets that much more of the clips go
BATCH = 8
HIGHEST = 1e30  # above every score: only first frames stay

#: How change is read, and where; it counts times significance unless the score says otherwise.
READINGS: dict[str, dict[str, Any]] = {
    "pixels, input": {"temporal": "pixels"},
    "pixels alone, input": {"temporal": "pixels", "score": "temporal"},
    "place, input": {"temporal": "place"},
    "pixels, block 1": {"temporal": "pixels", "blocks": (1,)},
    "place, block 1": {"temporal": "place", "blocks": (1,)},
}


class ThresholdCurve:
    """What settings whose counts follow the clip cost on given clips, by their threshold.

    Clips come in parts, (n, T, H, W, 3) uint8. `values` are what the threshold is compared with,
    (clips, tokens); infinite for what stays. Refuses settings that the model does not take.
    """

    def __init__(
        self,
        opened: VideoModel,
        base: Config,
        clips: Iterable[NDArray[np.uint8]],
        device: str = "cpu",
    ) -> None:
        skeleton, shape = meta_copy(opened.model), opened.clip.shape()
        apply(skeleton, base)  # what the model refuses says why
        values, self.frames = _values(opened, base, clips, device)
        self.values = values
        places = values.shape[1]
        buckets: Sequence[int] | None = getattr(base, "buckets", None)
        # Lengths that a clip can have, in tokens.
        self._sizes = np.array([min(size, places) for size in buckets or range(places + 1)])
        least = int(np.isinf(values[0]).sum())
        self._cost = _cost(skeleton, shape, base, least, places)

    def gflops(self, threshold: float) -> float:
        """Of a clip, the mean over all."""
        rounded_up = self._sizes[np.searchsorted(self._sizes, self._counts(threshold))]
        return float(self._cost(rounded_up).mean())

    def dropped(self, threshold: float) -> float:
        """Tokens dropped per frame, the mean over all clips."""
        gone = self.values.shape[1] - self._counts(threshold).mean()
        return float(gone / self.frames)

    def nearest(self, target: float) -> float:
        """The threshold whose GFLOPs come closest to a target; the lowest, if several do."""
        levels = np.unique(self.values[np.isfinite(self.values)])
        levels = np.concatenate([[0.0], levels[levels > 0]])

        def within(cost: float) -> int:
            """The lowest threshold, since the cost falls with it."""
            return bisect_left(levels, -cost, key=lambda level: -self.gflops(level))

        high = min(within(target), len(levels) - 1)
        low = within(self.gflops(levels[max(0, high - 1)]))
        ends = [float(f"{levels[end]:.4g}") for end in (low, high)]
        return min(ends, key=lambda level: abs(self.gflops(level) - target))

    def lowest(self) -> float:
        """The GFLOPs of the highest threshold, which keeps as little as can be."""
        return self.gflops(float(self.values[np.isfinite(self.values)].max()))

    def _counts(self, threshold: float) -> NDArray[np.int64]:
        """Tokens that stay; more than the largest bucket holds do not."""
        counts: NDArray[np.int64] = (self.values > threshold).sum(1)
        return np.minimum(counts, self._sizes[-1])


def threshold_families(
    opened: VideoModel, clips: NDArray[np.uint8], device: str = "cpu"
) -> list[Family]:
    """Scores with the thresholds that the clips suggest: level n lets n/64 of what can go, go."""
    stock = gflops(meta_copy(opened.model), opened.clip.shape())
    found = []
    for name, reading in READINGS.items():
        base = STAConfig(budget="auto", threshold=HIGHEST, combine="both", **reading)
        curve = ThresholdCurve(opened, base, [clips], device)
        finite = curve.values[np.isfinite(curve.values)]
        quantiles = np.quantile(finite, np.arange(1, LEVELS + 1) / LEVELS)
        # What did not change scores 0, which rounding makes a little less.
        levels = [max(0.0, float(f"{level:.4g}")) for level in quantiles]
        count = partial(_count, curve, stock)
        found.append(Family(name, partial(_at, base, levels), count, LEVELS // 2))
    return found


def _at(base: STAConfig, levels: Sequence[float], level: int) -> STAConfig:
    """The settings of a level; 0 is the unpruned model."""
    if level > len(levels):
        raise ValueError(f"level {level} lets more go than there is")
    return replace(base, threshold=levels[level - 1]) if level else STAConfig()


def _count(curve: ThresholdCurve, stock: float, config: STAConfig) -> float:
    return stock if config.threshold is None else curve.gflops(config.threshold)


def _cost(
    skeleton: nn.Module, shape: Sequence[int], base: Config, least: int, most: int
) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    """GFLOPs by the number of tokens that stay: a parabola, since attention compares all pairs."""
    sizes = [least, (least + most) // 2, most]
    counts = [
        gflops(apply(skeleton, replace(base, buckets=(size,))), shape)  # type: ignore[call-arg]
        for size in sizes
    ]
    remove(skeleton)
    return np.poly1d(np.polyfit(sizes, counts, 2))


def _values(
    opened: VideoModel, base: Config, clips: Iterable[NDArray[np.uint8]], device: str
) -> tuple[NDArray[np.float32], int]:
    """What the threshold is compared with, (clips, tokens); and frames of tokens."""
    model = apply(shared_copy(opened.model), base)

    def values_at(site: Site) -> Tensor:
        return base.values(site).float().cpu()  # (B, T, N)

    found = [
        ask_first_step(model, opened.pixels(part[start : start + BATCH], device), values_at)
        for part in clips
        for start in range(0, len(part), BATCH)
    ]
    if not found:
        raise ValueError(
            f"{base.title}: none of the videos that its threshold is to be set by can be read"
        )
    values = torch.cat(found)
    return values.flatten(1).numpy(), values.shape[1]
