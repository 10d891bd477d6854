"""One style for every picture: fonts, ink, the colours of methods and of heat maps."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

INK = "#1b1f24"  # text
QUIET = "#6b7280"  # what explains the rest
LINE = "#d5d9de"  # borders of frames
ACCENT = "#3b528b"  # viridis' blue: the method that is asked about
BEFORE = "#a8b0ba"  # the unpruned model

#: Colour map of each heat map: dark is little, bright is much.
COLOUR_MAPS = {
    "semantic": "viridis",
    "accumulation": "magma",
    "score": "inferno",
    "gradnorm": "magma",
}

# The first of these that the machine has; matplotlib brings the last one itself.
_FAMILIES = ("Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans")


@cache
def font_family() -> str:
    """The font of all pictures on this machine."""
    from matplotlib import font_manager

    have = set(font_manager.get_font_names())
    return next(family for family in _FAMILIES if family in have or family == _FAMILIES[-1])


@cache
def font(size: int, bold: bool = False) -> Any:
    """The same font for Pillow."""
    from matplotlib import font_manager
    from PIL import ImageFont

    wanted = font_manager.FontProperties(font_family(), weight="bold" if bold else "normal")
    return ImageFont.truetype(font_manager.findfont(wanted), size)


@cache
def colour_table(name: str) -> NDArray[np.uint8]:
    """A colour map as 256 RGB colours, (256, 3)."""
    import matplotlib

    steps = matplotlib.colormaps[name](np.arange(256))[:, :3]
    return np.round(steps * 255).astype(np.uint8)
