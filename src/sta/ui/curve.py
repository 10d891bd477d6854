"""Accuracy against compute, drawn from what `sta eval --json` wrote."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sta.backbones.zoo import embedded
from sta.explain.style import BEFORE, INK, QUIET, font_family, light_axes, new_figure
from sta.methods import METHODS

Rows = Sequence[dict[str, Any]]


def read_curve(path: str | Path) -> Rows:
    """The rows of a file that `sta eval --json` wrote."""
    path = Path(path)
    try:
        rows = json.loads(path.read_text())
        _ = [
            (row["method"], int(row["r"]), float(row["gflops"]), float(row["top1"])) for row in rows
        ]
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file; write it with sta eval --json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: not a table of sta eval --json (rows with method, r, gflops, top1)"
        ) from error
    return list(rows)


def embedded_curve(model: str) -> Rows:
    """The curve that ships with an embedded model; empty if there is none."""
    path = embedded.FOLDER / f"{model}.curve.json"
    return read_curve(path) if path.is_file() else []


def draw_curve(rows: Rows, gflops: float, title: str) -> str:
    """The curve as a PNG in a data URL, with a line at the current setting."""
    drawn = new_figure(6.4, 3.2, dpi=150)
    axes = drawn.add_subplot()
    dense = [row for row in rows if not row["r"]]
    for method in dict.fromkeys(row["method"] for row in rows if row["r"]):
        points = sorted(
            (row["gflops"], row["top1"])
            for row in [*dense[:1], *(r for r in rows if r["method"] == method and r["r"])]
        )
        x, y = zip(*points, strict=True)
        known = METHODS.get(method)
        colour, label = (known.colour, known.title) if known else (BEFORE, method)
        axes.plot(x, [100 * v for v in y], "o-", color=colour, ms=4, label=label)
    axes.axvline(gflops, color=QUIET, lw=1, ls=":")
    axes.annotate(
        title,
        (gflops, 0.02),
        xycoords=("data", "axes fraction"),
        rotation=90,
        fontsize=7,
        color=QUIET,
        ha="right",
        family=font_family(),
    )
    axes.set_xlabel("GFLOPs a clip", color=INK, family=font_family())
    axes.set_ylabel("accuracy in %", color=INK, family=font_family())
    light_axes(axes)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    file = io.BytesIO()
    drawn.savefig(file, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
