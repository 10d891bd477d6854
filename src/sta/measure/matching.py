"""The r for a cost: in GFLOPs, counted on the meta device, or in time, as measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import nn

from sta.backbones.copies import meta_copy
from sta.backbones.patch import apply
from sta.backbones.zoo.video_model import VideoModel
from sta.measure.flops import gflops
from sta.methods import Config, STAConfig, make_config, r_of

Method = tuple[str, int]  # name and r
#: What the model as it is goes by where no method with r = 0 stands for it.
UNPRUNED: Method = ("unpruned", 0)


def cost_counter(model: nn.Module, input_shape: Sequence[int]) -> Callable[[Config], float]:
    """Counts GFLOPs of settings, on a copy of the model without weights, which stays as it is."""
    skeleton = meta_copy(model)
    return lambda config: gflops(apply(skeleton, config), input_shape)


class CostCurve:
    """GFLOPs as a function of r, which they fall with; each r is counted once.

    `count` gives GFLOPs at r, or a ValueError where so many tokens cannot be dropped; searches
    begin at `start`.
    """

    def __init__(self, count: Callable[[int], float], start: int = 1) -> None:
        self._count = count
        self._start = max(1, start)
        self._known: dict[int, float | None] = {}

    def gflops(self, r: int) -> float | None:
        """GFLOPs at r; None where so many tokens cannot be dropped."""
        if r not in self._known:
            try:
                self._known[r] = self._count(r)
            except ValueError:
                self._known[r] = None
        return self._known[r]

    def within(self, target: float) -> int | None:
        """The smallest r whose GFLOPs are not above a target; None if there is none."""
        _, high = self._around(target)
        return None if self.gflops(high) is None else high

    def nearest(self, target: float) -> int:
        costs = {r: cost for r in self._around(target) if (cost := self.gflops(r)) is not None}
        return min(costs, key=lambda r: abs(costs[r] - target))

    def largest(self) -> int:
        return self._around(0.0)[0]

    def _around(self, target: float) -> tuple[int, int]:
        """r above and within the target's cost, one apart; both 0 if nothing need be dropped."""
        unpruned = self.gflops(0)
        if unpruned is not None and unpruned <= target:
            return 0, 0
        low, high = 0, self._start
        while not self._enough(high, target):
            low, high = high, 2 * high
        while high - low > 1:
            middle = self._guess(low, high, target)
            low, high = (low, middle) if self._enough(middle, target) else (middle, high)
        return low, high

    def _enough(self, r: int, target: float) -> bool:
        cost = self.gflops(r)
        return cost is None or cost <= target

    def _guess(self, low: int, high: int, target: float) -> int:
        """Between the two, where the cost would meet the target if it fell evenly."""
        above, below = self.gflops(low), self.gflops(high)
        if above is None or below is None or above == below:
            return (low + high) // 2
        guess = low + round((above - target) / (above - below) * (high - low))
        # Not too near the ends: the cost is no straight line.
        margin = max(1, (high - low) // 8)
        return max(low + margin, min(high - margin, guess))


class TimeCurve:
    """Measured times of a method, shares of the unpruned model's, as a function of GFLOPs."""

    def __init__(self, unpruned: float) -> None:
        self.unpruned = unpruned  # GFLOPs
        self._measured: dict[float, list[float]] = {}

    def add(self, gflops: float, speedup: float) -> None:
        """Note a measurement."""
        self._measured.setdefault(gflops, []).append(1 / speedup)

    def share(self, gflops: float) -> float:
        """The mean of what was measured there."""
        return float(np.mean(self._measured[gflops]))

    def gflops_at(self, share: float) -> float:
        """GFLOPs at which the method should take a share of the unpruned model's time.

        Between measurements time is taken to rise evenly, below them as on average above; where it
        does not rise, the most GFLOPs, since more dropping would be for nothing.
        """
        known = {gflops: min(self.share(gflops), 1.0) for gflops in self._measured}
        costs, times = np.array(sorted((known | {self.unpruned: 1.0}).items())).T
        times = np.minimum.accumulate(times[::-1])[::-1]  # whatever falls is noise
        if share >= times[0]:
            above = int(np.searchsorted(times, share, side="right"))  # the last of equal times
            return float(np.interp(share, times[above - 1 :], costs[above - 1 :]))
        slope = (1 - times[0]) / max(costs[-1] - costs[0], 1e-9)
        return max(0.0, float(costs[0] - (times[0] - share) / slope)) if slope > 0 else 0.0


def match_gflops(
    model: nn.Module | Callable[[], nn.Module],
    input_shape: Sequence[int],
    target_gflops: float,
    method: str | Callable[[int], Config],
) -> Config:
    """The settings of a method whose GFLOPs come closest to a target.

    Takes no weights and about a dozen counts. The method's r is a whole number: `sta.gflops` of the
    result says how close it came.

    Args:
        model: The model, which is left as it is, or a function that builds it.
        input_shape: Of a clip, as `sta.gflops` takes it.
        target_gflops: What to come close to, e.g. the GFLOPs of the model with STA.
        method: Its name, e.g. "tome", or a function from r to a config; GFLOPs must fall with r.

    Returns:
        The config. r is 0 where the target is the unpruned model's cost or more, and the largest
        that fits the model where the method cannot get as low as the target.

    Raises:
        ValueError: The method cannot be applied to this model at all.
    """
    make = partial(make_config, method) if isinstance(method, str) else method
    count = cost_counter(model if isinstance(model, nn.Module) else model(), input_shape)
    count(make(0))  # a method that the model refuses altogether says why
    if make(1) == make(0):  # it has no r, as dense has none
        return make(0)
    return make(CostCurve(lambda r: count(make(r))).nearest(target_gflops))


def refusals(opened: VideoModel, names: Sequence[str]) -> dict[str, str]:
    """Methods that a model does not take at any r, and why."""
    skeleton = meta_copy(opened.model)
    found: dict[str, str] = {}
    for name in names:
        try:
            apply(skeleton, make_config(name, 0))
        except ValueError as error:
            found[name] = str(error)
    return found


def methods_at(names: Sequence[str], r: Sequence[int]) -> dict[Method, Config | None]:
    """Every method at every r; without tokens dropped they are one and the same, listed once."""
    found: dict[Method, Config | None] = {}
    if 0 in r and (dropping := [name for name in names if make_config(name, 0).drops]):
        found[dropping[0], 0] = None
    for name in names:
        for config in (make_config(name, count) for count in r):
            if r_of(config) or not config.drops:
                found[name, r_of(config)] = config
    return found


def matched(
    opened: VideoModel, names: Sequence[str], r: Sequence[int]
) -> dict[Method, Config | None]:
    """The same, but every other method gets the r whose GFLOPs come closest to STA's at each r."""
    fixed = [name for name in names if not make_config(name, 0).drops]
    found = methods_at([STAConfig.method, *fixed], r)
    shape = opened.clip.shape()
    cost = cost_counter(opened.model, shape)
    targets = [cost(STAConfig(r=count)) for count in r if count]
    for name in names:
        for target in targets if name not in (STAConfig.method, *fixed) else ():
            config = match_gflops(opened.model, shape, target, name)
            found[name, r_of(config)] = config
    return found
