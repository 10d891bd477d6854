"""What `sta.fit` chooses by clips of the model's own data and of others; and how long it takes.

    python benchmarks/fit.py FOLDER [--models vit-digits ...]    # into docs/results/fit.json
    python benchmarks/fit.py --time vit-s-k400 [--clips 32]

FOLDER holds the real clips, as for compare.py. Clips are of the training sets. With --time the
weights are random, which changes the choice but hardly the time: what must be computed is the same,
but for where the last two candidates are told apart (--clips 9 is the least that any model needs).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import compare
import results
import torch
from splits import HELD_OUT

import sta
from sta.backbones.zoo.video_model import load_video_model
from sta.tuning.fit import CLIPS
from sta.video.clips import Videos, drawn_clips

FILE = compare.OUT / "fit.json"
DATA = ("digits", "lsa64", "gestures")


def choices(subject: compare.Subject, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per data set: the choice, its KL there and on the model's own data."""
    own = subject.data + (", moving camera" if subject.camera == "moving" else "")
    sources: dict[str, Videos] = {own: compare.training_clips(subject, options.folder)}
    for data in DATA:
        if data not in subject.data:
            listed = str(compare.WORK / f"lists/{data}-train.txt")
            sources[data] = listed if data in HELD_OUT else data
    compare.write_lists(options.folder, compare.WORK / "lists")
    rows: list[dict[str, Any]] = []
    on_own: dict[str, float] = {}
    for data, clips in sources.items():
        found = sta.fit(
            clips,
            subject.model,
            root=str(options.folder) if data in HELD_OUT and data != own else None,
            clips=options.clips,
            progress=False,
        )
        best = found.scores[0]
        on_own = on_own or {one.name: one.fidelity.kl for one in found.scores}
        row = {"model": subject.name, "clips_of": data, "own": data == own, "chosen": best.name}
        row |= {"kl": best.fidelity.kl, "kl_on_own": on_own[best.name]}
        rows.append(row | {"clips": best.fidelity.clips, "candidates": len(found.scores)})
        print(row, flush=True)
    return rows


def seconds(options: argparse.Namespace) -> None:
    opened = load_video_model(options.time, random_weights=not options.weights)
    clips = drawn_clips(range(options.clips), opened.clip.views)
    start, busy = time.perf_counter(), time.process_time()
    found = sta.fit(clips, opened, progress=False)
    took, busy = time.perf_counter() - start, time.process_time() - busy
    print(found)
    forwards = sum(one.fidelity.clips for one in found.scores)
    print(
        f"{options.time}, {options.clips} clips at most: {took:.0f} s, {busy:.0f} processor "
        f"seconds on {torch.get_num_threads()} threads, {len(found.scores)} candidates, "
        f"{forwards} pruned clips"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="real clips and their lists")
    parser.add_argument("--models", nargs="+", help="all without")
    parser.add_argument("--time", metavar="MODEL", help="only how long it takes, e.g. vit-s-k400")
    parser.add_argument("--weights", action="store_true", help="the published ones, not random")
    parser.add_argument("--clips", type=int, default=CLIPS, help="the most to compare on")
    options = parser.parse_args()
    if options.time:
        seconds(options)
    elif options.folder is None:
        parser.error("give FOLDER, or --time MODEL")
    else:
        rows = json.loads(FILE.read_text()) if FILE.exists() else []
        for subject in compare.subjects(options):
            rows = [row for row in rows if row["model"] != subject.name]
            rows += choices(subject, options)
            FILE.write_text(json.dumps(rows, indent=1) + "\n")
        results.write_all(compare.OUT.parent)


if __name__ == "__main__":
    main()
