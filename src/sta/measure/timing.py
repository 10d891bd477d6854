"""Interleaved timing: contenders take turns, so that a slow spell hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def quantile(self, share: float) -> float:
        """Seconds that the given share of the rounds stayed under."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    @property
    def spread(self) -> float:
        """Distance between the quartiles, as a share of the median."""
        return (self.quantile(0.75) - self.quantile(0.25)) / self.median


def interleave(
    contenders: Mapping[Name, Callable[[], object]],
    *,
    rounds: int = 9,
    warmup: int = 2,
    device: torch.device | None = None,
    after_round: Callable[[], object] | None = None,
) -> dict[Name, Timing]:
    """Time each contender once per round, in turn.

    Args:
        contenders: What to run, by name.
        rounds: How often each is timed.
        warmup: Rounds that do not count.
        device: Where they run; None is the CPU. CUDA is timed by its own events.
        after_round: Called after every round, outside of the time taken; to show progress.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in contenders}
    with torch.inference_mode():
        for number in range(warmup + rounds):
            for name, run in contenders.items():
                taken = time_once(run, device)
                if number >= warmup:
                    seconds[name].append(taken)
            if after_round is not None:
                after_round()
    return {name: Timing(tuple(taken)) for name, taken in seconds.items()}


def time_once(run: Callable[[], object], device: torch.device | None = None) -> float:
    """Seconds of one run, to the end of what it set off on the device."""
    if device is None or device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    with torch.cuda.device(device):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        return began.elapsed_time(ended) / 1000  # milliseconds


def speedup(timings: Mapping[Name, Timing], name: Name, baseline: Name) -> float:
    """How many times faster than the baseline: the median over the rounds' own ratios.

    Both ran within moments of each other in a round, so that a slow spell of the machine cancels.
    """
    pairs = zip(timings[baseline].seconds, timings[name].seconds, strict=True)
    return statistics.median(slow / fast for slow, fast in pairs)
