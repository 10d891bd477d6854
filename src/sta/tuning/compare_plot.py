"""A comparison as a picture: accuracy over GFLOPs, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sta.explain.style import ACCENT, INK, LINE, font_family
from sta.methods import METHODS
from sta.runtime.extras import require

Rows = Sequence[dict[str, Any]]
#: Of settings that are no registered method's defaults.
OTHERS = ("#e08e45", "#7a5230", "#1b7f79", "#b0568f", "#444444")


def draw(rows: Rows, path: str | Path) -> None:
    """Write the picture; the file's ending is its format.

    Args:
        rows: Of `CompareResult`.
        path: Where to.
    """
    require("matplotlib", "a picture of the results", "plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pairs = list(dict.fromkeys((row["model"], row["data"]) for row in rows))
    timed = any(row["speedup"] is not None for row in rows if row["saved"] is not None)
    figure = Figure(
        figsize=(3.6 * (1 + timed) + 1.6, 2.9 * len(pairs)), dpi=130, layout="constrained"
    )
    grid = figure.subplots(len(pairs), 1 + timed, squeeze=False, sharey="row")
    for (model, data), axes in zip(pairs, grid, strict=True):
        own = [row for row in rows if (row["model"], row["data"]) == (model, data)]
        _panel(axes[0], own, lambda row, all=own[0]: 100 * row["gflops"] / all["gflops"])
        axes[0].set_xlabel("GFLOPs, % of the unpruned model's", color=INK, fontsize=8)
        axes[0].set_ylabel("accuracy in %", color=INK, fontsize=8)
        title = f"{Path(model).name} on {Path(data).stem}, {own[0]['clips']:,} clips"
        axes[0].set_title(title, fontsize=9, loc="left", color=INK, family=font_family())
        if timed:
            _panel(axes[1], own, lambda row: 100 / row["speedup"])
            axes[1].set_xlabel("time, % of the unpruned model's", color=INK, fontsize=8)
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles, frameon=False, fontsize=7, loc="outside right upper")
    FigureCanvasAgg(figure)
    figure.savefig(path)


def _panel(axes: Any, rows: Rows, cost: Any) -> None:
    """One curve per method; seeds of random dropping are one, with a line from worst to best."""
    unpruned = rows[0]
    names = dict.fromkeys(row["method"].partition(", seed")[0] for row in rows[1:])
    others = iter(OTHERS * 9)
    for name in names:
        colour = (
            ACCENT if name == "sta" else METHODS[name].colour if name in METHODS else next(others)
        )
        own = [row for row in rows[1:] if row["method"].partition(", seed")[0] == name]
        points = []
        for saved in dict.fromkeys(row["saved"] for row in own):
            level = [row for row in own if row["saved"] == saved]
            top = [100 * row["top1"] for row in level]
            points.append((sum(map(cost, level)) / len(level), sum(top) / len(top), top))
        points.sort(key=lambda point: point[0])
        x = [*(point[0] for point in points), 100.0]
        y = [*(point[1] for point in points), 100 * unpruned["top1"]]
        axes.plot(x, y, "o-", ms=3.5, lw=1.1, color=colour, label=name)
        for at, _, top in points:
            if len(top) > 1:
                axes.plot([at, at], [min(top), max(top)], lw=3, alpha=0.4, color=colour)
    axes.axhline(100 * unpruned["top1"], color=LINE, lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, lw=0.5)
    axes.tick_params(labelsize=8)
