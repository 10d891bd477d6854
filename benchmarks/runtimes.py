"""Runtimes: a pruned and a stock model in PyTorch, compiled, in ONNX Runtime and OpenVINO, int8.

    python benchmarks/runtimes.py [--sizes S B] [--swin] [--batch-size 1] [--r 64] [--rounds 9]
        [--threads 2] [--skip compile onnxruntime]

16x224x224 (Swin-T: 32x224x224), interleaved in one run. Prints medians, spread and the ratio to
stock eager PyTorch, and each pruned export's logits and kept tokens beside the model itself.
Weights are random: time does not depend on them; `--depth 2` makes models to try the script with.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torchvision.models.video import SwinTransformer3d
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import sta
from sta import runtime
from sta.backbones.zoo.video_model import describe
from sta.measure.memory import keep_memory
from sta.measure.timing import interleave, speedup
from sta.runtime import probe
from sta.runtime.comparison import compare
from sta.runtime.sessions import from_model
from sta.video.clips import drawn_clips, full_batches

SIZES = {"S": (384, 12, 6), "B": (768, 12, 12)}
BASELINE = "stock torch"
#: Stock or pruned, runtime, precision; the first is what the others are compared with.
CONTENDERS = (
    ("stock", "torch", "float32"),
    ("pruned", "torch", "float32"),
    ("pruned", "compile", "float32"),
    ("pruned", "onnxruntime", "float32"),
    ("pruned", "openvino", "float32"),
    ("stock", "openvino", "float32"),
    ("stock", "openvino", "int8"),
    ("pruned", "openvino", "int8"),
)


def vit(size: str, depth: int | None) -> nn.Module:
    width, layers, heads = SIZES[size]
    torch.manual_seed(0)
    config = VideoMAEConfig(
        hidden_size=width,
        num_hidden_layers=depth or layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=400,
    )
    return VideoMAEForVideoClassification(config).eval()


def swin(depth: int | None) -> nn.Module:
    torch.manual_seed(0)
    return SwinTransformer3d(
        patch_size=[2, 4, 4],
        embed_dim=96,
        depths=[2, 2, depth or 6, 2],
        num_heads=[3, 6, 12, 24],
        window_size=[8, 7, 7],
    ).eval()


def name_of(kind: str, on: str, precision: str) -> str:
    return f"{kind} {on}" if precision == "float32" else f"{kind} {on} {precision}"


def clips_for(model: nn.Module, batch: int, count: int, split: str) -> list[Tensor]:
    """Drawn clips in whole batches."""
    clip = describe(model).clip
    frames = drawn_clips(range(max(count, batch)), clip.views, split)
    return [clip.pixels(clips) for clips in full_batches(frames, batch)]


def prepared(
    models: dict[str, nn.Module], options: argparse.Namespace, console: Console
) -> tuple[dict[str, Callable[[Tensor], Tensor]], list[Tensor]]:
    """Every contender's function, and clips; prints how the pruned exports compare."""
    stock = models["stock"]
    batches = clips_for(stock, options.batch_size, 2, "test")
    calibration = clips_for(stock, options.batch_size, options.calibration, "train")
    runs: dict[str, Callable[[Tensor], Tensor]] = {}
    for kind, on, precision in CONTENDERS:
        if on in options.skip or precision in options.skip:
            continue
        name, model = name_of(kind, on, precision), models[kind]
        if (why := runtime.available()[on]) is not None:
            console.print(f"{name}: left out, {why}")
            continue
        if on in ("torch", "compile"):
            runs[name] = runtime.prepare(model, batches[0], on, threads=options.threads)
            continue
        session = from_model(model, batches[0], on, precision, calibration, options.threads)
        runs[name] = lambda pixels, session=session: session(pixels)[0]
        if kind == "pruned":
            console.print(f"{name}: {'; '.join(compare(model, session, batches).lines())}")
    return runs, batches


def measure(title: str, models: dict[str, nn.Module], options: argparse.Namespace) -> Table:
    console = Console(width=160)
    runs, batches = prepared(models, options, console)
    timings = interleave(
        {name: partial(run, batches[0]) for name, run in runs.items()}, rounds=options.rounds
    )
    table = Table(
        title=f"{title}, batch {options.batch_size}, r={options.r}, {options.threads} threads"
    )
    for column in ("", "median s", "spread", f"of {BASELINE}"):
        table.add_column(column, justify="right" if column else "left")
    for name, timing in timings.items():
        ratio = speedup(timings, name, BASELINE)
        table.add_row(name, f"{timing.median:.4f}", f"{timing.spread:.1%}", f"{ratio:.2f}x")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="*", default=["S"], choices=SIZES)
    parser.add_argument("--swin", action="store_true")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--r", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--calibration", type=int, default=4, help="clips for int8")
    parser.add_argument("--depth", type=int, help="blocks (Swin: of stage 3)")
    parser.add_argument("--skip", nargs="*", default=[], help="runtimes or precisions")
    options = parser.parse_args()
    keep_memory()
    torch.set_num_threads(options.threads)
    if "int8" not in options.skip:
        probe.make_safe("openvino", "int8")
    builders = {f"ViT-{size}": partial(vit, size, options.depth) for size in options.sizes}
    if options.swin:
        builders["Swin-T"] = partial(swin, options.depth)
    for title, build in builders.items():
        pruned = sta.apply(build(), sta.STAConfig(r=options.r))
        table = measure(title, {"stock": build(), "pruned": pruned}, options)
        Console(width=160).print(table)


if __name__ == "__main__":
    main()
