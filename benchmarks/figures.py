"""The paper's two summary figures: its published numbers beside what was measured here.

    python benchmarks/figures.py            # writes docs/results/cost.png and docs/results/by-r.png

The published numbers are those of the zoo (`sta models`) and of the paper's throughput figure
(V100, batch 32). The measured ones are the curves that ship with the embedded models, which
`sta eval digits --method sta random ... --json` wrote; see benchmarks/results.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sta.backbones.zoo import embedded
from sta.backbones.zoo.entries import PAPER
from sta.explain.style import ACCENT, BEFORE, INK, LINE, QUIET, font_family
from sta.methods import METHODS
from sta.ui.curve import embedded_curve

#: Clips per second on a V100 at batch 32, by r, as published.
V100_R = (0, 16, 32, 48, 64, 80, 96)
V100 = {
    "S": (115, 141, 166, 203, 235, 315, 382),
    "B": (53, 66, 78, 96, 116, 146, 181),
    "L": (19, 25, 30, 38, 47, 63, 83),
    "H": (12, 15, 18, 23, 29, 39, 52),
}
SHADES = {"S": "#9fb3d9", "B": "#6f8cc0", "L": "#3b528b", "H": "#1f2d57", "T": "#9fb3d9"}


def panel(axes: Any, title: str, across: str, up: str) -> None:
    axes.set_title(title, fontsize=9, loc="left", color=INK, family=font_family())
    axes.set_xlabel(across, fontsize=8, color=INK, family=font_family())
    axes.set_ylabel(up, fontsize=8, color=INK, family=font_family())
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, lw=0.6)
    axes.set_axisbelow(True)


def save(drawn: Figure, path: Path) -> None:
    FigureCanvasAgg(drawn)
    drawn.savefig(path, metadata={"Software": None})
    print(f"wrote {path}")


def published_bubbles(axes: Any, family: str, title: str) -> None:
    """Accuracy over cost; a bubble's area is in proportion to GFLOPs within the family."""
    models = [m for m in PAPER if m.family == family and m.data_set == "k400"]
    largest = max(m.gflops[0] for m in models)
    for model in models:
        for r, top1 in model.top1.items():
            cost = model.gflops[r]
            colour = BEFORE if r == 0 else ACCENT
            area = 700 * cost / largest
            axes.scatter(cost, top1, s=area, color=colour, alpha=0.75, lw=0)
        axes.plot(
            [model.gflops[r] for r in model.top1], list(model.top1.values()), color=QUIET, lw=0.8
        )
        axes.annotate(
            model.size,
            (model.gflops[0], model.top1[0]),
            xytext=(0, -18),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    axes.set_xscale("log")
    axes.margins(0.18)
    ticks = [m.gflops[0] for m in models]
    axes.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)
    panel(axes, title, "GFLOPs of one view", "top-1 accuracy in %")


def measured_bubbles(axes: Any) -> None:
    marks = {"vit-digits": "o", "swin-digits": "D"}
    for name in embedded.names():
        rows = embedded_curve(name)
        dense = next(row["gflops"] for row in rows if not row["r"])
        for method, colour in (("random", "#e08e45"), ("sta", ACCENT)):
            chosen = sorted(
                (
                    (r["gflops"], 100 * r["top1"], r["r"])
                    for r in rows
                    if r["method"] == method or not r["r"]
                ),
                reverse=True,
            )
            axes.plot([c[0] for c in chosen], [c[1] for c in chosen], color=colour, lw=0.8)
            for cost, top1, r in chosen:
                axes.scatter(
                    cost,
                    top1,
                    s=110 * cost / dense,
                    color=colour if r else BEFORE,
                    marker=marks.get(name, "o"),
                    alpha=0.8,
                    lw=0,
                )
    for name, mark in marks.items():
        axes.scatter([], [], color=QUIET, marker=mark, s=25, label=name)
    for title, colour in (("unpruned", BEFORE), ("STA", ACCENT), ("random dropping", "#e08e45")):
        axes.scatter([], [], color=colour, s=25, label=title)
    axes.legend(frameon=False, fontsize=7, loc="lower right")
    panel(axes, "Measured here: digit actions", "GFLOPs of one clip", "accuracy in %")


def cost(path: Path) -> None:
    drawn = Figure(figsize=(11, 3.6), dpi=110, facecolor="white", layout="constrained")
    left, middle, right = drawn.subplots(1, 3)
    published_bubbles(left, "vit", "Published: VideoMAE ViT, Kinetics-400")
    published_bubbles(middle, "swin", "Published: Video Swin, Kinetics-400")
    measured_bubbles(right)
    save(drawn, path)


def by_r(path: Path) -> None:
    drawn = Figure(figsize=(11, 3.6), dpi=110, facecolor="white", layout="constrained")
    left, middle, right = drawn.subplots(1, 3)
    for size, clips in V100.items():
        speed = [c / clips[0] for c in clips]
        left.plot(V100_R, speed, "o-", ms=3.5, color=SHADES[size], label=f"ViT-{size}")
    left.legend(frameon=False, fontsize=7)
    panel(left, "Published: throughput, V100, batch 32", "r", "times the unpruned model")
    rows = embedded_curve("vit-digits")
    dense = next(row for row in rows if not row["r"])
    for method in ("random", "sta"):
        chosen = sorted(
            (row for row in rows if row["method"] == method and row["r"]), key=lambda row: row["r"]
        )
        chosen = [dense, *chosen]
        rs = [row["r"] for row in chosen]
        colour = METHODS[method].colour
        title = METHODS[method].title
        middle.plot(
            rs,
            [r["clips_per_s"] / dense["clips_per_s"] for r in chosen],
            "o-",
            ms=3.5,
            color=colour,
        )
        right.plot(rs, [100 * r["top1"] for r in chosen], "o-", ms=3.5, color=colour, label=title)
        right.fill_between(
            rs,
            [100 * r["top1_low"] for r in chosen],
            [100 * r["top1_high"] for r in chosen],
            color=colour,
            alpha=0.15,
            lw=0,
        )
    panel(middle, "Measured here: throughput, vit-digits, CPU", "r", "times the unpruned model")
    panel(right, "Measured here: accuracy, vit-digits", "r", "accuracy in %")
    right.legend(frameon=False, fontsize=7, loc="lower left")
    save(drawn, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    out = parser.parse_args().out
    cost(out / "cost.png")
    by_r(out / "by-r.png")


if __name__ == "__main__":
    main()
