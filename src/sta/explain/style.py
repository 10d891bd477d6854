"""One style for every picture: fonts, ink, the colours of methods and of heat maps."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

# The first of these that the machine has.
_FILES = {
    False: ("Inter-Regular.ttf", "Arial.ttf", "LiberationSans-Regular.ttf", "DejaVuSans.ttf"),
    True: ("Inter-Bold.ttf", "Arial Bold.ttf", "LiberationSans-Bold.ttf", "DejaVuSans-Bold.ttf"),
}
_FAMILIES = ("Inter", "Arial", "Liberation Sans", "DejaVu Sans")  # matplotlib brings the last one
# What Pillow's own font has no letters for.
_PLAIN = str.maketrans({"\N{RIGHTWARDS ARROW}": "->", "\N{EN DASH}": "-", "\N{MINUS SIGN}": "-"})
# viridis, magma and inferno as 256 RGB colours each; see NOTICE.
_COLOURS = Path(__file__).with_name("colour_maps.npz")


@cache
def font_family() -> str:
    """The font of matplotlib's figures on this machine."""
    from matplotlib import font_manager

    have = set(font_manager.get_font_names())
    return next(family for family in _FAMILIES if family in have or family == _FAMILIES[-1])


def new_figure(width: float, height: float, dpi: float = 110) -> Figure:
    """An empty figure of matplotlib's, in inches."""
    from sta.runtime.extras import require

    require("matplotlib", "a picture of the results", "plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, facecolor="white", layout="constrained")


def light_axes(axes: Any, lines: Literal["both", "x"] = "both") -> None:
    """Axes without a frame at the top and right, with thin lines across."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=lines, color=LINE, lw=0.6)


@cache
def font(size: float, bold: bool = False) -> Any:
    """The font of pictures that Pillow draws; its own where the machine has none of ours."""
    from PIL import ImageFont

    for name in _FILES[bold]:
        with suppress(OSError):
            return ImageFont.truetype(name, size)
    return ImageFont.load_default(size)


def write(
    pen: Any,
    corner: tuple[float, float],
    text: str,
    colour: str,
    size: float,
    *,
    bold: bool = False,
    anchor: str = "la",
) -> None:
    """Write a line with Pillow's `ImageDraw.Draw`; `anchor` of the text is at `corner`."""
    letters = font(size, bold)
    pen.text(corner, readable(text, letters), colour, letters, anchor=anchor)


def readable(text: str, letters: Any) -> str:
    """The text in letters that a font has."""
    return text if isinstance(letters.path, str) else text.translate(_PLAIN)


@cache
def colour_table(name: str) -> NDArray[np.uint8]:
    """A colour map as 256 RGB colours, (256, 3)."""
    with np.load(_COLOURS) as file:
        return np.asarray(file[name], dtype=np.uint8)
