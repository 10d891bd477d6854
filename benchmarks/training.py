"""Training with STA against dense training: steps of both in turn, on the same clips, in one run.

    python benchmarks/training.py [--model vit] [--r 16] [--batch 24] [--steps 30] [--json FILE]

Prints seconds of an epoch (the time of its steps, and with the making of its clips, which costs
both the same) and their ratio by medians. With --test-clips, both models are then tested: with
--steps 1500 or more that shows what was learnt from equal clips.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import sta
from sta.bench.allocator import keep_memory
from sta.data.digits import DigitActions
from sta.train.export import accuracy
from sta.train.models import SETTINGS, build
from sta.train.pixels import layout_of, logits_of, normalise
from sta.train.pretrained import Recipe, factored_loss
from sta.train.schedule import parameter_groups


@dataclass
class Contender:
    """A model in training, dense or pruned, and the seconds of its steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def make(cls, backbone: str, r: int, recipe: Recipe) -> Contender:
        torch.manual_seed(recipe.seed)  # the same weights to start from
        model = build(backbone).train()
        if r:
            sta.apply(model, sta.STAConfig(r=r))
        groups = parameter_groups(model, recipe.weight_decay)
        optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=recipe.betas, fused=True)
        return cls(model, optimizer, recipe)

    def step(self, number: int, pixels: Tensor, labels: Tensor) -> None:
        start = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate_at(number)
        factored_loss(logits_of(self.model, pixels), labels).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.perf_counter() - start)


def train(contenders: dict[str, Contender], recipe: Recipe, warmup: int) -> float:
    """Train all in turn; median seconds of making a batch of clips."""
    data = DigitActions("train", size=recipe.clips, seed=recipe.seed)
    making = []
    layout = layout_of(next(iter(contenders.values())).model)
    for number in range(recipe.steps):
        start = time.perf_counter()
        first = number * recipe.batch
        frames, labels = data.batch(range(first, first + recipe.batch))
        video = torch.from_numpy(frames).permute(0, 1, 4, 2, 3)  # (B, T, C, H, W)
        pixels, target = normalise(video, layout), torch.from_numpy(labels)
        making.append(time.perf_counter() - start)
        order = list(contenders.values())
        for contender in order if number % 2 else reversed(order):
            contender.step(number, pixels, target)
    for contender in contenders.values():
        del contender.seconds[:warmup]
    return statistics.median(making[warmup:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="vit", choices=sorted(SETTINGS))
    parser.add_argument("--r", type=int, default=16, help="of 64 tokens per frame")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not counted")
    parser.add_argument("--epoch", type=int, default=16_384, help="clips of an epoch")
    parser.add_argument("--test-clips", type=int, default=0, help="test both models on so many")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.steps <= options.warmup:
        parser.error(f"--steps {options.steps} leaves none after --warmup {options.warmup}")
    keep_memory()
    recipe = Recipe(clips=options.steps * options.batch, batch=options.batch)
    both = {
        "dense": Contender.make(options.model, 0, recipe),
        "sta": Contender.make(options.model, options.r, recipe),
    }
    making = train(both, recipe, options.warmup)
    steps = options.epoch / options.batch
    taken = {name: statistics.median(one.seconds) for name, one in both.items()}
    result = {
        "model": options.model,
        "r": options.r,
        "batch": options.batch,
        "steps": options.steps - options.warmup,
        "threads": torch.get_num_threads(),
        "epoch_clips": options.epoch,
        "epoch_seconds": {name: steps * seconds for name, seconds in taken.items()},
        "epoch_seconds_with_clips": {n: steps * (s + making) for n, s in taken.items()},
        "ratio": taken["sta"] / taken["dense"],
        "ratio_with_clips": (taken["sta"] + making) / (taken["dense"] + making),
    }
    if options.test_clips:
        result["test_clips"] = options.test_clips
        result["accuracy"] = {
            name: accuracy(one.model.eval(), options.test_clips) for name, one in both.items()
        }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
