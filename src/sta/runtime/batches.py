"""A runtime's static shapes behind batches of any size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import sta.runtime as runtimes

#: Runtimes that also run on a GPU.
ANY_DEVICE = ("torch", "compile")

Run = Callable[[Tensor], Tensor]


def check_device(runtime: str, device: str) -> None:
    """Refuse a runtime that is unknown, not installed, or cannot run there."""
    runtimes.check_choice(runtime, "float32")
    if runtime not in ANY_DEVICE and device != "cpu":
        raise ValueError(
            f"runtime {runtime!r} runs on the CPU, not on {device}: use --device cpu, or one of "
            f"{', '.join(ANY_DEVICE)}"
        )


def prepare_methods(
    use: Callable[[int], nn.Module], count: int, runtime: str, pixels: Tensor
) -> list[Run]:
    """One model under several methods, ready on a runtime for batches like this one.

    Args:
        use: Puts the method of a number in place, and gives the model.
        count: How many methods there are.
        runtime: One of `sta.runtime.RUNTIMES`.
        pixels: A batch.
    """
    if runtime != "torch":
        return [runtimes.prepare(use(number), pixels, runtime) for number in range(count)]

    def eager(number: int, clip: Tensor) -> Tensor:
        """The model itself, under the method that is then in place."""
        return runtimes.prepare(use(number), clip)(clip)

    return [partial(eager, number) for number in range(count)]


class StaticRuns:
    """Graphs of one batch size for batches of any size.

    Graphs are made for the first batch's size, and anew when a larger one comes; smaller batches
    are padded, and the result of the padding is for the caller to cut off.

    Args:
        make: Graphs for batches like a given one.
    """

    def __init__(self, make: Callable[[Tensor], list[Run]]) -> None:
        self.make = make
        self.size = 0
        self.runs: list[Run] = []

    def fit(self, pixels: Tensor) -> Tensor:
        """Pixels padded to the size of the graphs, which are made if need be."""
        if len(pixels) > self.size:
            self.size = len(pixels)
            self.runs = self.make(pixels)
        missing = self.size - len(pixels)
        if missing == 0:
            return pixels
        return torch.cat([pixels, pixels[:1].expand(missing, *pixels.shape[1:])])
