"""Small generated videos whose frames carry their own number, readable after any codec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sta.video.encode import write_video

BITS = 9


def numbered(number: int, height: int, width: int) -> NDArray[np.uint8]:
    """A picture with `number` in binary, as black and white bars across its middle third."""
    picture = np.full((height, width, 3), 90, dtype=np.uint8)
    cell = min(height, width) // BITS
    top, left = (height - cell * 3) // 2, (width - cell * BITS) // 2
    for bit in range(BITS):
        value = 235 if number >> bit & 1 else 20
        picture[top : top + cell * 3, left + bit * cell : left + (bit + 1) * cell] = value
    return picture


def number_of(picture: NDArray[np.uint8]) -> int:
    """The number in a square picture made by `numbered`, centre-cropped and resized."""
    size = picture.shape[0]
    middle = picture[size // 2 - 2 : size // 2 + 3].mean(axis=(0, 2))  # (W,)
    cell = size / BITS
    levels = [middle[int((bit + 0.5) * cell)] for bit in range(BITS)]
    return sum((level > 128) << bit for bit, level in enumerate(levels))


def pictures(count: int, height: int = 72, width: int = 96) -> Iterator[NDArray[np.uint8]]:
    return (numbered(number, height, width) for number in range(count))


def make(path: Path, count: int, height: int = 72, width: int = 96, **options: object) -> Path:
    return write_video(path, pictures(count, height, width), **options)  # type: ignore[arg-type]
