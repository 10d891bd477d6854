"""The fastest runtime for a model on this machine, by trying all that are installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from sta.measure.timing import interleave
from sta.runtime import RUNTIMES, available, batches
from sta.runtime.batches import ANY_DEVICE, Run

FASTEST = "fastest"
#: What a user may ask for.
CHOICES = (*RUNTIMES, FASTEST)
_ROUNDS = 3


def check_device(runtime: str, device: str) -> None:
    """Refuse a runtime that is unknown, not installed, or cannot run there."""
    if runtime != FASTEST:
        batches.check_device(runtime, device)


class MethodRuns:
    """Makes a model under several methods ready on a runtime, or on the fastest one.

    Args:
        use: Puts the method of a number in place, and gives the model.
        count: How many methods there are.
        runtime: One of `CHOICES`; the fastest is chosen at the first call.
        report: Called with a line about the choice; it goes to stderr without.
    """

    def __init__(
        self,
        use: Callable[[int], nn.Module],
        count: int,
        runtime: str,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.use = use
        self.count = count
        self.runtime = runtime
        self.report = report or partial(print, file=sys.stderr)

    def __call__(self, pixels: Tensor) -> list[Run]:
        """A function per method, for batches like this one."""
        make = partial(batches.prepare_methods, self.use, self.count)
        if self.runtime != FASTEST:
            return make(self.runtime, pixels)
        self.runtime, runs = fastest(make, pixels, self.report)
        return runs


def fastest(
    make: Callable[[str, Tensor], list[Run]], pixels: Tensor, report: Callable[[str], None]
) -> tuple[str, list[Run]]:
    """Time all runtimes that are installed on one batch.

    Args:
        make: From a runtime and a batch to the functions to time.
        pixels: The batch.
        report: Called with what was left out, and with the times.

    Returns:
        The name of the fastest, and what was made on it.
    """
    names = [name for name, missing in available().items() if missing is None]
    if pixels.device.type != "cpu":
        names = [name for name in names if name in ANY_DEVICE]
    made: dict[str, list[Run]] = {}
    for name in names:
        try:
            made[name] = make(name, pixels)
        except Exception as error:  # whatever a compiler may say: there are other runtimes
            report(f"runtime {name} is left out: {str(error).splitlines()[0]}")
    contenders = {name: partial(_run_all, runs, pixels) for name, runs in made.items()}
    device = pixels.device if pixels.device.type == "cuda" else None
    timings = interleave(contenders, rounds=_ROUNDS, warmup=1, device=device)
    best = min(timings, key=lambda name: timings[name].median)
    times = ", ".join(f"{name} {1000 * t.median:.0f} ms" for name, t in timings.items())
    report(f"runtime: {best} is the fastest here ({times} per batch)")
    return best, made[best]


def _run_all(runs: Sequence[Run], pixels: Tensor) -> None:
    for run in runs:
        run(pixels)
