"""A model under several methods on one runtime, for batches of any size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import sta.runtime as runtimes
from sta.runtime.sessions import Prepared

#: Puts the method of a number in place, and gives the model.
Use = Callable[[int], nn.Module]


class Runs:
    """A model under several methods on one runtime.

    PyTorch takes batches of any size. The other runtimes' graphs have a static shape: they are made
    for the first batch's size, and anew when a larger one comes; smaller batches are padded. `use`
    puts the method of a number in place, and gives the model; `count` is how many there are. int8
    takes its ranges from `calibration`, pixels of real clips.
    """

    def __init__(
        self,
        use: Use,
        count: int,
        runtime: str = "torch",
        precision: str = "float32",
        calibration: Tensor | None = None,
    ) -> None:
        self.use, self.count = use, count
        self.runtime, self.precision, self.calibration = runtime, precision, calibration
        self.size = 0
        self._ready: list[Prepared] = []

    def make(self, pixels: Tensor) -> None:
        """Get ready for batches as large as this one, if that is not done."""
        if len(pixels) <= self.size or (self._ready and self.runtime == "torch"):
            return
        self.size = len(pixels)
        self._ready = [
            runtimes.prepare(
                self.use(number),
                pixels,
                self.runtime,
                precision=self.precision,
                calibration=self._calibration(),
            )
            for number in range(1 if self.runtime == "torch" else self.count)
        ]

    def __call__(
        self, pixels: Tensor, *, kept: bool = False
    ) -> tuple[list[Tensor], list[float], list[list[Tensor]]]:
        """Logits and seconds of a batch under each method; and kept tokens, none without `kept`."""
        self.make(pixels)
        given, count = self._padded(pixels), len(pixels)
        logits, seconds, stayed = [], [], []
        for number in range(self.count):
            if self.runtime == "torch":
                self.use(number)
            run = self._ready[0 if self.runtime == "torch" else number]
            _wait(given)
            start = time.perf_counter()
            made = run(given)
            _wait(given)
            seconds.append(time.perf_counter() - start)
            logits.append(made[:count])
            if kept:
                stayed.append([step[:count] for step in run.kept()])
        return logits, seconds, stayed

    def _calibration(self) -> Sequence[Tensor]:
        """Batches of the graphs' size; the last is filled up with the first clips."""
        if self.calibration is None:
            return ()
        count = -(-len(self.calibration) // self.size) * self.size
        return self.calibration[torch.arange(count) % len(self.calibration)].split(self.size)

    def _padded(self, pixels: Tensor) -> Tensor:
        missing = self.size - len(pixels)
        if self.runtime == "torch" or missing == 0:
            return pixels
        return torch.cat([pixels, pixels[:1].expand(missing, *pixels.shape[1:])])


def _wait(pixels: Tensor) -> None:
    if pixels.device.type == "cuda":
        torch.cuda.synchronize(pixels.device)
