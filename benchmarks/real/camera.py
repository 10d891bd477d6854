"""A moving camera over real pixels: the crop pans, zooms and shakes across a clip.

    python benchmarks/real/camera.py CACHE --out MOVING

Writes a copy of a frame cache (`sta data cache`) whose clips are seen through such a window. What
moves how is drawn from a clip's name, so it is the same every time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

#: Share of the picture that the window shows, so that it has room to move.
WINDOW = 0.85
#: Furthest pan from the first to the last frame, in half pictures; likewise zoom; shake per frame.
PAN, ZOOM, SHAKE = 0.30, 0.16, 0.015


class Path2D(NamedTuple):
    """Scale and centre of the window in each frame, (T,) each, in half pictures."""

    scale: Tensor
    x: Tensor
    y: Tensor


def still(frames: int, scale: float = 1.0, x: float = 0.0, y: float = 0.0) -> Path2D:
    """A camera that does not move."""
    return Path2D(*(torch.full((frames,), value) for value in (scale, x, y)))


def moving(frames: int, generator: torch.Generator) -> Path2D:
    """What a moving camera adds to a still one: a steady pan and zoom, and a shaking hand."""
    time = torch.linspace(-0.5, 0.5, frames)
    pan = (torch.rand(2, generator=generator) * 2 - 1) * PAN
    zoom = (torch.rand(1, generator=generator) * 2 - 1) * ZOOM
    shake = torch.randn(frames, 2, generator=generator) * SHAKE
    shake = shake * torch.rand(1, generator=generator)
    return Path2D(zoom * time, pan[0] * time + shake[:, 0], pan[1] * time + shake[:, 1])


def crop(
    video: Tensor, camera: Path2D, size: int, *, stretch: float = 1.0, angle: float = 0.0
) -> Tensor:
    """The window's view: (T, C, H, W) -> (T, C, size, size), a square of the picture."""
    across = video.shape[-2] / video.shape[-1]
    width, height = camera.scale * stretch * across, camera.scale / stretch
    cosine, sine = float(np.cos(angle)), float(np.sin(angle))
    rows = (
        torch.stack([width * cosine, -width * sine, camera.x * across], -1),
        torch.stack([height * sine, height * cosine, camera.y], -1),
    )
    shape = (len(video), video.shape[1], size, size)
    grid = F.affine_grid(torch.stack(rows, 1), list(shape), align_corners=False)
    return F.grid_sample(video, grid, padding_mode="reflection", align_corners=False)


def seen_by_a_moving_camera(frames: np.ndarray, name: str) -> np.ndarray:
    """Frames (T, H, W, 3), uint8, through a window whose way is drawn from the clip's name."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    motion = moving(len(frames), generator)
    camera = Path2D(WINDOW + motion.scale, motion.x, motion.y)
    video = torch.from_numpy(np.array(frames)).permute(0, 3, 1, 2).float()  # a copy: it is mapped
    seen = crop(video, camera, min(video.shape[-2:]))
    return seen.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    shutil.copytree(options.cache, options.out, ignore=shutil.ignore_patterns("*.npy"))
    files = sorted(options.cache.rglob("*.npy"))
    sizes = {}
    for file in files:
        name = str(file.relative_to(options.cache))
        moved = seen_by_a_moving_camera(np.load(file, mmap_mode="r"), name)
        np.save(options.out / name, moved)
        sizes[name] = moved.shape
    index = json.loads((options.out / "index.json").read_text())
    for video in index["videos"]:
        _, video["height"], video["width"], _ = sizes[video["file"]]
    (options.out / "index.json").write_text(json.dumps(index))
    print(f"{len(files)} clips in {options.out}")


if __name__ == "__main__":
    main()
