"""Bilinear resizing as the reference loaders do it: two neighbours per axis, no smoothing.

NumPy alone, so that decoding processes need no torch; the same values as OpenCV's and torch's
bilinear interpolation (without antialiasing), to rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Window = tuple[int, int, int, int]  # top, left, height, width


class Resizer:
    """Resizes pictures of one size (height, width) to another, and computes no more than a window.

    Its buffers are used again for every picture: fresh ones would cost more than the arithmetic.
    """

    def __init__(self, old: tuple[int, int], new: tuple[int, int], window: Window) -> None:
        self.old = old
        self.same = window if old == new else None  # nothing to blend
        top, left, rows, columns = window
        self.above, self.below, down = _neighbours(old[0], new[0], top, rows)
        near, far, across = _neighbours(old[1], new[1], left, columns)
        self.first, self.last = 3 * int(near[0]), 3 * int(far[-1]) + 3
        self.left, self.right = (_channels(place) - self.first for place in (near, far))
        self.down, self.across = down[:, None], np.repeat(across, 3)
        self.bytes = np.empty((rows, self.last - self.first), np.uint8)
        self.tall = np.empty((2, rows, self.last - self.first), np.float32)
        self.wide = np.empty((2, rows, 3 * columns), np.float32)

    def __call__(self, picture: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
        """Resize `picture` ``(H, W, 3)``; `out` ``(rows, columns, 3)`` receives the window."""
        if self.same is not None:
            top, left, height, width = self.same
            out[...] = picture[top : top + height, left : left + width]
            return
        flat = picture.reshape(picture.shape[0], -1)[:, self.first : self.last]
        for rows, buffer in zip((self.above, self.below), self.tall, strict=True):
            np.take(flat, rows, axis=0, out=self.bytes, mode="clip")
            buffer[...] = self.bytes
        tall = _blend(self.tall[0], self.tall[1], self.down)  # (rows, W*3)
        for columns, buffer in zip((self.left, self.right), self.wide, strict=True):
            np.take(tall, columns, axis=1, out=buffer, mode="clip")
        wide = _blend(self.wide[0], self.wide[1], self.across)  # (rows, columns*3)
        wide += np.float32(0.5)  # to the nearest, as the cast cuts off
        np.copyto(out, wide.reshape(out.shape), casting="unsafe")


def _blend(
    one: NDArray[np.float32], other: NDArray[np.float32], weight: NDArray[np.float32]
) -> NDArray[np.float32]:
    """``one + (other - one) * weight``, in place."""
    other -= one
    other *= weight
    one += other
    return one


def _neighbours(
    old: int, new: int, start: int, count: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Of `count` new places from `start`: both old neighbours and the weight of the second."""
    place = (np.arange(start, start + count) + 0.5) * (old / new) - 0.5
    place = place.clip(0, old - 1)
    lower = np.floor(place).astype(np.intp)
    upper = np.minimum(lower + 1, old - 1)
    return lower, upper, (place - lower).astype(np.float32)


def _channels(places: NDArray[np.intp]) -> NDArray[np.intp]:
    return (places[:, None] * 3 + np.arange(3)).ravel()
