"""The picture strip: frames from left to right, a row for each pruning step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sta.explain import words
from sta.explain.draw import Frames, whiten
from sta.explain.look import ClipLook, MethodLook
from sta.explain.style import ACCENT, INK, LINE, QUIET, font_family

COLUMNS = 8
ROWS = 4  # of one method; ToMe has a step in every block, of which these many are shown
_CELL = 1.0  # inches; all other lengths, too
_GAP, _LABEL, _EDGE = 0.06, 1.5, 0.15
_LINE_HEIGHT = 0.17
_NUMBERS = 0.17  # height of the line above the first row


@dataclass(frozen=True)
class Row:
    """A row of pictures with what is written to its left."""

    title: str
    lines: tuple[str, ...]
    pictures: Frames  # (columns, H, W, 3)


@dataclass(frozen=True)
class Heading:
    """A title and some lines above rows."""

    title: str
    lines: tuple[str, ...] = ()
    above: float = 0.2  # room left above it

    @property
    def height(self) -> float:
        """In inches."""
        return self.above + 0.24 + _LINE_HEIGHT * len(self.lines) + 0.05


def strip(look: ClipLook, columns: int = COLUMNS) -> Any:
    """The picture strip as a matplotlib figure.

    Args:
        look: The clip and its methods.
        columns: Frames to show at most, evenly spread.
    """
    step = next((s for m in look.methods for s in m.steps), None)
    tubelet = step.patch[0] if step is not None else 1
    groups = range(0, len(look.frames), tubelet)
    chosen = [groups[i] for i in words.spread(len(groups), columns)]
    alone = len(look.methods) == 1
    facts = _facts(look, look.methods[0]) if alone else ()
    heading = Heading(words.headline(look), (*facts, words.note(look)), above=0)
    parts: list[Row | Heading] = [
        heading,
        Row("Input", (words.first_tokens(look),), look.frames[chosen]),
    ]
    for method in look.methods:
        if not alone:
            parts.append(Heading(method.title, _facts(look, method)))
        parts += _rows(look, method, chosen)
    return figure(parts, [words.frame_numbers(number, tubelet) for number in chosen])


def _facts(look: ClipLook, method: MethodLook) -> tuple[str, ...]:
    return (words.verdict(look, method), words.cost(look, method))


def _rows(look: ClipLook, method: MethodLook, chosen: list[int]) -> list[Row]:
    rows = []
    for number in words.spread(len(method.steps), ROWS):
        step = method.steps[number]
        pictures = whiten(look.frames, step.kept, look.patch(step))[chosen]
        lines = (words.place(step), words.kept_per_frame(step))
        rows.append(Row(f"Step {number + 1}", lines, pictures))
    return rows


def figure(parts: list[Row | Heading], numbers: list[str]) -> Any:
    """Rows of pictures and the headings between them.

    Args:
        parts: From top to bottom.
        numbers: What is written above the columns of the first row.
    """
    from matplotlib.figure import Figure

    aspect = next(p.pictures.shape[1] / p.pictures.shape[2] for p in parts if isinstance(p, Row))
    cell = _CELL * aspect  # height of a picture
    width = 2 * _EDGE + _LABEL + len(numbers) * (_CELL + _GAP) - _GAP
    height = 2 * _EDGE + _NUMBERS + sum(p.height if isinstance(p, Heading) else cell for p in parts)
    height += _GAP * (len(parts) - 1)
    drawn = Figure(figsize=(width, height), facecolor="white")
    pen = _Pen(drawn, width, height)
    y, numbered = _EDGE, False
    for part in parts:
        if isinstance(part, Heading):
            top = y + part.above + 0.1
            pen.write(_EDGE, top, part.title, 10, INK, weight="bold")
            for i, line in enumerate(part.lines, 1):
                pen.write(_EDGE, top + 0.04 + _LINE_HEIGHT * i, line, 7.5, QUIET)
            y += part.height + _GAP
            continue
        if not numbered:
            numbered = True
            for i, number in enumerate(numbers):
                x = _EDGE + _LABEL + i * (_CELL + _GAP) + _CELL / 2
                pen.write(x, y + 0.06, number, 6.5, QUIET, ha="center")
            y += _NUMBERS
        top = y + cell / 2 - 0.09 * len(part.lines)
        pen.write(_EDGE, top, part.title, 9, ACCENT, weight="bold")
        for i, line in enumerate(part.lines, 1):
            pen.write(_EDGE, top + 0.18 * i, line, 7.5, INK)
        for i, picture in enumerate(part.pictures):
            pen.picture(_EDGE + _LABEL + i * (_CELL + _GAP), y, cell, picture)
        y += cell + _GAP
    return drawn


class _Pen:
    """Writes and draws at inches from the top left."""

    def __init__(self, drawn: Any, width: float, height: float) -> None:
        self.drawn, self.width, self.height = drawn, width, height

    def write(self, x: float, y: float, text: str, size: float, color: str, **more: Any) -> None:
        self.drawn.text(
            x / self.width,
            1 - y / self.height,
            text,
            fontsize=size,
            color=color,
            va="center",
            family=font_family(),
            **more,
        )

    def picture(self, x: float, y: float, cell: float, picture: NDArray[np.uint8]) -> None:
        box = (x / self.width, 1 - (y + cell) / self.height, _CELL / self.width, cell / self.height)
        axes = self.drawn.add_axes(box)
        axes.imshow(picture, interpolation="antialiased", aspect="auto")
        axes.set(xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set(color=LINE, linewidth=0.6)


def save(drawn: Any, path: str | Path, dots: int = 144) -> Path:
    """Write a figure as .png or .pdf.

    Args:
        drawn: The figure.
        path: Where to.
        dots: Per inch; a frame is an inch wide.
    """
    path = Path(path)
    if path.suffix == ".png":
        _save_png(drawn, path, dots)
    else:
        # Without the date, the same picture is the same file.
        drawn.savefig(path, metadata={"CreationDate": None})
    return path


def _save_png(drawn: Any, path: Path, dots: int) -> None:
    """A palette of 256 colours is a third of the size, and nobody sees the difference."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    drawn.set_dpi(dots)
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    small = picture.quantize(
        256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.FLOYDSTEINBERG
    )
    small.save(path, optimize=True)
