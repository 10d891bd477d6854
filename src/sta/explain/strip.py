"""Picture strips: frames from left to right, a row for each pruning step or for GradNorm."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sta.explain import captions
from sta.explain.draw import Frames, heat, whiten
from sta.explain.gradnorm import GradNorm
from sta.explain.inspect import Inspection, MethodResult
from sta.explain.style import ACCENT, COLOUR_MAPS, INK, LINE, QUIET, write

COLUMNS = 8
ROWS = 4  # of one method; ToMe has a step in every block, of which these many are shown
_CELL = 1.0  # inches; all other lengths, too
_GAP, _LABEL, _EDGE = 0.06, 1.5, 0.15
_LINE_HEIGHT = 0.17
_POINTS = 72  # per inch
_PRINT = 216  # dots per inch of a PDF
_NUMBERS = 0.17  # height of the line above the first row


@dataclass(frozen=True)
class Text:
    """A line of text: its left end or its middle, in inches from the top left; size in points."""

    x: float
    y: float
    text: str
    size: float
    colour: str
    bold: bool = False
    centred: bool = False


@dataclass(frozen=True)
class Picture:
    """A picture in a thin frame: its top left corner, width and height in inches."""

    x: float
    y: float
    width: float
    height: float
    pixels: NDArray[np.uint8]  # (H, W, 3)


@dataclass
class Drawing:
    """Texts and pictures on white paper; width and height in inches."""

    width: float
    height: float
    texts: list[Text] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    def render(self, dots: int) -> Any:
        """The drawing as an image of Pillow's, with this many dots per inch."""
        from PIL import Image, ImageDraw

        page = Image.new("RGB", (round(self.width * dots), round(self.height * dots)), "white")
        pen = ImageDraw.Draw(page)
        line = max(1, round(0.6 * dots / _POINTS))
        for picture in self.pictures:
            corner = (round(picture.x * dots), round(picture.y * dots))
            size = (round(picture.width * dots), round(picture.height * dots))
            # Pixels that become large stay squares; else they are averaged.
            large = size[0] >= 3 * picture.pixels.shape[1]
            how = Image.Resampling.NEAREST if large else Image.Resampling.HAMMING
            page.paste(Image.fromarray(picture.pixels).resize(size, how), corner)
            far = (corner[0] + size[0] - 1, corner[1] + size[1] - 1)
            pen.rectangle((*corner, *far), outline=LINE, width=line)
        for text in self.texts:
            where = (text.x * dots, text.y * dots)
            anchor = "mm" if text.centred else "lm"
            size_in_dots = text.size * dots / _POINTS
            write(pen, where, text.text, text.colour, size_in_dots, bold=text.bold, anchor=anchor)
        return page


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
        return self.above + 0.24 + _LINE_HEIGHT * len(self.lines) + 0.05


def strip(inspection: Inspection, columns: int = COLUMNS) -> Drawing:
    """The picture strip as a drawing."""
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


def gradnorm_strip(frames: Frames, found: GradNorm, heading: str, *, scale: int = 1) -> Drawing:
    """The paper's three rows as a drawing: frames, GradNorm, what is kept."""
    norm, (tubelet, *side) = found.norm, found.patch
    groups = range(0, len(frames), tubelet)
    chosen = [groups[i] for i in captions.spread(len(groups), COLUMNS)]
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


def figure(parts: list[Row | Heading], numbers: list[str]) -> Drawing:
    """Rows of pictures and the headings between them; `numbers` stand above the first row."""
    aspect = next(p.pictures.shape[1] / p.pictures.shape[2] for p in parts if isinstance(p, Row))
    cell = _CELL * aspect  # height of a picture
    width = 2 * _EDGE + _LABEL + len(numbers) * (_CELL + _GAP) - _GAP
    height = 2 * _EDGE + _NUMBERS + sum(p.height if isinstance(p, Heading) else cell for p in parts)
    height += _GAP * (len(parts) - 1)
    drawn = Drawing(width, height)
    y, numbered = _EDGE, False
    for part in parts:
        if isinstance(part, Heading):
            top = y + part.above + 0.1
            drawn.texts.append(Text(_EDGE, top, part.title, 10, INK, bold=True))
            for i, line in enumerate(part.lines, 1):
                below = top + 0.04 + _LINE_HEIGHT * i
                drawn.texts.append(Text(_EDGE, below, line, 7.5, QUIET))
            y += part.height + _GAP
            continue
        if not numbered:
            numbered = True
            for i, number in enumerate(numbers):
                x = _EDGE + _LABEL + i * (_CELL + _GAP) + _CELL / 2
                drawn.texts.append(Text(x, y + 0.06, number, 6.5, QUIET, centred=True))
            y += _NUMBERS
        top = y + cell / 2 - 0.09 * len(part.lines)
        drawn.texts.append(Text(_EDGE, top, part.title, 9, ACCENT, bold=True))
        for i, line in enumerate(part.lines, 1):
            drawn.texts.append(Text(_EDGE, top + 0.18 * i, line, 7.5, INK))
        for i, picture in enumerate(part.pictures):
            x = _EDGE + _LABEL + i * (_CELL + _GAP)
            drawn.pictures.append(Picture(x, y, _CELL, cell, picture))
        y += cell + _GAP
    return drawn


def save(drawn: Drawing, path: str | Path, dots: int = 144) -> Path:
    """Write a drawing as .png or .pdf."""
    path = Path(path)
    if path.suffix == ".png":
        write_png(drawn, path, dots)
    else:
        # Without a name and dates, the same picture is the same file.
        drawn.render(_PRINT).save(
            path, "PDF", resolution=_PRINT, quality=90, title=None, creationDate=None, modDate=None
        )
    return path


def write_png(drawn: Drawing, file: Path | BinaryIO, dots: int = 144) -> None:
    """Write a drawing as PNG; a palette of 256 colours is a third of the size and looks alike."""
    from PIL import Image

    small = drawn.render(dots).quantize(
        256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.FLOYDSTEINBERG
    )
    small.save(file, "PNG", optimize=True)
