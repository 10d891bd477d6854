"""Interleaved timing: contenders take turns, so that a slow spell hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of one contender, sorted."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the rounds took less."""
        return statistics.median(self.seconds)

    def quantile(self, share: float) -> float:
        """Seconds that the given share of the rounds stayed under."""
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    @property
    def spread(self) -> float:
        """Distance between the quartiles, as a share of the median."""
        return (self.quantile(0.75) - self.quantile(0.25)) / self.median


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 9,
    warmup: int = 2,
    device: torch.device | None = None,
) -> dict[str, Timing]:
    """Time each contender once per round, in turn.

    Args:
        contenders: What to run, by name.
        rounds: How often each is timed.
        warmup: Rounds that do not count.
        device: CUDA device to wait for after each run; None for the CPU.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.inference_mode():
        for number in range(warmup + rounds):
            for name, run in contenders.items():
                start = time.perf_counter()
                run()
                if device is not None and device.type == "cuda":
                    torch.cuda.synchronize(device)
                if number >= warmup:
                    seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(sorted(taken))) for name, taken in seconds.items()}


def speedup(timings: Mapping[str, Timing], name: str, baseline: str) -> float:
    """How many times faster than the baseline, by medians."""
    return timings[baseline].median / timings[name].median
