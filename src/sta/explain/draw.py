"""Drawing as pure functions: frames and what is known of their tokens in, frames out.

A token at position (i, j) of a frame's grid stands for the pixels `[i * h, (i + 1) * h)` down and
`[j * w, (j + 1) * w)` across, cut off at the picture's edge, where `(t, h, w)` is its patch; it
stands for `t` frames in a row. That covers backbones that pad a picture up to whole patches (Swin)
as well as those that leave the rest out (ViT): pixels beyond the grid belong to no token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sta.explain.style import colour_table

Frames = NDArray[np.uint8]  # (F, H, W, 3), RGB
Mask = NDArray[np.bool_]  # (T, h, w)
Map = NDArray[np.float32]  # (T, h, w); NaN where there is no token
Patch = tuple[int, int, int]  # frames, height and width in pixels

WHITE = 255


def to_pixels(
    cells: NDArray[np.generic], patch: Patch, shape: tuple[int, int, int]
) -> tuple[NDArray[np.generic], NDArray[np.bool_]]:
    """What the cell of each pixel holds, (F, H, W), and which pixels have a cell at all.

    Cells are (T, h, w), each covering a patch of a clip of this shape, (F, H, W).
    """
    inside = np.ones(shape, dtype=bool)
    index = []
    for axis, (size, step, count) in enumerate(zip(shape, patch, cells.shape, strict=True)):
        cell = np.arange(size) // step
        view = [1, 1, 1]
        view[axis] = size
        inside &= (cell < count).reshape(view)
        index.append(np.minimum(cell, count - 1))
    return cells[np.ix_(*index)], inside


def whiten(frames: Frames, kept: Mask, patch: Patch) -> Frames:
    """The frames with every dropped patch white and every other pixel as it was.

    Args:
        frames: (F, H, W, 3).
        kept: Which tokens are kept, (T, h, w).
        patch: Frames, height and width of the pixels behind one token.
    """
    stays, inside = to_pixels(kept, patch, frames.shape[:3])
    dropped = inside & ~stays.astype(bool)
    return np.where(dropped[..., None], np.uint8(WHITE), frames)


def colour(values: Map, name: str, low: float, high: float) -> NDArray[np.uint8]:
    """Values as colours of a map, (..., 3); those that are no number are light grey."""
    span = high - low if high > low else 1.0
    level = np.clip((np.nan_to_num(values) - low) / span, 0.0, 1.0)
    picture = colour_table(name)[np.round(level * 255).astype(np.intp)]
    picture[np.isnan(values)] = 238
    return picture


def limits(values: Map) -> tuple[float, float]:
    """Where the colours of a map start and end: its smallest and largest number."""
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)


def heat(frames: Frames, values: Map, patch: Patch, name: str, opacity: float = 1.0) -> Frames:
    """The frames under a heat map of their tokens.

    Args:
        frames: (F, H, W, 3).
        values: (T, h, w); one range of colours serves all frames, so that they can be compared.
        patch: Frames, height and width of the pixels behind one token.
        name: A colour map, as `COLOUR_MAPS` has them.
        opacity: Of the heat map; the frames' grey shines through below 1.
    """
    painted = colour(values, name, *limits(values))  # (T, h, w, 3)
    over, inside = to_pixels(np.arange(values.size).reshape(values.shape), patch, frames.shape[:3])
    picture = painted.reshape(-1, 3)[over.astype(np.intp)].astype(np.float32)
    grey = frames.mean(axis=-1, keepdims=True).astype(np.float32)
    mixed = opacity * picture + (1 - opacity) * grey
    return np.where(inside[..., None], np.round(mixed).astype(np.uint8), frames)


def enlarge(frames: Frames, times: int) -> Frames:
    """Every pixel as a square of `times` by `times`."""
    return frames.repeat(times, axis=1).repeat(times, axis=2)
