"""Measure the embedded models and write the tables and pictures of docs/results.md.

    python benchmarks/results.py [--models vit-digits swin-digits] [--clips 1024]
    python benchmarks/results.py --tables       # write the tables again, measure nothing

Per model: methods over r at matched GFLOPs, and all ablations. Rows of every clip are kept in
out/results, so that a run that was stopped goes on (with other settings: remove them first). Tables
go between the page's markers, <!-- table:NAME --> and <!-- end -->, and are printed, too.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sta
from sta import weights
from sta.cli.inference import watched
from sta.inference.evaluate import evaluation
from sta.inference.journal import open_journal
from sta.inference.setup import Setup, matched
from sta.show.style import ACCENT, BEFORE, INK, LINE

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, ROWS = ROOT / "docs/results", ROOT / "docs/results.md", ROOT / "out/results"
MARKED = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = Sequence[dict[str, Any]]


def measure_methods(
    model: str, drops: Sequence[int], clips: int, temperature: float, batch: int
) -> list[dict[str, Any]]:
    """Methods at matched GFLOPs, on the same clips; STA also with a sharper softmax."""
    setup = Setup.make(model, names=())
    names = ["random", "tome", "frame-difference"]
    if setup.opened.family == "swin":
        names.remove("tome")  # merged tokens have no place in its windows
    setup.methods = matched(setup.opened, names, (0, *drops))
    for r in drops:
        config = sta.STAConfig(r=r, temperature=temperature)
        setup.methods[f"sta, temperature {temperature:g}", r] = config
    job = evaluation("digits", setup, setup.run(batch_size=batch), limit=clips)
    about = {"settings": setup.about(), "rows_per_video": len(setup.methods)}
    with open_journal(str(ROWS / f"{model}-methods.jsonl"), resume=True, **about) as journal:
        for video in watched(job.score(journal.done), job.total, len(journal.done)):
            journal.append(job.rows(video))
        return job.table(journal.rows())


def measure_ablations(
    model: str, r: int, clips: int, batch: int, temperature: float | None = None
) -> None:
    name = f"{model}-ablations{'' if temperature is None else '-sharp'}"
    words = ["ablate", "all", "--model", model, "--r", r, "--clips", clips, "--batch-size", batch]
    words += ["--json", RESULTS / f"{name}.json", "--plot", RESULTS / f"{name}.png"]
    words += ["--out", ROWS / f"{name}.jsonl", "--resume"]
    words += [] if temperature is None else ["--temperature", temperature]
    subprocess.run([sys.executable, "-m", "sta", *map(str, words)], check=True, cwd=ROOT)


def draw_methods(rows: Rows, title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    colours = iter((ACCENT, "#e08e45", "#5aa469", "#b0568f", "#c0392b", BEFORE))
    unpruned = next(row for row in rows if row["r"] == 0)
    for method in dict.fromkeys(row["method"] for row in rows if row["r"]):
        points = [unpruned, *(row for row in rows if row["method"] == method and row["r"])]
        points.sort(key=lambda row: row["gflops"])
        x, y = ([row[name] for row in points] for name in ("gflops", "top1"))
        reach = [
            [100 * abs(row["top1"] - row[f"top1_{end}"]) for row in points]
            for end in ("low", "high")
        ]
        percent = [100 * value for value in y]
        axes.errorbar(
            x,
            percent,
            reach,
            marker="o",
            ms=4,
            lw=1.2,
            capsize=2,
            color=next(colours),
            label=method,
        )
    axes.set_xlabel("GFLOPs a clip", color=INK)
    axes.set_ylabel("accuracy in %", color=INK)
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, lw=0.6)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path)


# Tables


def percent(row: dict[str, Any], name: str, sign: str = "") -> str:
    if row.get(name) is None:
        return ""
    text = f"{100 * row[name]:{sign}.1f}"
    if name in ("top1", "difference"):
        low, high = (100 * row[f"{name}_{end}"] for end in ("low", "high"))
        text += f" ({low:{sign}.1f} to {high:{sign}.1f})"
    return text


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *("--:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def methods_table(rows: Rows) -> str:
    heads = ("method", "r", "GFLOPs", "accuracy, %", "less than unpruned, points", "agreement, %")
    body = []
    for row in rows:
        name = "unpruned" if row["r"] == 0 else row["method"]
        less = "" if row["r"] == 0 else percent(row, "difference", "+")
        cells = [name, str(row["r"]), f"{row['gflops']:.3f}", percent(row, "top1"), less]
        cells += [percent(row, part) for part in ("agreement", "motion", "colour")]
        body.append(cells)
    clips = rows[0]["clips"]
    return f"{clips:,} clips.\n\n" + markdown((*heads, "motion, %", "colour, %"), body)


def ablations_table(report: dict[str, Any]) -> str:
    r, clips, unpruned = report["default"]["r"], report["clips"], report["unpruned"]
    parts = [
        f"r={r}, {clips:,} clips; the unpruned model has {percent(unpruned, 'top1')} at "
        f"{unpruned['gflops']:.3f} GFLOPs. **Bold** is the default."
    ]
    heads = ("GFLOPs", "accuracy, %", "to the default, points", "agreement, %")
    for study in report["studies"]:
        if study["left_out"] is not None:
            parts.append(f"{study['title']}: left out, {study['left_out']}.")
            continue
        body = []
        for row in study["rows"]:
            name = f"**{row['variant']}**" if row["default"] else row["variant"]
            if row["refused"] is not None:
                body.append([name, "", f"not possible: {row['refused']}", *[""] * 4])
                continue
            less = "" if row["default"] else percent(row, "difference", "+")
            cells = [name, f"{row['gflops']:.3f}", percent(row, "top1"), less]
            body.append(cells + [percent(row, part) for part in ("agreement", "motion", "colour")])
        parts.append(markdown((study["title"], *heads, "motion, %", "colour, %"), body))
    return "\n\n".join(parts)


def training_table(result: dict[str, Any]) -> str:
    rows = []
    for name in ("dense", "sta"):
        cells = [name if name == "dense" else f"STA, r={result['r']}"]
        cells += [
            f"{result[part][name]:.0f}" for part in ("epoch_seconds", "epoch_seconds_with_clips")
        ]
        if "accuracy" in result:
            value, low, high = (100 * v for v in result["accuracy"][name]["joint"])
            cells.append(f"{value:.1f} ({low:.1f} to {high:.1f})")
        rows.append(cells)
    ratios = [f"{result[name]:.2f}" for name in ("ratio", "ratio_with_clips")]
    rows.append(["ratio", *ratios, *([""] if "accuracy" in result else [])])
    heads = ["training", "seconds an epoch", "with making its clips"]
    heads += ["accuracy, %"] if "accuracy" in result else []
    about = (
        f"An epoch of {result['epoch_clips']:,} clips by the median of {result['steps']} steps of "
        f"{result['batch']} clips, {result['threads']} threads."
    )
    return f"{about}\n\n{markdown(heads, rows)}"


TABLES = {"methods": methods_table, "ablations": ablations_table, "training": training_table}


def tables() -> dict[str, str]:
    """Every table whose measurement is there, by the name in its marker."""
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        kind = next((kind for kind in TABLES if kind in path.stem), None)
        if kind is not None:
            found[path.stem] = TABLES[kind](json.loads(path.read_text()))
    return found


def write_page(page: Path, found: dict[str, str]) -> list[str]:
    """Put the tables between their markers; names of those that the page has no place for."""

    def fill(match: re.Match[str]) -> str:
        table = found.get(match["name"])
        return match[0] if table is None else f"{match[1]}{table}\n{match[3]}"

    text = page.read_text()
    page.write_text(MARKED.sub(fill, text))
    places = {match["name"] for match in MARKED.finditer(text)}
    return sorted(set(found) - places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=weights.names(), choices=weights.names())
    parser.add_argument("--clips", type=int, default=1024)
    parser.add_argument("--r", type=int, nargs="+", default=[8, 16, 24, 32], help="of the methods")
    parser.add_argument("--ablate-r", type=int, default=24)
    parser.add_argument("--temperature", type=float, default=0.1, help="of the sharper STA")
    parser.add_argument("--sharp", action="store_true", help="ablate the sharper STA, too")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    options = parser.parse_args()
    for folder in (RESULTS, ROWS):
        folder.mkdir(parents=True, exist_ok=True)
    for model in () if options.tables else options.models:
        rows = measure_methods(
            model, options.r, options.clips, options.temperature, options.batch_size
        )
        (RESULTS / f"{model}-methods.json").write_text(json.dumps(rows, indent=1) + "\n")
        draw_methods(rows, f"{model}, {options.clips:,} clips", RESULTS / f"{model}-methods.png")
        measured = (model, options.ablate_r, options.clips, options.batch_size)
        measure_ablations(*measured)
        if options.sharp:
            measure_ablations(*measured, options.temperature)
    found = tables()
    for name in write_page(PAGE, found):
        print(f"{PAGE.name} has no place <!-- table:{name} -->", file=sys.stderr)
    for name, table in found.items():
        print(f"## {name}\n\n{table}\n")


if __name__ == "__main__":
    main()
