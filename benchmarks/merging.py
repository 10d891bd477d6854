"""What merging costs in time: STA that drops or merges, ToMe and Ward at the same GFLOPs, in turn.

    python benchmarks/merging.py [--model vit-s-k400] [--r 64] [--rounds 11]

Weights are random, which time does not depend on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch

import sta
from sta.backbones.copies import shared_copy
from sta.backbones.zoo.video_model import VideoModel
from sta.measure.matching import match_gflops
from sta.measure.timing import interleave, speedup


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="vit-s-k400")
    parser.add_argument("--r", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    opened = VideoModel.open(options.model, random_weights=True)
    shape = opened.clip.shape()
    clip = torch.randn(shape)
    weighed = {"merge": True, "proportional": True}
    every = tuple(range(1, opened.model.config.num_hidden_layers))
    dropped = sta.STAConfig(r=options.r)
    cost = sta.gflops(sta.apply(opened.model, dropped), shape)
    sta.remove(opened.model)
    makers: dict[str, Callable[[int], sta.Config]] = {
        "merged, weighed, every block": lambda r: sta.STAConfig(
            schedule=(r,) * len(every), blocks=every, **weighed
        ),
        "tome": lambda r: sta.ToMeConfig(r=r),
        "ward": lambda r: sta.WardConfig(r=r),
    }
    configs: dict[str, sta.Config] = {
        "dropped": dropped,
        "merged": sta.STAConfig(r=options.r, merge=True),
        "merged, weighed": sta.STAConfig(r=options.r, **weighed),
        **{name: match_gflops(opened.model, shape, cost, make) for name, make in makers.items()},
    }
    runs: dict[str, Callable[[], object]] = {"stock": partial(opened.model, clip)}
    costs = {}
    for name, config in configs.items():
        model = sta.apply(shared_copy(opened.model), config)
        costs[name] = sta.gflops(model, shape)
        runs[name] = partial(model, clip)
    timings = interleave(runs, rounds=options.rounds)
    for name, count in costs.items():
        one = timings[name]
        print(
            f"{name:30} {count:7.2f} GFLOPs  {speedup(timings, name, 'stock'):.2f}x  "
            f"{1000 * one.median:.0f} ms, spread {one.spread:.0%}"
        )


if __name__ == "__main__":
    main()
