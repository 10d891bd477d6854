"""Training with STA against dense training on real video: steps in turn, on the same clips.

    python benchmarks/real/training.py cache/gestures --data gestures --init vit-lsa64/model \
        --r 48 --out runs/gestures --json docs/results/real-training.json

Takes the options of train.py. Times are of whole steps (forward, backward, update) by their medians
with quartiles; both models are then tested on the held-out clips, the one trained with STA with the
same tokens dropped, and without. Run again, it goes on; times are then of the last part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from train import Run, make_parser

import sta
from sta.backbones.outputs import logits_of
from sta.measure.stats import paired_difference, wilson


@torch.inference_mode()
def right(run: Run) -> np.ndarray:
    """Which of the held-out clips the averaged weights tell right."""
    run.place_positions()
    run.average.eval()
    found = []
    for start in range(0, len(run.clips.val), 16):
        chosen = run.clips.val[start : start + 16]
        pixels = run.normalised([run.clips.test(int(i), camera=False) for i in chosen])
        best = logits_of(run.average(pixels)).argmax(-1)
        found.append((best == run.clips.labels[chosen]).numpy())
    return np.concatenate(found)


def share(hits: np.ndarray, other: np.ndarray | None = None) -> dict[str, float | list[float]]:
    """Accuracy with its interval; against another's on the same clips."""
    total = len(hits)
    low, high = wilson(int(hits.sum()), total)
    about: dict[str, float | list[float]] = {"top1": hits.mean().item(), "interval": [low, high]}
    if other is not None:
        gained, lost = int((hits & ~other).sum()), int((other & ~hits).sum())
        about["difference"] = (gained - lost) / total
        about["difference_interval"] = list(paired_difference(gained, lost, total))
    return about


def main() -> None:
    parser = make_parser()
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    if not options.r:
        parser.error("--r: how many tokens a frame are dropped in training, e.g. 48")
    runs: dict[str, Run] = {}
    for name, r in (("dense", 0), ("sta", options.r)):
        own = argparse.Namespace(**{**vars(options), "r": r, "out": options.out / name})
        own.out.mkdir(parents=True, exist_ok=True)
        runs[name] = Run(own)
        runs[name].resume()
    first = runs["dense"]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    said = time.monotonic()
    for number, (pixels, labels) in enumerate(first.batches()):
        for name in list(runs) if number % 2 else list(reversed(runs)):
            start = time.perf_counter()
            runs[name].learn(pixels, labels)
            seconds[name].append(time.perf_counter() - start)
        if first.step % options.check_every == 0 or first.step == first.steps:
            for run in runs.values():
                run.save()
        if time.monotonic() - said > 60:
            said = time.monotonic()
            medians = {name: f"{statistics.median(s):.2f} s" for name, s in seconds.items()}
            print(f"{first.step} of {first.steps} steps: {medians}", flush=True)
    hits = {name: right(run) for name, run in runs.items()}
    for run in runs.values():
        run.export()  # takes the method off
    hits["sta, tested dense"] = right(runs["sta"])
    ratios = [s / d for s, d in zip(seconds["sta"], seconds["dense"], strict=True)]
    result = {
        "data": options.data,
        "r": options.r,
        "clips": first.steps * options.batch_size,
        "batch_size": options.batch_size,
        "test_clips": len(hits["dense"]),
        "seconds_a_step": {name: statistics.median(s) for name, s in seconds.items()},
        "ratio": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
        "accuracy": {
            name: share(own, None if name == "dense" else hits["dense"])
            for name, own in hits.items()
        },
        "sta": sta.__version__,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
