"""V-JEPA 2 ViT-L, 256x256, float32: pruned against stock SDPA, interleaved in one run.

    python benchmarks/vjepa2.py [--frames 16 64] [--depth 24] [--r 85] [--rounds 5] [--memory]

Prints GFLOPs, medians and spread, and the speed-up beside the ratio of GFLOPs and of processor
seconds, which other work on the machine disturbs less; with --memory instead of times the peak
memory that a forward adds, without and with what a backward would need.
By default a third of each frame goes at the first step (85 of 256 tokens). Weights are random:
time does not depend on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import VJEPA2Config, VJEPA2ForVideoClassification

import sta
from sta.measure.memory import keep_memory, peak_megabytes
from sta.measure.timing import interleave, speedup


def build(depth: int, r: int) -> nn.Module:
    torch.manual_seed(0)
    config = VJEPA2Config(num_hidden_layers=depth, num_labels=174, pred_num_hidden_layers=1)
    model = VJEPA2ForVideoClassification(config).eval()
    return sta.apply(model, sta.STAConfig(r=r)) if r else model


def clip(frames: int) -> tuple[int, ...]:
    return (1, frames, 3, 256, 256)


def forward(depth: int, r: int, frames: int, grad: bool) -> Callable[[], object]:
    """A forward ready to be measured in a process of its own."""
    model, pixels = build(depth, r), torch.randn(clip(frames))

    def run() -> object:
        with torch.set_grad_enabled(grad):
            return model(pixels)

    return run


def run(model: nn.Module, pixels: torch.Tensor, spent: list[float]) -> None:
    """A forward; its processor seconds, over all threads, are appended to `spent`."""
    start = time.process_time()
    model(pixels)
    spent.append(time.process_time() - start)


def times(depth: int, r: int, frames: list[int], rounds: int, warmup: int) -> Table:
    table = Table(title=f"ViT-L, {depth} blocks, r={r}, {torch.get_num_threads()} threads")
    for column in ("frames", "tokens", "GFLOPs", "pruned", "ratio", "stock s", "pruned s"):
        table.add_column(column, justify="right")
    for column in ("spread", "speed-up", "processor"):
        table.add_column(column, justify="right")
    stock, pruned = build(depth, 0), build(depth, r)
    for count in frames:
        flops = [sta.gflops(model, clip(count)) for model in (stock, pruned)]
        pixels = torch.randn(clip(count))
        spent: dict[str, list[float]] = {"stock": [], "pruned": []}
        timings = interleave(
            {
                "stock": partial(run, stock, pixels, spent["stock"]),
                "pruned": partial(run, pruned, pixels, spent["pruned"]),
            },
            rounds=rounds,
            warmup=warmup,
        )
        table.add_row(
            str(count),
            str(count // 2 * 256),
            *(f"{f:.0f}" for f in flops),
            f"{flops[0] / flops[1]:.2f}x",
            f"{timings['stock'].median:.2f}",
            f"{timings['pruned'].median:.2f}",
            f"{timings['stock'].spread:.1%} / {timings['pruned'].spread:.1%}",
            f"{speedup(timings, 'pruned', 'stock'):.2f}x",
            f"{median(spent['stock'][warmup:]) / median(spent['pruned'][warmup:]):.2f}x",
        )
    return table


def memory(depth: int, r: int, frames: list[int]) -> Table:
    table = Table(title=f"Peak MB beyond model and input, ViT-L, {depth} blocks, r={r}")
    for column in ("frames", "forward", "stock MB", "pruned MB", "ratio"):
        table.add_column(column, justify="right")
    for count in frames:
        for grad in (False, True):
            peaks = [peak_megabytes(forward, depth, each, count, grad) for each in (0, r)]
            table.add_row(
                str(count),
                "with gradients" if grad else "inference",
                *(f"{p:.0f}" for p in peaks),
                f"{peaks[0] / peaks[1]:.2f}x",
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--depth", type=int, default=24)
    parser.add_argument("--r", type=int, default=85)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        table = memory(options.depth, options.r, options.frames)
    else:
        keep_memory()
        table = times(options.depth, options.r, options.frames, options.rounds, options.warmup)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
