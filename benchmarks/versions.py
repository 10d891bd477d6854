"""Another checkout of sta beside this one: no speed may be lost.

    git worktree add ../before COMMIT
    python benchmarks/versions.py ../before [--rounds 9]

Each version has a process of its own; their forwards take turns, pruned and stock, in one run.
Prints each version's median over its own stock model, and the quartiles of new over old.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

HERE = Path(__file__).resolve().parents[1]


def vit() -> tuple[nn.Module, tuple[int, ...], int]:
    """ViT-S on a clip of 16 x 224 x 224, and its r."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    config = VideoMAEConfig(
        hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=400
    )
    return VideoMAEForVideoClassification(config), (1, 16, 3, 224, 224), 64


def swin() -> tuple[nn.Module, tuple[int, ...], int]:
    """Video Swin-T on a clip of 16 x 224 x 224, and its r."""
    from torchvision.models.video import swin3d_t

    return swin3d_t(), (1, 3, 16, 224, 224), 256


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...], int]]] = {"vit": vit, "swin": swin}


def serve(source: str, name: str, asked: Connection) -> None:
    """Time a forward, stock or pruned, whenever asked for one."""
    sys.path.insert(0, source)
    import time

    import torch

    import sta

    assert Path(sta.__file__).is_relative_to(source), sta.__file__
    torch.manual_seed(0)
    model, shape, r = MODELS[name]()
    stock = model.eval()
    pruned = sta.apply(MODELS[name]()[0].eval(), sta.STAConfig(r=r))
    clip = torch.randn(shape)
    with torch.inference_mode():
        while (kind := asked.recv()) is not None:
            start = time.perf_counter()
            (stock if kind == "stock" else pruned)(clip)
            asked.send(time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    # A waiting process must not spin on the cores that the other one is timed on.
    os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
    context = multiprocessing.get_context("spawn")
    sources = {"before": options.before.resolve() / "src", "now": HERE / "src"}
    for name in options.models:
        ends = {}
        for version, source in sources.items():
            ends[version], other = context.Pipe()
            context.Process(target=serve, args=(str(source), name, other), daemon=True).start()
            other.close()  # so that a process that ends is not waited for
        seconds: dict[tuple[str, str], list[float]] = {}
        for number in range(options.rounds + 2):
            for version in sources if number % 2 else reversed(sources):
                for kind in ("stock", "pruned"):
                    ends[version].send(kind)
                    took = ends[version].recv()
                    if number >= 2:  # the first ones warm up
                        seconds.setdefault((version, kind), []).append(took)
        for end in ends.values():
            end.send(None)
        for version in sources:
            stock, pruned = (
                statistics.median(seconds[version, kind]) for kind in ("stock", "pruned")
            )
            times = f"stock {stock:.3f} s, pruned {pruned:.3f} s"
            print(f"{name}, {version}: {times}, {stock / pruned:.2f}x")
        pairs = zip(seconds["now", "pruned"], seconds["before", "pruned"], strict=True)
        low, middle, high = statistics.quantiles((now / before for now, before in pairs), n=4)
        print(f"{name}: now takes {middle:.3f} of the time before ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
