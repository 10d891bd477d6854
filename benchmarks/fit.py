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
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "real"))

import torch
from splits import HELD_OUT, write_lists

import sta
from sta.backbones.zoo import embedded
from sta.backbones.zoo.video_model import load_video_model
from sta.tuning.fit import CLIPS
from sta.video.clips import drawn_clips

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "benchmarks/real/weights"
GENERATED = ROOT / "benchmarks/weights"
FILE = ROOT / "docs/results/fit.json"
DATA = ("digits", "lsa64", "gestures")


def choices(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per model and data set: the choice, its KL there and on the model's own data."""
    lists = ROOT / "out/fit"
    write_lists(options.folder, lists)
    rows = []
    for name in options.models:
        own = next(data for data in DATA if data in name)
        folders = (WEIGHTS / name, GENERATED / name)
        model = name if name in embedded.names() else str(next(f for f in folders if f.exists()))
        on_own: dict[str, float] = {}
        for data in sorted(DATA, key=lambda data: data != own):
            found = sta.fit(
                str(lists / f"{data}-train.txt") if data in HELD_OUT else data,
                model,
                root=str(options.folder) if data in HELD_OUT else None,
                clips=options.clips,
                progress=False,
            )
            best = found.scores[0]
            on_own = on_own or {one.name: one.fidelity.kl for one in found.scores}
            row = {"model": name, "clips_of": data, "own": data == own, "chosen": best.name}
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
    parser.add_argument("--models", nargs="+", default=["vit-digits", "vit-lsa64", "vit-gestures"])
    parser.add_argument("--time", metavar="MODEL", help="only how long it takes, e.g. vit-s-k400")
    parser.add_argument("--weights", action="store_true", help="the published ones, not random")
    parser.add_argument("--clips", type=int, default=CLIPS, help="the most to compare on")
    options = parser.parse_args()
    if options.time:
        seconds(options)
    elif options.folder is None:
        parser.error("give FOLDER, or --time MODEL")
    else:
        earlier = json.loads(FILE.read_text()) if FILE.exists() else []
        rows = [row for row in earlier if row["model"] not in options.models] + choices(options)
        FILE.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
