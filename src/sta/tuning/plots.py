"""What tuning, ablations and comparisons found, as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sta.explain.style import ACCENT, BEFORE, INK, LINE, QUIET, font_family, light_axes, new_figure
from sta.methods import METHODS
from sta.tuning.search import Tuned


def draw_frontier(tuned: Tuned, unpruned: float, title: str, path: Path) -> None:
    """Agreement with the unpruned model against GFLOPs; the file's ending is its format."""
    drawn = new_figure(6.4, 4.0, dpi=150)
    axes = drawn.add_subplot()
    for point in tuned.points:
        low, high = point.fidelity.interval
        share = point.fidelity.agreement
        axes.errorbar(
            point.gflops,
            100 * share,
            yerr=[[100 * (share - low)], [100 * (high - share)]],
            fmt="o",
            ms=3.5,
            lw=0.8,
            color=BEFORE,
        )
    edge = [*((p.gflops, 100 * p.fidelity.agreement) for p in tuned.frontier()), (unpruned, 100.0)]
    axes.plot(*zip(*edge, strict=True), "-", color=ACCENT, lw=1.2)
    chosen = tuned.chosen
    axes.plot(chosen.gflops, 100 * chosen.fidelity.agreement, "o", color=ACCENT, ms=7)
    speed = "" if chosen.speedup is None else f", {chosen.speedup:.2f}x as fast"
    axes.annotate(
        f"{chosen.amount}, {chosen.family}{speed}",
        (chosen.gflops, 100 * chosen.fidelity.agreement),
        xytext=(6, -14),
        textcoords="offset points",
        fontsize=8,
        color=INK,
        family=font_family(),
    )
    axes.plot(unpruned, 100.0, "s", color=QUIET, ms=5)
    axes.set_xlabel("GFLOPs a clip", color=INK, family=font_family())
    axes.set_ylabel("agreement with the unpruned model in %", color=INK, family=font_family())
    axes.set_title(title, color=INK, family=font_family(), fontsize=10, loc="left")
    light_axes(axes)
    drawn.savefig(path)


_COLUMNS = 2


def draw_studies(report: dict[str, Any], path: str | Path) -> None:
    """A panel for each study of an `Ablation`, every variant a point with its interval."""
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
            _study_panel(
                figure.add_subplot(grid[i, j]), study["title"], rows, report["unpruned"]["top1"]
            )
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


def _study_panel(axes: Any, title: str, rows: list[dict[str, Any]], unpruned: float) -> None:
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


Row = dict[str, Any]
Rows = Sequence[Row]
#: Of settings that are no registered method's defaults.
OTHERS = ("#111111", "#d4a017", "#7b3ff2", "#e377c2", "#17becf", "#8c564b", "#bcbd22")


def draw_comparison(rows: Rows, path: str | Path) -> None:
    """Accuracy and divergence over GFLOPs, and accuracy over time."""
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
