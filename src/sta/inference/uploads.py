"""On a GPU, the next batch of clips is uploaded while the model works on the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T")
#: Waits for an upload, on the GPU, and gives its pixels.
Arrival = Callable[[], Tensor]


def upload_ahead(
    batches: Iterable[tuple[T, NDArray[np.uint8] | None]], model: Callable[[Any], object]
) -> Iterator[tuple[T, NDArray[np.uint8] | Tensor | None]]:
    """Batches with what belongs to them; clips become pixels where the model uploads them.

    There, the upload of each batch has begun before the one before it is given out. Everywhere
    else nothing is held back.

    Args:
        batches: Clips ``(B, T, H, W, 3)``, or None.
        model: What is going to run them; its `upload`, if it has any, gives an `Arrival`.
    """
    upload: Callable[[NDArray[np.uint8]], Arrival] | None = getattr(model, "upload", None)
    if upload is None:
        yield from batches
        return
    waiting: list[tuple[T, Arrival | None]] = []  # a batch, and what came after it without clips
    for about, clips in batches:
        if clips is None and not waiting:
            yield about, None
            continue
        arrival = None if clips is None else upload(clips)
        if arrival is not None:
            yield from map(_arrived, waiting)
            waiting = []
        waiting.append((about, arrival))
    yield from map(_arrived, waiting)


def _arrived(one: tuple[T, Arrival | None]) -> tuple[T, Tensor | None]:
    about, arrival = one
    return about, None if arrival is None else arrival()


class Uploads:
    """Uploads beside what a GPU is doing, in a stream of their own.

    Args:
        pixels: Makes pixels of clips, on the device.
        device: The GPU.
    """

    def __init__(self, pixels: Callable[[NDArray[np.uint8]], Tensor], device: str) -> None:
        self.pixels, self.device = pixels, device
        self.stream = torch.cuda.Stream(device)

    def __call__(self, clips: NDArray[np.uint8]) -> Arrival:
        """Begin to upload clips."""
        with torch.cuda.stream(self.stream):
            pixels = self.pixels(clips)
            done = self.stream.record_event()

        def arrival() -> Tensor:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(done)  # not for the stream, where the next upload may be under way
            pixels.record_stream(current)  # its memory is not used again before that is done
            return pixels

        return arrival
