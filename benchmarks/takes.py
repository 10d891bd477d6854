"""Methods on several takes of each held-out clip, for differences that one take is too few for.

    python benchmarks/takes.py FOLDER [--models vit-lsa64 ...] [--takes 4]

A take is what another window sees of a clip, standing still or, for models called NAME-camera,
moving (`real/variants.py`). Takes of one clip are no clips of their own: they are averaged first,
and the intervals are of clips. Of digits, which are generated, there are more clips instead, the
4,096 of the standard test. Budgets are the GFLOPs of the paper's two larger r, of digits -50 and
-65 %. Writes docs/results/takes.json; a run that was stopped goes on with out/compare.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import compare
import numpy as np
import results

import sta
from sta.measure.stats import bootstrap
from sta.tuning.compare import CompareResult
from sta.video.digits import TEST_CLIPS

METHODS = ("sta", "ward")
#: Hits of a method at a number of tokens: clips by takes.
Hits = dict[tuple[str, int], np.ndarray]


def measure(subject: compare.Subject, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of one model: each method at each budget."""
    real = subject.data in compare.HELD_OUT
    found: list[Hits] = []
    for take in range(1, (options.takes if real else 1) + 1):  # the tables' clips are take 0
        out = compare.WORK / f"takes/{subject.name}-{take}"
        done = sta.compare(
            source_of(subject, options.folder, take) if real else subject.data,
            subject.model,
            methods=METHODS,
            saved=compare.budgets(subject, options)[1:3],
            clips=options.clips or (None if real else TEST_CLIPS),
            precision=options.precision,
            rounds=0,
            out=out,
        )
        found.append(hits(out))
    takes = {key: np.stack([one[key] for one in found], axis=1) for key in found[0]}
    data = f"{subject.data}, {subject.camera} camera" if real else subject.data
    return [{"model": subject.name, "data": data, **row} for row in rows_of(takes, done)]


def source_of(subject: compare.Subject, folder: Path, take: int) -> Path:
    """The held-out clips of a take."""
    compare.write_lists(folder, compare.WORK / "lists")
    variant = "moving" if subject.camera == "moving" else "aside"
    listed = compare.WORK / f"lists/{subject.data}-val.txt"
    return compare.changed(listed, folder, variant, compare.cached_side(subject), take)


def hits(folder: Path) -> Hits:
    """What a comparison got right, clip by clip, in the order of their names."""
    (file,) = folder.glob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    right: dict[tuple[str, int], dict[str, bool]] = {}
    for row in rows:
        if row.get("path") is not None and row["error"] is None:
            key = row["method"], row["r"]
            right.setdefault(key, {})[row["path"]] = row["classes"][0] == row["label"]
    return {
        key: np.array([of[path] for path in sorted(of)], dtype=float) for key, of in right.items()
    }


def rows_of(takes: Hits, done: CompareResult) -> list[dict[str, Any]]:
    """Accuracies and paired differences, with intervals over clips."""

    def interval(name: str, each: np.ndarray) -> dict[str, float]:
        of_clips = each.mean(1)
        low, high = bootstrap(of_clips.tolist())
        return {name: float(of_clips.mean()), f"{name}_low": low, f"{name}_high": high}

    unpruned = takes["unpruned", 0]
    shape = dict(zip(("clips", "takes"), unpruned.shape, strict=True))
    rows = [{"method": "unpruned", "r": 0, "saved": None, **shape, **interval("top1", unpruned)}]
    for saved in dict.fromkeys(row["saved"] for row in done.rows if row["saved"]):
        level = {row["method"]: row["r"] for row in done.rows if row["saved"] == saved}
        seeds = [name for name in level if name.startswith("random, seed")]
        drawn = np.mean([takes[name, level[name]] for name in seeds], axis=0)
        random = f"random, mean of {len(seeds)} seeds"
        ours = {name: takes[name, level[name]] for name in level if name not in seeds}
        for name, right in {**ours, random: drawn}.items():
            row = {"method": name, "r": level.get(name, level[seeds[0]]), "saved": saved, **shape}
            row |= interval("top1", right) | interval("difference", right - unpruned)
            rows.append(row | (interval("to_random", right - drawn) if name in ours else {}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="real clips and their lists")
    parser.add_argument("--models", nargs="+", default=["vit-lsa64", "vit-lsa64-camera"])
    parser.add_argument("--takes", type=int, default=4)
    parser.add_argument("--clips", type=int, help="the first ones; all without")
    parser.add_argument("--precision", default="float32", help="bfloat16 where it is fast")
    options = parser.parse_args()
    options.saved = None
    file = compare.OUT / "takes.json"
    known = json.loads(file.read_text()) if file.exists() else {"rows": []}
    for subject in compare.subjects(options):
        rows = measure(subject, options)
        others = [row for row in known["rows"] if row["model"] != subject.name]
        known = {"precision": options.precision, "rows": others + rows}
        file.write_text(json.dumps(known, indent=1) + "\n")
    results.write_all(compare.OUT.parent)


if __name__ == "__main__":
    main()
