"""Picture strips: frames from left to right, a row for each pruning step or for GradNorm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sta.explain import captions
from sta.explain.draw import Frames, heat, whiten
from sta.explain.gradnorm import GradNorm
from sta.explain.inspect import Inspection, MethodResult
from sta.explain.style import ACCENT, COLOUR_MAPS, INK, LINE, QUIET, font_family

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


def strip(inspection: Inspection, columns: int = COLUMNS) -> Any:
    """The picture strip as a matplotlib figure.

    Args:
        inspection: The clip and its methods.
        columns: Frames to show at most, evenly spread.
    """
    step = next((s for m in inspection.methods for s in m.steps), None)
    tubelet = step.patch[0] if step is not None else 1
    groups = range(0, len(inspection.frames), tubelet)
    chosen = [groups[i] for i in captions.spread(len(groups), columns)]
    alone = len(inspection.methods) == 1
    facts = _facts(inspection, inspection.methods[0]) if alone else ()
    heading = Heading(captions.headline(inspection), (*facts, captions.white(inspection)), above=0)
    parts: list[Row | Heading] = [
        heading,
        Row("Input", (captions.first_tokens(inspection),), inspection.frames[chosen]),
    ]
    for method in inspection.methods:
        if not alone:
            parts.append(Heading(method.title, _facts(inspection, method)))
        parts += _rows(inspection, method, chosen)
    return figure(parts, [captions.frame_numbers(number, tubelet) for number in chosen])


def _facts(inspection: Inspection, method: MethodResult) -> tuple[str, ...]:
    return (captions.predictions(inspection, method), captions.cost(inspection, method))


def _rows(inspection: Inspection, method: MethodResult, chosen: list[int]) -> list[Row]:
    rows = []
    for number in captions.spread(len(method.steps), ROWS):
        step = method.steps[number]
        pictures = whiten(inspection.frames, step.kept, inspection.patch(step))[chosen]
        lines = (captions.position(step), captions.kept_per_frame(step))
        rows.append(Row(f"Step {number + 1}", lines, pictures))
    return rows


def gradnorm_strip(
    frames: Frames, found: GradNorm, heading: str, *, scale: int = 1, columns: int = COLUMNS
) -> Any:
    """The paper's three rows as a matplotlib figure: frames, GradNorm, what is kept.

    Args:
        frames: (F, H, W, 3).
        found: GradNorm, and what the methods keep of it.
        heading: Above the rows.
        scale: How many pixels of `frames` a pixel of the model's input is wide.
        columns: Frames to show at most, evenly spread.
    """
    norm, (tubelet, *side) = found.norm, found.patch
    groups = range(0, len(frames), tubelet)
    chosen = [groups[i] for i in captions.spread(len(groups), columns)]
    # A few tokens weigh far more than all others; colours in proportion would hide the rest.
    level = np.sqrt(np.minimum(norm, np.quantile(norm, 0.99))).astype(np.float32)
    patch = (tubelet, side[0] * scale, side[1] * scale)
    painted = heat(frames, level, patch, COLOUR_MAPS["gradnorm"], 0.8)
    parts: list[Row | Heading] = [
        Heading(heading, ("GradNorm: what the answer depends on; bright is much.",), above=0),
        Row("Frames", (), frames[chosen]),
        Row("GradNorm", ("over all blocks",), painted[chosen]),
    ]
    for name, steps in found.kept.items():
        step, share = steps[-1]
        tokens = captions.percent(float(step.kept.mean()))
        lines = (f"{tokens} of the tokens,", f"{captions.percent(share)} of the gradient")
        patch = (step.patch[0], step.patch[1] * scale, step.patch[2] * scale)
        parts.append(Row(name, lines, whiten(frames, step.kept, patch)[chosen]))
    return figure(parts, [captions.frame_numbers(number, tubelet) for number in chosen])


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
        write_png(drawn, path, dots)
    else:
        # Without the date, the same picture is the same file.
        drawn.savefig(path, metadata={"CreationDate": None})
    return path


def write_png(drawn: Any, file: Path | BinaryIO, dots: int = 144) -> None:
    """Write a figure as PNG: a palette of 256 colours is a third of the size and looks the same."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    drawn.set_dpi(dots)
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    small = picture.quantize(
        256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.FLOYDSTEINBERG
    )
    small.save(file, "PNG", optimize=True)
