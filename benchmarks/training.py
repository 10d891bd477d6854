"""Training with STA against dense training: steps of both in turn, on the same clips, in one run.

    python benchmarks/training.py [--model vit] [--r 16] [--steps 30] [--json FILE]

Prints seconds of an epoch (the time of its steps, and with the making of its clips, which costs
both the same) and their ratio by medians. With --test-clips, both models are then tested, which
shows what was learnt from equal clips: from scratch that takes --steps 3000 --easy 12000, with
--pretrained, which starts from the embedded model's weights but for its head, --steps 200.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

import sta
from sta.backbones.zoo import embedded
from sta.measure.memory import keep_memory
from sta.train.head import classes_of, replace_head

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tools, wherever this is run
from tools.digits.export import accuracy
from tools.digits.models import SETTINGS
from tools.digits.train import Recipe, Run


def train(runs: dict[str, Run], recipe: Recipe) -> tuple[list[float], dict[str, list[float]]]:
    """Train all in turn: seconds of making each batch of clips, and of each one's steps."""
    making: list[float] = []
    learning: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(recipe.steps):
        start = time.perf_counter()
        clips = next(iter(runs.values())).clips()
        making.append(time.perf_counter() - start)
        order = list(runs) if number % 2 else list(reversed(runs))
        for name in order:
            start = time.perf_counter()
            runs[name].learn(*clips)
            learning[name].append(time.perf_counter() - start)
        if number % 25 == 24:
            done = ", ".join(f"{name} {sum(times):.0f} s" for name, times in learning.items())
            print(f"{number + 1} of {recipe.steps} steps: {done}", flush=True)
    return making, learning


def pretrained(run: Run) -> None:
    """Start from the embedded model's weights, with an untrained head."""
    model = embedded.load(f"{run.name}-digits")
    replace_head(model, classes_of(model))
    run.model.load_state_dict(model.state_dict())
    run.averaged.module.load_state_dict(model.state_dict())


def tested(run: Run, clips: int) -> dict[str, list[float]]:
    """Accuracy of the averaged weights, with intervals; what was trained pruned stays pruned."""
    run.model.load_state_dict(run.averaged.module.state_dict())
    return accuracy(run.model.eval(), clips)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="vit", choices=sorted(SETTINGS))
    parser.add_argument("--r", type=int, default=16, help="of 64 tokens per frame")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=8e-4, help="highest learning rate")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rise", type=int, default=Recipe.warmup, help="steps until that rate")
    parser.add_argument("--pretrained", action="store_true", help="all but the head is trained")
    parser.add_argument("--easy", type=int, default=0, help="the first so many clips are easy ones")
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not counted")
    parser.add_argument("--epoch", type=int, default=16_384, help="clips of an epoch")
    parser.add_argument("--test-clips", type=int, default=0, help="test both models on so many")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.steps <= options.warmup:
        parser.error(f"--steps {options.steps} leaves none after --warmup {options.warmup}")
    keep_memory()
    clips = options.steps * options.batch
    recipe = Recipe(
        clips=clips,
        easy=options.easy,
        batch=options.batch,
        rate=options.rate,
        warmup=options.rise,
    )
    runs = {name: Run(options.model, Path("unsaved"), recipe) for name in ("dense", "sta")}
    for run in runs.values() if options.pretrained else ():
        torch.manual_seed(recipe.seed)  # the same head for both
        pretrained(run)
    sta.apply(runs["sta"].model, sta.STAConfig(r=options.r))
    making, learning = train(runs, recipe)
    made = statistics.median(making[options.warmup :])
    taken = {name: statistics.median(times[options.warmup :]) for name, times in learning.items()}
    steps = options.epoch / options.batch
    result = {
        "model": options.model,
        "r": options.r,
        "batch": options.batch,
        "steps": options.steps - options.warmup,
        "clips": clips,
        "easy": options.easy,
        "pretrained": options.pretrained,
        "threads": torch.get_num_threads(),
        "epoch_clips": options.epoch,
        "epoch_seconds": {name: steps * seconds for name, seconds in taken.items()},
        "epoch_seconds_with_clips": {n: steps * (s + made) for n, s in taken.items()},
        "hours": {name: sum(times) / 3600 for name, times in learning.items()},
        "ratio": taken["sta"] / taken["dense"],
        "ratio_with_clips": (taken["sta"] + made) / (taken["dense"] + made),
    }
    if options.test_clips:
        result["test_clips"] = options.test_clips
        result["accuracy"] = {n: tested(run, options.test_clips) for n, run in runs.items()}
        sta.remove(runs["sta"].model)
        result["accuracy"]["sta, tested dense"] = tested(runs["sta"], options.test_clips)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
