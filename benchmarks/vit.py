"""ViT-S and ViT-B, 16x224x224, float32: pruned against stock SDPA, interleaved in one run.

    python benchmarks/vit.py [--sizes S B] [--batch-size 1 4] [--r 64] [--rounds 9]

Prints medians and spread, the ratio beside the ratio of GFLOPs, the share of the pruned forward
that choosing tokens takes, and peak memory. Weights are random: time does not depend on them.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import nn
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import sta
from sta.backbones.vit_hooks import CaptureProjection
from sta.backbones.vit_step import TokenStep
from sta.measure.memory import keep_memory, peak_megabytes
from sta.measure.timing import interleave, speedup

SIZES = {"S": (384, 12, 6), "B": (768, 12, 12)}
CLIP = (16, 3, 224, 224)
COLUMNS = (
    "model",
    "batch",
    "stock s",
    "pruned s",
    "spreads",
    "speed-up",
    "FLOPs",
    "choosing",
    "MB",
)
ROW = "{:>6} {:>5} {:>8} {:>8} {:>13} {:>8} {:>6} {:>8} {:>10}"


def build(size: str, r: int) -> nn.Module:
    width, depth, heads = SIZES[size]
    torch.manual_seed(0)
    config = VideoMAEConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=400,
    )
    model = VideoMAEForVideoClassification(config).eval()
    return sta.apply(model, sta.STAConfig(r=r)) if r else model


def forward(size: str, batch: int, r: int) -> Callable[[], object]:
    """A forward ready to be measured in a process of its own."""
    model, clip = build(size, r), torch.randn(batch, *CLIP)

    def run() -> object:
        with torch.inference_mode():
            return model(clip)

    return run


def choosing_seconds(model: nn.Module, clip: torch.Tensor) -> float:
    """Seconds of one forward spent in capturing features, choosing and gathering tokens."""
    spent = 0.0

    def timed(original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal spent
            start = time.perf_counter()
            out = original(*args, **kwargs)
            spent += time.perf_counter() - start
            return out

        return call

    with contextlib.ExitStack() as stack:
        for hook in (TokenStep, CaptureProjection):
            stack.enter_context(mock.patch.object(hook, "__call__", timed(hook.__call__)))
        stack.enter_context(torch.inference_mode())
        model(clip)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=["S", "B"], choices=SIZES)
    parser.add_argument("--batch-size", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--r", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    keep_memory()
    print(f"r={options.r}, {torch.get_num_threads()} threads, float32, {options.rounds} rounds")
    print(ROW.format(*COLUMNS), flush=True)
    for size in options.sizes:
        stock, pruned = build(size, 0), build(size, options.r)
        ratio = sta.gflops(stock, (1, *CLIP)) / sta.gflops(pruned, (1, *CLIP))
        for batch in options.batch_size:
            clip = torch.randn(batch, *CLIP)
            timings = interleave(
                {"stock": partial(stock, clip), "pruned": partial(pruned, clip)},
                rounds=options.rounds,
            )
            chosen = sorted(choosing_seconds(pruned, clip) for _ in range(options.rounds))
            memory = [peak_megabytes(forward, size, batch, r) for r in (0, options.r)]
            cells = (
                f"ViT-{size}",
                str(batch),
                f"{timings['stock'].median:.3f}",
                f"{timings['pruned'].median:.3f}",
                f"{timings['stock'].spread:.1%} / {timings['pruned'].spread:.1%}",
                f"{speedup(timings, 'pruned', 'stock'):.2f}x",
                f"{ratio:.2f}x",
                f"{chosen[len(chosen) // 2] / timings['pruned'].median:.2%}",
                f"{memory[0]:.0f} / {memory[1]:.0f}",
            )
            print(ROW.format(*cells), flush=True)


if __name__ == "__main__":
    main()
