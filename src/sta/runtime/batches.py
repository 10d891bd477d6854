"""A runtime's static shapes behind batches of any size, and the choice of the fastest runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sta.runtime.extras import RUNTIMES, available

FASTEST = "fastest"
#: What a user may ask for.
CHOICES = (*RUNTIMES, FASTEST)
_ROUNDS = 3
#: Those that leave the CPU.
_ANYWHERE = ("torch", "compile")

Run = Callable[[Tensor], Tensor]


def check_device(runtime: str, device: str) -> None:
    """Refuse a runtime that is unknown, not installed, or cannot run there."""
    from sta.runtime import check_choice

    if runtime == FASTEST:
        return
    check_choice(runtime, "float32")
    if runtime not in _ANYWHERE and device != "cpu":
        raise ValueError(
            f"runtime {runtime!r} runs on the CPU, not on {device}: use --device cpu, or one of "
            f"{', '.join(_ANYWHERE)}"
        )


class StaticRuns:
    """One model under several methods on a runtime, for batches of any size.

    Graphs are made for the first batch's size, and anew when a larger one comes; smaller batches
    are filled up, and what is not theirs is cut off the result.

    Args:
        use: Puts the method of a number in place, and gives the model.
        count: How many methods there are.
        runtime: One of `CHOICES`.
        say: Told which runtime is the fastest.
    """

    def __init__(
        self,
        use: Callable[[int], nn.Module],
        count: int,
        runtime: str,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.use = use
        self.count = count
        self.runtime = runtime
        self.say = say or partial(print, file=sys.stderr)
        self.size = 0
        self.runs: list[Run] = []

    def fit(self, pixels: Tensor) -> Tensor:
        """Pixels filled up to the size of the graphs, which are made if need be."""
        if len(pixels) > self.size:
            self.size = len(pixels)
            if self.runtime == FASTEST:
                self._choose(pixels)
            else:
                self.runs = self._prepare(self.runtime, pixels)
        missing = self.size - len(pixels)
        if missing == 0:
            return pixels
        return torch.cat([pixels, pixels[:1].expand(missing, *pixels.shape[1:])])

    def _prepare(self, runtime: str, pixels: Tensor) -> list[Run]:
        from sta.runtime import prepare

        if runtime == "torch":  # the model itself, under the method that is then in place
            return [partial(self._eager, number) for number in range(self.count)]
        return [prepare(self.use(number), pixels, runtime) for number in range(self.count)]

    def _eager(self, number: int, pixels: Tensor) -> Tensor:
        from sta.runtime import prepare

        return prepare(self.use(number), pixels)(pixels)

    def _choose(self, pixels: Tensor) -> None:
        """Time all runtimes that there are on this batch, and stay with the fastest."""
        from sta.measure.timing import interleave

        names = [name for name, why in available().items() if why is None]
        if pixels.device.type != "cpu":
            names = [name for name in names if name in _ANYWHERE]
        made: dict[str, list[Run]] = {}
        for name in names:
            try:
                made[name] = self._prepare(name, pixels)
            except Exception as error:  # whatever a compiler may say: there are other runtimes
                self.say(f"runtime {name} is left out: {str(error).splitlines()[0]}")
        contenders = {name: partial(_all, runs, pixels) for name, runs in made.items()}
        device = pixels.device if pixels.device.type == "cuda" else None
        timings = interleave(contenders, rounds=_ROUNDS, warmup=1, device=device)
        self.runtime = min(timings, key=lambda name: timings[name].median)
        self.runs = made[self.runtime]
        times = ", ".join(f"{name} {1000 * t.median:.0f} ms" for name, t in timings.items())
        self.say(f"runtime: {self.runtime} is the fastest here ({times} per batch)")


def _all(runs: Sequence[Run], pixels: Tensor) -> None:
    for run in runs:
        run(pixels)
