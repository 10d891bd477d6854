"""The frontier as a picture: agreement with the unpruned model against GFLOPs."""

from __future__ import annotations

from pathlib import Path

from sta.explain.style import ACCENT, BEFORE, INK, QUIET, font_family, light_axes, new_figure
from sta.tuning.search import Tuned


def draw(tuned: Tuned, unpruned: float, title: str, path: Path) -> None:
    """Write the picture; the file's ending is its format."""
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
