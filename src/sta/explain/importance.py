"""The paper's three rows: frames, GradNorm, what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from sta.explain import words
from sta.explain.draw import Frames, Patch, heat, whiten
from sta.explain.report import Importance
from sta.explain.strip import COLUMNS, Heading, Row, figure
from sta.explain.style import COLOUR_MAPS


def importance(
    frames: Frames, found: Importance, title: str, *, scale: int = 1, columns: int = COLUMNS
) -> Any:
    """The figure.

    Args:
        frames: (F, H, W, 3).
        found: GradNorm, and what the methods keep of it.
        title: Above the rows.
        scale: How many pixels of `frames` a pixel of the model's input is wide.
        columns: Frames to show at most, evenly spread.
    """
    norm, patch = found.norm, found.patch
    starts = range(0, len(frames), patch[0])
    chosen = [starts[i] for i in words.spread(len(starts), columns)]
    # A few tokens weigh far more than all others; colours in proportion would hide the rest.
    level = np.sqrt(np.minimum(norm, np.quantile(norm, 0.99))).astype(np.float32)
    glow = heat(frames, level, _scaled(patch, scale), COLOUR_MAPS["gradnorm"], 0.8)
    parts: list[Row | Heading] = [
        Heading(title, ("GradNorm: what the answer depends on; bright is much.",), above=0),
        Row("Frames", (), frames[chosen]),
        Row("GradNorm", ("over all blocks",), glow[chosen]),
    ]
    for name, steps in found.kept.items():
        step, mass = steps[-1]
        share = words.percent(float(step.kept.mean()))
        text = (f"{share} of the tokens,", f"{words.percent(mass)} of the gradient")
        drawn = whiten(frames, step.kept, _scaled(step.patch, scale))[chosen]
        parts.append(Row(name, text, drawn))
    return figure(parts, [words.frame_numbers(number, patch[0]) for number in chosen])


def _scaled(patch: Patch, scale: int) -> Patch:
    return patch[0], patch[1] * scale, patch[2] * scale
