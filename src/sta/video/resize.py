"""Bilinear resizing as the reference loaders do it: two neighbours per axis, no smoothing.

NumPy alone, so that decoding processes need no torch; the same values as OpenCV's and torch's
bilinear interpolation (without antialiasing), to rounding.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Window = tuple[int, int, int, int]  # top, left, height, width


@lru_cache(maxsize=256)
def _axis(
    old: int, new: int, start: int, count: int, repeat: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Lower and upper neighbour and the upper's weight, for `count` new places from `start`.

    `repeat` interleaved channels are indexed as if they were columns of their own.
    """
    place = (np.arange(start, start + count) + 0.5) * (old / new) - 0.5
    place = place.clip(0, old - 1)
    lower = np.floor(place).astype(np.intp)
    upper = np.minimum(lower + 1, old - 1)
    weight = (place - lower).astype(np.float32)
    channel = np.arange(repeat)
    return (
        (lower[:, None] * repeat + channel).ravel(),
        (upper[:, None] * repeat + channel).ravel(),
        np.repeat(weight, repeat),
    )


def resize(image: NDArray[np.uint8], height: int, width: int, window: Window) -> NDArray[np.uint8]:
    """The `window` of `image` ``(H, W, 3)`` resized to `height` x `width`.

    Only the window's pixels are computed; the result has the window's height and width.
    """
    top, left, rows, columns = window
    y0, y1, fy = _axis(image.shape[0], height, top, rows, 1)
    x0, x1, fx = _axis(image.shape[1], width, left, columns, 3)
    flat = image.reshape(image.shape[0], -1)  # (H, W*3)
    above = flat[y0].astype(np.float32)
    below = flat[y1].astype(np.float32)
    below -= above
    below *= fy[:, None]
    above += below  # (rows, W*3)
    out = np.take(above, x0, axis=1)
    right = np.take(above, x1, axis=1)
    right -= out
    right *= fx
    out += right
    out += 0.5
    return out.astype(np.uint8).reshape(rows, columns, 3)
