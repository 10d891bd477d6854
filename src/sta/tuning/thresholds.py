"""What `sta tune` chooses from where counts follow the clip: scores with any threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sta.backbones.copies import meta_copy, shared_copy
from sta.backbones.hooks import StepHook, hooks_in
from sta.backbones.patch import apply, remove
from sta.backbones.zoo.video_model import VideoModel
from sta.measure.flops import gflops
from sta.methods import STAConfig
from sta.methods.base import Site
from sta.methods.scoring import scores_above
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


def threshold_families(
    opened: VideoModel, clips: NDArray[np.uint8], device: str = "cpu"
) -> list[Family]:
    """Scores with the thresholds that the clips suggest: level n lets n/64 of what can go, go.

    Raises:
        ValueError: The model cannot keep a different number of every clip.
    """
    skeleton, shape = meta_copy(opened.model), opened.clip.shape()
    stock = gflops(skeleton, shape)
    found = []
    for name, reading in READINGS.items():
        base = STAConfig(budget="auto", threshold=HIGHEST, combine="both", **reading)
        apply(skeleton, base)  # what the model refuses says why
        values, first = _values(opened, base, clips, device)
        cost = _cost(skeleton, shape, base, first, first + values.shape[1])
        quantiles = np.quantile(values, np.arange(1, LEVELS + 1) / LEVELS)
        levels = [float(f"{level:.4g}") for level in quantiles]
        count = partial(_mean, values, first, cost, stock)
        found.append(Family(name, partial(_at, base, levels), count, LEVELS // 2))
    return found


def _at(base: STAConfig, levels: Sequence[float], level: int) -> STAConfig:
    """The settings of a level; 0 is the unpruned model."""
    if level > len(levels):
        raise ValueError(f"level {level} lets more go than there is")
    return replace(base, threshold=levels[level - 1]) if level else STAConfig()


def _mean(
    values: NDArray[np.float32],
    first: int,
    cost: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    stock: float,
    config: STAConfig,
) -> float:
    """GFLOPs of a clip, the mean over all; `first` tokens of each always stay."""
    if config.threshold is None:
        return stock
    return float(cost(first + (values > config.threshold).sum(1)).mean())


def _cost(
    skeleton: nn.Module, shape: Sequence[int], base: STAConfig, least: int, most: int
) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    """GFLOPs by the number of tokens that stay: a parabola, since attention compares all pairs."""
    sizes = [least, (least + most) // 2, most]
    counts = [gflops(apply(skeleton, replace(base, buckets=(size,))), shape) for size in sizes]
    remove(skeleton)
    return np.poly1d(np.polyfit(sizes, counts, 2))


@torch.no_grad()
def _values(
    opened: VideoModel, base: STAConfig, clips: NDArray[np.uint8], device: str
) -> tuple[NDArray[np.float32], int]:
    """What the threshold is compared with, (clips, tokens); and how many tokens always stay."""
    model, found = apply(shared_copy(opened.model), base), []
    (step,) = hooks_in(model, StepHook)

    def observe(site: Site) -> None:
        found.append(-scores_above(base, site).score[:, 1:])  # (B, T - 1, N)

    step.observe = observe
    for start in range(0, len(clips), BATCH):
        model(opened.pixels(clips[start : start + BATCH], device))
    values = torch.cat(found).float().cpu()
    return values.flatten(1).numpy(), values.shape[2]
