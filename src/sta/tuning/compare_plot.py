"""A comparison as a picture: accuracy and divergence over GFLOPs, and accuracy over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sta.explain.style import INK, LINE, font_family, light_axes, new_figure
from sta.methods import METHODS

Row = dict[str, Any]
Rows = Sequence[Row]
#: Of settings that are no registered method's defaults.
OTHERS = ("#c0392b", "#111111", "#1b7f79", "#d4a017", "#7b3ff2")


def draw(rows: Rows, path: str | Path) -> None:
    """Write the picture; the file's ending is its format."""
    pairs = list(dict.fromkeys((row["model"], row["data"]) for row in rows))
    timed = any(row["speedup"] is not None for row in rows if row["saved"] is not None)
    panels = 2 + timed
    names = dict.fromkeys(_name(row) for row in rows if row["saved"] is not None)
    others = iter(OTHERS * len(names))
    colours = {n: METHODS[n].colour if n in METHODS else next(others) for n in names}
    figure = new_figure(3.3 * panels + 1.6, 2.9 * len(pairs))
    grid = figure.subplots(len(pairs), panels, squeeze=False)
    for (model, data), axes in zip(pairs, grid, strict=True):
        own = [row for row in rows if (row["model"], row["data"]) == (model, data)]

        def gflops(row: Row, whole: Row = own[0]) -> float:
            return float(100 * row["gflops"] / whole["gflops"])

        _panel(axes[0], own, colours, gflops)
        _panel(axes[1], own, colours, gflops, "kl")
        for panel, name in zip(axes, ("accuracy in %", "KL from the unpruned model"), strict=False):
            panel.set_xlabel("GFLOPs, % of the unpruned model's", color=INK, fontsize=8)
            panel.set_ylabel(name, color=INK, fontsize=8)
        title = f"{Path(model).name} on {Path(data).stem}, {own[0]['clips']:,} clips"
        axes[0].set_title(title, fontsize=9, loc="left", color=INK, family=font_family())
        if timed and any(row["speedup"] is None for row in own):
            axes[2].set_axis_off()  # of this model, time was not measured
        elif timed:
            _panel(axes[2], own, colours, lambda row: 100 / row["speedup"])
            axes[2].set_xlabel("time, % of the unpruned model's", color=INK, fontsize=8)
            axes[2].set_ylabel("accuracy in %", color=INK, fontsize=8)
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles, frameon=False, fontsize=7, loc="outside right upper")
    figure.savefig(path)


def _name(row: Row) -> str:
    """Of a method, without a seed."""
    return str(row["method"].partition(", seed")[0])


def _panel(
    axes: Any,
    rows: Rows,
    colours: dict[str, str],
    cost: Callable[[Row], float],
    value: str = "top1",
) -> None:
    """One curve per method; seeds of random dropping are one, with a line from worst to best."""
    unpruned = rows[0]
    times = 100 if value == "top1" else 1
    for name in dict.fromkeys(map(_name, rows[1:])):
        colour = colours[name]
        own = [row for row in rows[1:] if _name(row) == name]
        points = []
        for saved in dict.fromkeys(row["saved"] for row in own):
            level = [row for row in own if row["saved"] == saved]
            seen = [times * row[value] for row in level]
            points.append((sum(map(cost, level)) / len(level), sum(seen) / len(seen), seen))
        points.sort(key=lambda point: point[0])
        x, y = [point[0] for point in points], [point[1] for point in points]
        if value == "top1":
            x, y = [*x, 100.0], [*y, 100 * unpruned["top1"]]
        axes.plot(x, y, "o-", ms=3.5, lw=1.1, color=colour, label=name)
        for at, _, seen in points:
            if len(seen) > 1:
                axes.plot([at, at], [min(seen), max(seen)], lw=3, alpha=0.4, color=colour)
    if value == "top1":
        axes.axhline(100 * unpruned["top1"], color=LINE, lw=0.8)
    elif all(row[value] > 0 for row in rows[1:]):
        axes.set_yscale("log")
    light_axes(axes)
    axes.tick_params(labelsize=8)
