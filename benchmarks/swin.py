"""Video Swin, 32x224x224, float32: stock, dense fast path, pruned and merged, in one run.

    python benchmarks/swin.py [--size t] [--r 256] [--batch-size 1] [--rounds 7] [--no-memory]

Prints medians and spread, speed-ups beside the ratios of GFLOPs, peak memory, and where the time
goes: by kind of work and by stage. Weights are random: time does not depend on them.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import profile
from torchvision.models import video

import sta
from sta.backbones.copies import meta_copy
from sta.backbones.swin import StageStep
from sta.measure.matching import match_gflops
from sta.measure.memory import peak_megabytes
from sta.measure.timing import interleave, speedup

CLIP = (3, 32, 224, 224)
NAMES = ("stock", "dense", "pruned, all queries", "pruned", "ward")
KINDS = {
    "matrix products": ("aten::addmm", "aten::mm", "aten::bmm", "aten::mkldnn_convolution"),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_softmax"),
    "gathers and copies": ("aten::index_select", "aten::copy_", "aten::cat", "aten::roll"),
    "norms, GELU, sums": ("aten::native_layer_norm", "aten::gelu", "aten::add"),
}


def build(name: str, size: str, r: int) -> nn.Module:
    torch.manual_seed(0)
    model = getattr(video, f"swin3d_{size}")(weights=None).eval()
    configs = {
        "dense": sta.DenseConfig(),
        "pruned, all queries": sta.STAConfig(r=r, window_queries="all"),
        "pruned": sta.STAConfig(r=r, window_queries="kept"),
    }
    if name == "ward":  # at the GFLOPs of STA
        pruned = sta.gflops(sta.apply(meta_copy(model), configs["pruned"]), (1, *CLIP))
        configs[name] = match_gflops(model, (1, *CLIP), pruned, name)
    return sta.apply(model, configs[name]) if name in configs else model


def clip(batch: int) -> Tensor:
    """Smooth shapes that change slowly, and some noise."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(batch, 3, 8, 14, 14, generator=generator)
    smooth = F.interpolate(coarse, size=CLIP[1:], mode="trilinear")
    return smooth + 0.1 * torch.randn(smooth.shape, generator=generator)


def forward(name: str, size: str, r: int, batch: int) -> Callable[[], object]:
    """A forward ready to be measured in a process of its own."""
    model, pixels = build(name, size, r), clip(batch)

    def run() -> object:
        with torch.inference_mode():
            return model(pixels)

    return run


def by_kind(model: nn.Module, pixels: Tensor) -> dict[str, float]:
    """Share of each kind of work, over three forwards."""
    with torch.inference_mode(), profile() as seen:
        for _ in range(3):
            model(pixels)
    spent: Counter[str] = Counter()
    for event in seen.key_averages():
        kind = next((kind for kind, ops in KINDS.items() if event.key in ops), "everything else")
        spent[kind] += event.self_cpu_time_total
    total = sum(spent.values())
    return {kind: spent[kind] / total for kind in (*KINDS, "everything else")}


def by_part(model: nn.Module, pixels: Tensor) -> dict[str, float]:
    """Milliseconds of each stage, and of choosing tokens, which the stages include."""
    taken: Counter[str] = Counter()
    started: list[float] = []
    hooks = []

    def begin(module: nn.Module, args: object) -> None:
        started.append(time.perf_counter())

    def end(module: nn.Module, args: object, output: object, *, part: str) -> None:
        taken[part] += 1000 * (time.perf_counter() - started.pop())

    parts = [("patches", model.patch_embed)]
    for number, module in enumerate(model.features):
        kind = "merging" if number % 2 else "stage"
        parts.append((f"{kind} {number // 2 + 1}", module))
    for part, module in parts:
        hooks.append(module.register_forward_pre_hook(begin))
        hooks.append(module.register_forward_hook(partial(end, part=part)))
    original = StageStep.keep

    def timed(step: StageStep, *args: object) -> Tensor | None:
        start = time.perf_counter()
        kept = original(step, *args)
        taken["choosing"] += 1000 * (time.perf_counter() - start)
        return kept

    with mock.patch.object(StageStep, "keep", timed), torch.inference_mode():
        model(pixels)
    for hook in hooks:
        hook.remove()
    return {part: taken[part] for part in (*(name for name, _ in parts), "choosing")}


def table(title: str, columns: tuple[str, ...]) -> Table:
    made = Table(title=title)
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="t", choices=("t", "s", "b"))
    parser.add_argument("--r", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    options = parser.parse_args()
    pixels = clip(options.batch_size)
    models = {name: build(name, options.size, options.r) for name in NAMES}
    runs = {name: partial(model, pixels) for name, model in models.items()}
    timings = interleave(runs, rounds=options.rounds)
    threads = torch.get_num_threads()
    title = f"swin3d_{options.size}, batch {options.batch_size}, r={options.r}, {threads} threads"
    main_table = table(
        title, ("", "seconds", "spread", "over stock", "over dense", "GFLOPs", "peak MB")
    )
    console = Console(width=110)
    for name, model in models.items():
        memory = ""
        if options.memory:
            used = peak_megabytes(forward, name, options.size, options.r, options.batch_size)
            memory = f"{used:.0f}"
        main_table.add_row(
            name,
            f"{timings[name].median:.3f}",
            f"{timings[name].spread:.1%}",
            f"{speedup(timings, name, 'stock'):.2f}x",
            f"{speedup(timings, name, 'dense'):.2f}x",
            f"{sta.gflops(model, (1, *CLIP)):.1f}",
            memory,
        )
    console.print(main_table)
    kinds = {name: by_kind(model, pixels) for name, model in models.items()}
    kind_table = table("Where the time goes", ("", *kinds["stock"]))
    for name, shares in kinds.items():
        kind_table.add_row(name, *(f"{share:.0%}" for share in shares.values()))
    console.print(kind_table)
    spent = {name: by_part(model, pixels) for name, model in models.items()}
    part_table = table("Milliseconds by part", ("", *NAMES))
    for part in spent["stock"]:
        part_table.add_row(part, *(f"{spent[name][part]:.0f}" for name in NAMES))
    console.print(part_table)


if __name__ == "__main__":
    main()
