"""The search for settings that meet a target, with as few measurements as will do.

GFLOPs are free, time costs a little, fidelity most. So GFLOPs bracket r, a few measured times
show how time follows GFLOPs on this machine, and only candidates that meet the target are compared
with the unpruned model: all of them on a part of the videos, the best on all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sta.measure.stats import wilson_low
from sta.methods import Config, r_of
from sta.tuning.families import Family
from sta.tuning.fidelity import Fidelity

#: Configs to how many times faster than the unpruned model each is, measured in turn with it.
Clock = Callable[[Sequence[Config]], list[float]]

COST_SHARES = (0.75, 0.55, 0.35)  # of the unpruned model's GFLOPs: where time is measured first
FINALISTS = 3
SPEEDUP_TOLERANCE = 0.03  # by which a measured speed-up may miss the target before r is corrected
AIM = 1.01  # a little more than asked for: half of all measurements fall below what is aimed at
CORRECTIONS = 3


@dataclass(frozen=True)
class Point:
    """Settings and what was measured of them."""

    family: str  # schedule and blocks of the steps
    config: Config
    gflops: float
    fidelity: Fidelity
    speedup: float | None = None

    @property
    def amount(self) -> str:
        """What says how many tokens are dropped: r, or the threshold."""
        limit = getattr(self.config, "threshold", None)
        return f"r={r_of(self.config)}" if limit is None else f"threshold={limit:.3g}"


@dataclass(frozen=True)
class Tuned:
    """The settings to use, and all points that were measured on the way."""

    chosen: Point
    points: tuple[Point, ...]

    def frontier(self) -> list[Point]:
        """Points that no other beats in both GFLOPs and divergence, cheapest first.

        Only those that were compared on all videos.
        """
        best = math.inf
        out = []
        videos = max(point.fidelity.clips for point in self.points)
        for point in sorted(self.points, key=lambda p: (p.gflops, p.fidelity.kl)):
            if point.fidelity.clips == videos and point.fidelity.kl < best:
                best = point.fidelity.kl
                out.append(point)
        return out


class TargetError(ValueError):
    """No settings meet the target; the message says what is the best that can be reached."""


@dataclass
class Tuner:
    """Finds settings for one model on one machine."""

    families: Sequence[Family]  # what to choose from; the default schedule and blocks first
    # Compares settings with the unpruned model: `measure(config, videos, allowed)`.
    measure: Callable[..., Fidelity]
    videos: int  # how many it has
    clock: Clock  # measures speed-ups
    report: Callable[[str], None] = lambda _: None  # called with what is being done
    views: int = 1  # clips of each video
    _points: dict[Config, Point] = field(default_factory=dict, init=False, repr=False)

    # The three targets

    def for_gflops(self, target: float) -> Tuned:
        """The most faithful settings that cost no more than the target."""
        if target >= self._unpruned:
            raise TargetError(
                f"gflops={target:g} is met without pruning: the model has {self._unpruned:.4g}"
            )
        self.report("counting GFLOPs of the candidates")
        finalists = self._most_faithful(self._within(target))
        if not finalists:
            least = min(f.costs.gflops(f.costs.largest()) or math.inf for f in self.families)
            raise TargetError(
                f"gflops={target:g} cannot be reached: the lowest that leaves a token in every "
                f"frame is {least:.4g} of the model's {self._unpruned:.4g}"
            )
        self._time([*finalists, *self._timing_points()])
        return self._tuned(finalists[0][1])

    def for_speedup(self, target: float) -> Tuned:
        """The most faithful settings that are as many times faster than the unpruned model."""
        if not target > 1:
            raise TargetError(f"speedup={target:g} must be above 1, the unpruned model's own")
        timed = self._timing_points()
        self._time(timed)
        constant, slope = self._fit(timed)
        enough = (1 / (AIM * target) - constant) / slope  # GFLOPs
        self.report("counting GFLOPs of the candidates")
        finalists = self._most_faithful(self._within(enough) or self._largest())
        fast = self._corrected(finalists, target, slope)
        if not fast:
            raise TargetError(self._too_slow(target))
        best = min(fast, key=lambda pair: self._rank(pair[1]))
        return self._tuned(self._verified(best, target, slope))

    def for_agreement(self, target: float) -> Tuned:
        """The fastest settings that agree with the unpruned model on at least this share of videos.

        On all videos like these, with 95 % confidence: the lower bound of the agreement counts.
        """
        if not 0 < target < 1:
            raise TargetError(f"agreement={target:g} must be a share between 0 and 1, e.g. 0.99")
        if wilson_low(self.videos, self.videos) < target:
            needed = videos_needed(target)
            raise TargetError(
                f"agreement={target:g} cannot be shown with {self.videos} videos: if all agree, "
                f"they guarantee {wilson_low(self.videos, self.videos):.3f}; give at least "
                f"{needed} videos and fidelity_clips={needed * self.views}, or a lower target"
            )
        allowed = max(
            n for n in range(self.videos) if wilson_low(self.videos - n, self.videos) >= target
        )
        self.report("counting GFLOPs of the candidates")
        middle = [self._within(share * self._unpruned) for share in COST_SHARES]
        finalists = self._most_faithful(next((m for m in reversed(middle) if m), []))
        found = [
            (family, config)
            for family, _ in finalists
            if (config := self._furthest(family, allowed)) is not None
        ]
        if not found:
            smallest = self._compare(self.families[0], self.families[0].make(1))
            raise TargetError(
                f"agreement={target:g} cannot be reached: {smallest.amount} already "
                f"agrees on {smallest.fidelity.agree} of {smallest.fidelity.clips} videos only, "
                f"which guarantees {smallest.fidelity.low:.3f}"
            )
        self._time([*found, *self._timing_points()])
        return self._tuned(max((c for _, c in found), key=lambda c: self._points[c].speedup or 0))

    # Steps of the search

    @property
    def _unpruned(self) -> float:
        found = self.families[0].costs.gflops(0)
        assert found is not None
        return found

    def _within(self, gflops: float) -> list[tuple[Family, Config]]:
        """Each family's smallest r within this cost, where it has any."""
        pairs = [(family, family.costs.within(gflops)) for family in self.families]
        return [(family, family.make(r)) for family, r in pairs if r]

    def _largest(self) -> list[tuple[Family, Config]]:
        return [
            (family, family.make(r)) for family in self.families if (r := family.costs.largest())
        ]

    def _timing_points(self) -> list[tuple[Family, Config]]:
        """The default family at a few costs."""
        default = self.families[0]
        costs = default.costs
        drops = [costs.within(share * self._unpruned) or costs.largest() for share in COST_SHARES]
        return [(default, default.make(r)) for r in dict.fromkeys(drops)]

    def _most_faithful(
        self, candidates: Sequence[tuple[Family, Config]]
    ) -> list[tuple[Family, Config]]:
        """The best few on all videos, best first; a quarter of them decides which these are."""
        part = part_of(self.videos)
        if len(candidates) > FINALISTS:
            for number, (family, config) in enumerate(candidates, start=1):
                self.report(f"candidate {number} of {len(candidates)} on {part} videos")
                self._compare(family, config, part)
            candidates = sorted(candidates, key=lambda c: self._rank(c[1]))[:FINALISTS]
        for number, (family, config) in enumerate(candidates, start=1):
            self.report(f"finalist {number} of {len(candidates)} on {self.videos} videos")
            self._compare(family, config)
        return sorted(candidates, key=lambda c: self._rank(c[1]))

    def _rank(self, config: Config) -> tuple[float, int]:
        fidelity = self._points[config].fidelity
        return fidelity.kl, -fidelity.agree

    def _compare(self, family: Family, config: Config, *how: Any) -> Point:
        """Compare settings with the unpruned model, and keep the result."""
        cost = family.gflops(config)
        fidelity = self.measure(config, *how)
        known = self._points.get(config)
        speedup = known.speedup if known else None
        self._points[config] = Point(family.name, config, cost, fidelity, speedup)
        return self._points[config]

    def _time(self, candidates: Sequence[tuple[Family, Config]]) -> None:
        """Measure speed-ups in turn, and the fidelity where it is not known."""
        for number, (family, config) in enumerate(candidates, start=1):
            if config not in self._points:
                self.report(f"settings {number} of {len(candidates)} on {self.videos} videos")
                self._compare(family, config)
        self.report(f"timing {len(candidates)} candidates in turn with the unpruned model")
        configs = list(dict.fromkeys(config for _, config in candidates))
        for config, speedup in zip(configs, self.clock(configs), strict=True):
            self._points[config] = replace(self._points[config], speedup=speedup)

    def _fit(self, timed: Sequence[tuple[Family, Config]]) -> tuple[float, float]:
        """How time follows GFLOPs: constant and slope, as shares of the unpruned model's time."""
        points = [self._points[config] for _, config in timed]
        cost = [self._unpruned, *(p.gflops for p in points)]
        time = [1.0, *(1 / (p.speedup or 1.0) for p in points)]
        slope, constant = np.polyfit(cost, time, 1)
        if not slope > 0:
            raise TargetError(
                "speedup: pruning does not make this model faster on this machine; speed-ups "
                + ", ".join(f"{p.speedup:.2f} at {p.gflops:.4g} GFLOPs" for p in points)
            )
        return float(constant), float(slope)

    def _corrected(
        self, candidates: list[tuple[Family, Config]], target: float, slope: float
    ) -> list[tuple[Family, Config]]:
        """The candidates with r changed until they are as fast as they should be, and no faster."""
        todo, done = list(candidates), []
        for _ in range(CORRECTIONS):
            self._time(todo)
            again = []
            for family, config in todo:
                other = self._better_r(family, config, target, slope)
                if other is None or other == config:
                    done.append((family, config))
                else:
                    again.append((family, other))
            todo = again
            if not todo:
                break
        else:
            self._time(todo)
            done += todo
        return [(f, c) for f, c in done if self._speed(c) >= target * (1 - SPEEDUP_TOLERANCE)]

    def _better_r(
        self, family: Family, config: Config, target: float, slope: float
    ) -> Config | None:
        """Settings that should meet the target more closely; None where these do."""
        speed = self._speed(config)
        if abs(speed / (AIM * target) - 1) <= SPEEDUP_TOLERANCE:
            return None
        gflops = self._points[config].gflops + (1 / (AIM * target) - 1 / speed) / slope
        r = family.costs.within(gflops)
        if r is None and speed < target:
            r = family.costs.largest()
        return family.make(r) if r else None

    def _verified(self, best: tuple[Family, Config], target: float, slope: float) -> Config:
        """The chosen settings, measured afresh; r is corrected where they miss the target."""
        family, config = best
        for _ in range(CORRECTIONS):
            self.report("measuring the chosen settings once more")
            self._time([(family, config)])
            other = self._better_r(family, config, target, slope)
            if self._speed(config) >= target * (1 - SPEEDUP_TOLERANCE) or other in (None, config):
                break
            assert other is not None
            config = other
        else:  # these were not measured yet
            self._time([(family, config)])
        if self._speed(config) < target * (1 - SPEEDUP_TOLERANCE):
            raise TargetError(self._too_slow(target))
        return config

    def _speed(self, config: Config) -> float:
        return self._points[config].speedup or 0.0

    def _too_slow(self, target: float) -> str:
        best = max(self._points.values(), key=lambda p: p.speedup or 0.0)
        return (
            f"speedup={target:g} cannot be reached on this machine: the best was "
            f"{best.speedup:.2f}, with {best.amount} ({best.family}), "
            f"{best.gflops:.4g} of {self._unpruned:.4g} GFLOPs"
        )

    def _furthest(self, family: Family, allowed: int) -> Config | None:
        """The largest r that disagrees on no more videos than allowed; None if none does."""
        low, high = 0, family.costs.largest() + 1
        step = max(1, high // 64)
        while high - low > step:
            r = (low + high) // 2
            self.report(f"{family.name}: r={r} on up to {self.videos} videos")
            fidelity = self._compare(family, family.make(r), None, allowed).fidelity
            missed = fidelity.clips - fidelity.agree
            low, high = (r, high) if missed <= allowed else (low, r)
        return family.make(low) if low else None

    def _tuned(self, chosen: Config) -> Tuned:
        return Tuned(self._points[chosen], tuple(self._points.values()))


def part_of(videos: int) -> int:
    """How many of the videos many candidates are compared on, before a few are on all."""
    return max(min(16, videos), videos // 4)


def videos_needed(agreement: float) -> int:
    """How many videos guarantee this agreement, if all of them agree."""
    n = 1
    while wilson_low(n, n) < agreement:
        n += 1
    return n
