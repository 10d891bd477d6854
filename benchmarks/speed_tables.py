"""Tables of docs/performance.md, which results.py writes, from what speed.py measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Results = Mapping[str, dict[str, Any]]


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text."""
    lines = [heads, ["---", *("--:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def startup_table(results: Results) -> str:
    """Seconds of whole commands."""
    body = [
        [name, f"{statistics.median(times):.2f}", f"{min(times):.2f} to {max(times):.2f}"]
        for result in results.values()
        for name, times in result["seconds"].items()
    ]
    return markdown(("from start to end", "seconds", "least to most"), body)


def pipeline_table(results: Results) -> str:
    """`sta predict` beside transformers' pipeline."""
    body = [
        [f"{model}, {row['name'].replace(':', ', ')}", f"{row['clips_per_s']:.2f}", ratio]
        for model, result in results.items()
        for row in result["rows"]
        for ratio in [f"{row['ratio']:.2f}x ({row['ratio_low']:.2f}x to {row['ratio_high']:.2f}x)"]
    ]
    return markdown(("", "clips/s", "over transformers' pipeline (least to most)"), body)


def alone_table(results: Results) -> str:
    """`sta predict` beside the model alone."""
    body = []
    for precision, result in results.items():
        rates = (statistics.median(result[name]) for name in ("model", "end to end"))
        low, high = min(result["ratios"]), max(result["ratios"])
        share = f"{100 * result['ratio']:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
        body.append([precision, *(f"{rate:.2f}" for rate in rates), share])
    heads = ("precision", "model alone, clips/s", "sta predict, clips/s", "share (least to most)")
    return markdown(heads, body)


def auto_table(results: Results) -> str:
    """`--runtime auto` beside each runtime: seconds of a run, and over plain torch and the best."""
    ordered = sorted(results.items(), key=lambda item: item[1]["clips"])
    runtimes = list(dict.fromkeys(name for _, result in ordered for name in result["seconds"]))
    body = []
    for name, result in ordered:
        seconds = {n: statistics.median(times) for n, times in result["seconds"].items()}
        cells = [f"{seconds[n]:.1f}" if n in seconds else "" for n in runtimes]
        over = [f"{result[of]['auto']:.2f}" for of in ("over_torch", "over_best")]
        body.append([name.rpartition("-")[0], f"{result['clips']:,}", *cells, *over])
    named = [f"{name}, s" for name in runtimes]
    return markdown(("model", "clips", *named, "auto over torch", "auto over the best"), body)


def precision_table(results: Results) -> str:
    """Accuracy of each precision, unpruned and with STA."""
    body = [
        [model, row["precision"], str(row["r"]), *_accuracy(row)]
        for model, result in results.items()
        for row in result["rows"]
    ]
    return markdown(("model", "precision", "r", *_ACCURACY), body)


def file_table(results: Results) -> str:
    """An exported int8 file on clips that the model was not trained on."""
    body = [
        [model, str(result["r"]), *_accuracy(row)]
        for model, result in results.items()
        for row in result["rows"]
    ]
    return markdown(("model, as an int8 file", "r", *_ACCURACY), body)


def input_table(results: Results) -> str:
    """A step before the first block beside the default."""
    names = {"default": "STA", "before": "STA, the first step before block 1"}
    body = []
    for model, result in results.items():
        for row in result["rows"]:
            cells = [model, names.get(row["name"], row["name"]), f"{row['gflops']:.2f}"]
            cells += [f"{row['ms']:.0f}", f"{100 * row['spread']:.0f} %", f"{row['speedup']:.2f}x"]
            body.append([*cells, *_accuracy(row)[:2]])
    heads = ("model", "", "GFLOPs", "ms", "spread", "speed-up", *_ACCURACY[:2])
    return markdown(heads, body)


_ACCURACY = ("accuracy, %", "to unpruned float32, points", "to float32 at the same r, points")


def _accuracy(row: Mapping[str, Any]) -> list[str]:
    """Top 1 and its paired differences, with 95 % intervals; empty where they were not measured."""
    if "top1" not in row:
        return ["", "", ""]
    low, high = 100 * row["top1_low"], 100 * row["top1_high"]
    cells = [f"{100 * row['top1']:.1f} ({low:.1f} to {high:.1f})"]
    for other in ("to unpruned", "to same r"):
        found = row.get(other)
        points = found and [100 * found[part] for part in ("points", "low", "high")]
        cells.append("{:+.1f} ({:+.1f} to {:+.1f})".format(*points) if points else "")
    return cells


TABLES: dict[str, Callable[[Results], str]] = {
    "startup": startup_table,
    "pipeline": pipeline_table,
    "alone": alone_table,
    "auto": auto_table,
    "precision": precision_table,
    "file": file_table,
    "input": input_table,
}


def speed_tables(folder: Path) -> dict[str, str]:
    """Tables of the parts that are measured, by the name in their marker, e.g. speed-auto."""
    found = {}
    for part, table in TABLES.items():
        results = {
            path.stem.removeprefix(f"{part}-"): json.loads(path.read_text())
            for path in sorted(folder.glob(f"{part}-*.json"))
        }
        if results:
            about = [result["about"] for result in results.values()]
            where = dict.fromkeys(f"{one['processor']}, {one['threads']} threads" for one in about)
            found[f"speed-{part}"] = f"{'; '.join(where)}:\n\n{table(results)}"
    return found
