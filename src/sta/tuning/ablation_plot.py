"""A picture of the studies: a panel each, every variant a point with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sta.explain.style import ACCENT, BEFORE, INK, QUIET, font_family, light_axes, new_figure

_COLUMNS = 2


def draw(report: dict[str, Any], path: str | Path) -> None:
    """Draw a report of `sta.tuning.ablation.Ablation` into a picture file."""
    shown = [(s, rows) for s in report["studies"] if (rows := _rows(s))]
    if not shown:
        raise ValueError(f"{path}: nothing was measured, so there is nothing to draw")
    columns = min(_COLUMNS, len(shown))
    lines = [shown[i : i + columns] for i in range(0, len(shown), columns)]
    heights = [max(len(rows) for _, rows in line) + 2.0 for line in lines]
    figure = new_figure(4.6 * columns, 0.24 * sum(heights) + 0.6)
    grid = figure.add_gridspec(len(lines), columns, height_ratios=heights)
    for i, line in enumerate(lines):
        for j, (study, rows) in enumerate(line):
            _panel(figure.add_subplot(grid[i, j]), study["title"], rows, report["unpruned"]["top1"])
    drops = report["default"]["r"]
    figure.suptitle(
        f"{report['model']}, r={drops}, {report['clips']:,} clips of {report['data']}: accuracy in "
        f"%, 95 % intervals of the difference to the default; dashed: unpruned",
        fontsize=9,
        color=INK,
        family=font_family(),
    )
    figure.savefig(path)


def _rows(study: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in study["rows"] if row["refused"] is None and row["top1"] is not None]


def _panel(axes: Any, title: str, rows: list[dict[str, Any]], unpruned: float) -> None:
    axes.axvline(100 * unpruned, color=BEFORE, lw=1, ls="--")
    default = next((row["top1"] for row in rows if row["default"]), None)
    for place, row in enumerate(rows):
        colour = ACCENT if row["default"] else QUIET
        if not row["default"]:
            axes.plot(_interval(row, default), [place, place], color=colour, lw=1.2)
        axes.plot(100 * row["top1"], place, "o", color=colour, ms=5 if row["default"] else 4)
    axes.set_yticks(range(len(rows)), [row["variant"] for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(title, fontsize=8, loc="left", color=INK, family=font_family())
    light_axes(axes, "x")


def _interval(row: dict[str, Any], default: float | None) -> list[float]:
    """Ends in percent: of the difference to the default, which is what the panel is about.

    It is much narrower than the accuracy's own, which stands in where there is no default.
    """
    if default is None:
        return [100 * row["top1_low"], 100 * row["top1_high"]]
    return [100 * (default + row["difference_low"]), 100 * (default + row["difference_high"])]
