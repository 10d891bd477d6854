"""The clip with dropped patches whitened, as a film: MP4 or GIF."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sta.explain import captions
from sta.explain.draw import Frames, whiten
from sta.explain.inspect import Inspection, StepResult
from sta.explain.strip import ROWS
from sta.explain.style import ACCENT, INK, LINE, QUIET, font, readable, write
from sta.video.encode import write_video

FPS = 8
_EDGE, _GAP, _HEAD, _FOOT = 16, 10, 34, 52  # pixels
_CODECS = {".mp4": "libx264", ".mkv": "libx264", ".mov": "libx264", ".webm": "libvpx-vp9"}


@dataclass(frozen=True)
class Panel:
    """One of the pictures side by side."""

    title: str
    line: str
    frames: Frames


def panels(inspection: Inspection) -> list[Panel]:
    """The input, and beside it each step; with several methods, each one's last step."""
    out = [Panel("Input", captions.first_tokens(inspection), inspection.frames)]
    if len(inspection.methods) == 1:
        steps = inspection.methods[0].steps
        for number in captions.spread(len(steps), ROWS):
            out.append(_panel(inspection, f"Step {number + 1}", steps[number]))
    else:
        out += [_panel(inspection, m.title, m.steps[-1]) for m in inspection.methods if m.steps]
    return out


def _panel(inspection: Inspection, title: str, step: StepResult) -> Panel:
    line = f"{captions.kept_per_frame(step)}, {captions.position(step)}"
    return Panel(title, line, whiten(inspection.frames, step.kept, inspection.patch(step)))


def film(inspection: Inspection) -> Iterator[NDArray[np.uint8]]:
    """The pictures of the film, (H, W, 3) each, with even sides as H.264 wants them."""
    from PIL import Image, ImageDraw

    shown = panels(inspection)
    height, width = inspection.frames.shape[1:3]
    size = (
        2 * _EDGE + len(shown) * (width + _GAP) - _GAP,
        _EDGE + _HEAD + height + _FOOT,
    )
    page = Image.new("RGB", (size[0] + size[0] % 2, size[1] + size[1] % 2), "white")
    pen = ImageDraw.Draw(page)
    write(pen, (_EDGE, _EDGE), captions.headline(inspection), INK, 16, bold=True)
    corners = []
    for i, panel in enumerate(shown):
        x, y = _EDGE + i * (width + _GAP), _EDGE + _HEAD
        corners.append((x, y))
        pen.rectangle((x - 1, y - 1, x + width, y + height), outline=LINE)
        write(pen, (x, y + height + 8), panel.title, ACCENT, 14, bold=True)
        _fit(pen, (x, y + height + 28), panel.line, width)
    for number in range(len(inspection.frames)):
        for panel, corner in zip(shown, corners, strict=True):
            page.paste(Image.fromarray(panel.frames[number]), corner)
        yield np.asarray(page).copy()


def _fit(pen: Any, corner: tuple[int, int], text: str, width: int) -> None:
    sizes = (13, 12, 11, 10)
    fits = (s for s in sizes if font(s).getlength(readable(text, font(s))) <= width)
    write(pen, corner, text, QUIET, next(fits, 9))


def save(inspection: Inspection, path: str | Path, fps: int = FPS) -> Path:
    """Write the film as .gif, .webp, .mp4, .mkv, .mov or .webm."""
    path = Path(path)
    if path.suffix == ".gif":
        return _save_gif(film(inspection), path, fps)
    if path.suffix == ".webp":
        return _save_webp(film(inspection), path, fps)
    options = {"crf": "18"} if path.suffix != ".webm" else {"crf": "24", "b:v": "0"}
    return write_video(path, film(inspection), codec=_CODECS[path.suffix], fps=fps, options=options)


def _save_gif(pictures: Iterator[NDArray[np.uint8]], path: Path, fps: int) -> Path:
    """One palette for all pictures: still parts do not flicker, and the file is small."""
    from PIL import Image

    frames = [Image.fromarray(picture) for picture in pictures]
    sample = Image.fromarray(np.concatenate([np.asarray(f)[::2, ::2] for f in frames[::4]]))
    palette = sample.quantize(255, method=Image.Quantize.MEDIANCUT)
    colours = np.full((256, 3), 255, dtype=np.uint8)
    found = np.array(palette.getpalette(), dtype=np.uint8).reshape(-1, 3)[:255]
    colours[: len(found)] = np.where(found.min(axis=1, keepdims=True) >= 244, 255, found)
    palette.putpalette(colours.tobytes())  # what is white stays white
    small = [f.quantize(palette=palette, dither=Image.Dither.NONE) for f in frames]
    small[0].save(
        path, save_all=True, append_images=small[1:], duration=1000 // fps, loop=0, optimize=True
    )
    return path


def _save_webp(pictures: Iterator[NDArray[np.uint8]], path: Path, fps: int) -> Path:
    """A fifth of the GIF's size, for pages that show it."""
    from PIL import Image

    first, *rest = (Image.fromarray(picture) for picture in pictures)
    first.save(
        path, save_all=True, append_images=rest, duration=1000 // fps, loop=0, quality=80, method=4
    )
    return path
