"""Features of fewer tokens: how far from the unpruned model's, and what retrieval loses.

    python benchmarks/features.py [--models vit-digits swin-digits] [--clips 64] [--retrieval 400]

Digit actions of the test split. The error is that of dense features of the whole model (all places
of the grid) against the unpruned model's, as a share of those features' variance, with dropped
places filled by the nearest kept token or by what changed around them. Retrieval finds each clip's
nearest neighbours among all others by the cosine of pooled features; a hit has the same label. The
last table is the time per window of overlapping windows, frames shared and not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import sta
from sta.backbones.encode import encode
from sta.backbones.zoo.video_model import VideoModel, load_video_model
from sta.measure.matching import match_gflops
from sta.measure.stats import bootstrap, paired_difference, wilson
from sta.methods import Config, r_of
from sta.video.decode import read_views
from sta.video.digits import DigitActions
from sta.video.encode import write_video
from sta.video.windows import WindowSpec, read_windows

BATCH = 16


def features(opened: VideoModel, frames: NDArray[np.uint8], **options: object) -> torch.Tensor:
    """Features of clips, in batches."""
    with torch.inference_mode():
        parts = [
            encode(opened.model, opened.clip.pixels(frames[at : at + BATCH]), **options)  # type: ignore[arg-type]
            for at in range(0, len(frames), BATCH)
        ]
    return torch.cat(parts)


def fill_errors(name: str, clips: int) -> Table:
    """Error of dense features at three r, for both ways to fill."""
    opened = load_video_model(name)
    frames, _ = DigitActions("test").batch(range(clips))
    full = features(opened, frames, dense=True)
    variance = full.var(dim=(0, 1, 2)).sum()
    shape, stock = opened.clip.shape(), sta.gflops(opened.model, opened.clip.shape())
    table = Table("r", "GFLOPs", "nearest", "delta", title=f"{name}: error of dense features")
    for share in (0.75, 0.62, 0.5):
        config = match_gflops(opened.model, shape, share * stock, "sta")
        sta.apply(opened.model, config)
        cells = []
        for fill in ("nearest", "delta"):
            found = features(opened, frames, dense=True, fill=fill)
            errors = (found - full).square().sum(-1).mean(dim=(1, 2)) / variance  # per clip
            low, high = bootstrap(errors.tolist())
            cells.append(f"{errors.mean():.3f} ({low:.3f} to {high:.3f})")
        less = 100 * (1 - sta.gflops(opened.model, shape) / stock)
        table.add_row(str(r_of(config)), f"-{less:.0f} %", *cells)
        sta.remove(opened.model)
    return table


def hits(vectors: NDArray[np.float32], labels: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Whether one of a clip's `count` nearest neighbours has its label."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -np.inf)
    nearest = np.argsort(-likeness, axis=1)[:, :count]
    return (labels[nearest] == labels[:, None]).any(1)


def retrieval(name: str, clips: int) -> Table:
    """Recall at 1 and 5, unpruned and at half the GFLOPs, on the same clips."""
    opened = load_video_model(name)
    shape, stock = opened.clip.shape(), sta.gflops(opened.model, opened.clip.shape())
    frames, labels = DigitActions("test").batch(range(clips))
    half = match_gflops(opened.model, shape, stock / 2, "sta")
    table = Table("", "GFLOPs", "recall@1", "recall@5", title=f"{name}: retrieval, {clips} clips")
    before: dict[int, NDArray[np.bool_]] = {}
    configs: list[tuple[str, Config]] = [("unpruned", sta.STAConfig(r=0))]
    for title, config in [*configs, (f"STA, r={r_of(half)}", half)]:
        sta.apply(opened.model, config)
        vectors = features(opened, frames).numpy()
        cells = []
        for count in (1, 5):
            right = hits(vectors, labels, count)
            low, high = wilson(int(right.sum()), clips)
            text = f"{100 * right.mean():.1f} % ({100 * low:.1f} to {100 * high:.1f})"
            if count in before:
                gained, lost = (right & ~before[count]).sum(), (before[count] & ~right).sum()
                down, up = paired_difference(int(gained), int(lost), clips)
                text += f"; {100 * down:+.1f} to {100 * up:+.1f} points"
            before.setdefault(count, right)
            cells.append(text)
        less = 100 * (1 - sta.gflops(opened.model, shape) / stock)
        table.add_row(title, f"-{less:.0f} %", *cells)
        sta.remove(opened.model)
    return table


def sharing(seconds: int = 30, overlap: int = 4) -> Table:
    """Time per window with frames shared, against each window decoded and prepared by itself."""
    view = load_video_model("vit-digits").clip.views
    rng = np.random.default_rng(0)
    ground = rng.integers(0, 255, (240, 320, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        moving = (np.roll(ground, number, 1) for number in range(25 * seconds))
        path = str(write_video(Path(folder) / "long.mp4", moving))
        spec = WindowSpec(view, every=view.frames * view.stride / 25 / overlap)
        cut = []
        for number in range(6):  # what a window costs without sharing: a clip of its own
            first = spec.start(number, 25)
            part = (np.roll(ground, first + k, 1) for k in range(spec.span(25)))
            cut.append(str(write_video(Path(folder) / f"{number}.mp4", part)))
        start = time.perf_counter()
        count = sum(1 for _ in read_windows(path, spec))
        shared = (time.perf_counter() - start) / count
        start = time.perf_counter()
        for name in cut:
            read_views(name, spec.view).clips()
        alone = (time.perf_counter() - start) / len(cut)
    table = Table(
        "windows", "ms a window", title=f"{overlap}x overlap, 320 x 240, {view.frames} frames"
    )
    table.add_row("frames shared", f"{1000 * shared:.1f}")
    table.add_row("each by itself", f"{1000 * alone:.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["vit-digits", "swin-digits"])
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--retrieval", type=int, default=400)
    options = parser.parse_args()
    console = Console(width=140)
    for name in options.models:
        console.print(fill_errors(name, options.clips))
        console.print(retrieval(name, options.retrieval))
    console.print(sharing())


if __name__ == "__main__":
    main()
