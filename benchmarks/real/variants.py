"""Clips of a frame cache, changed: under a moving camera, or as controls of what labels need.

    python benchmarks/real/variants.py CACHE --as moving --out MOVING

`moving` looks through a window that pans, zooms and shakes; `aside` through one that stands still
somewhere, from the first or the second frame on; `shuffled` has the frames in any order; `single`
repeats the middle frame. What is drawn is drawn from a clip's name and the number of the take, so
it is the same every time. Writes a cache (`sta data cache`) with the same videos.
"""

from __future__ import annotations

import argparse
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from camera import WINDOW, Path2D, crop, moving, still


def seen_by_a_moving_camera(frames: np.ndarray, seed: int) -> np.ndarray:
    """A square of the picture through a moving window."""
    motion = moving(len(frames), torch.Generator().manual_seed(seed))
    return _seen(frames, Path2D(WINDOW + motion.scale, motion.x, motion.y))


def seen_from_aside(frames: np.ndarray, seed: int) -> np.ndarray:
    """Most of the picture, from the first or the second frame on."""
    draw = np.random.default_rng(seed)
    scale = draw.uniform(WINDOW, 1)
    x, y = draw.uniform(scale - 1, 1 - scale, 2)
    first = int(draw.integers(2))
    later = frames[np.minimum(np.arange(len(frames)) + first, len(frames) - 1)]
    return _seen(later, still(len(frames), scale, x, y))


def _seen(frames: np.ndarray, camera: Path2D) -> np.ndarray:
    video = torch.from_numpy(np.array(frames)).permute(0, 3, 1, 2).float()  # a copy: it is mapped
    seen = crop(video, camera, min(video.shape[-2:]))
    return seen.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def shuffled(frames: np.ndarray, seed: int) -> np.ndarray:
    """The frames in any order."""
    return frames[np.random.default_rng(seed).permutation(len(frames))]


def single(frames: np.ndarray, seed: int) -> np.ndarray:
    """The middle frame, as often as there were frames."""
    return np.repeat(frames[len(frames) // 2][None], len(frames), axis=0)


#: Frames (T, H, W, 3), uint8, and a seed to the changed ones.
VARIANTS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "moving": seen_by_a_moving_camera,
    "aside": seen_from_aside,
    "shuffled": shuffled,
    "single": single,
}


def make(cache: Path, out: Path, variant: str, take: int = 0) -> int:
    """Write the changed cache; how many clips it has. Other takes draw something else."""
    shutil.copytree(cache, out, ignore=shutil.ignore_patterns("*.npy"))
    index = json.loads((out / "index.json").read_text())
    for video in index["videos"]:
        frames = np.load(cache / video["file"], mmap_mode="r")
        # By the name in the list: that of a cached file is another wherever it is cached.
        seed = (zlib.crc32(video["path"].encode()) + take) % 2**32
        changed = VARIANTS[variant](frames, seed)
        np.save(out / video["file"], changed)
        _, video["height"], video["width"], _ = changed.shape
    (out / "index.json").write_text(json.dumps(index))
    return len(index["videos"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--as", dest="variant", choices=VARIANTS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    count = make(options.cache, options.out, options.variant)
    print(f"{count} clips in {options.out}")


if __name__ == "__main__":
    main()
