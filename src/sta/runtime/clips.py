"""Clips to check and to calibrate with: of videos, or drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from sta.data.digits import DigitActions, Split
from sta.video.views import ViewSpec


def drawn(split: Split, count: int, spec: ViewSpec) -> NDArray[np.uint8]:
    """Digit clips in the size that a model takes, (B, T, H, W, 3)."""
    raw, _ = DigitActions(split, size=count).batch(range(count))
    frames = np.linspace(0, raw.shape[1] - 1, spec.frames).round().astype(int)
    raw = raw[:, frames]
    if raw.shape[2:4] == (spec.size, spec.size):
        return raw
    flat = torch.from_numpy(raw).flatten(0, 1).permute(0, 3, 1, 2).float()
    scaled = F.interpolate(flat, size=(spec.size, spec.size), mode="bilinear", antialias=True)
    back = scaled.round().byte().permute(0, 2, 3, 1).unflatten(0, raw.shape[:2])
    return back.contiguous().numpy()


def read(videos: Sequence[str], spec: ViewSpec) -> NDArray[np.uint8]:
    """The views of videos: files, folders or lists."""
    from sta.inference.lists import find_videos
    from sta.video import read_views

    return np.concatenate(
        [read_views(e.source, spec).clips() for e in find_videos(list(videos), None)]
    )


def full_batches(clips: NDArray[np.uint8], size: int) -> list[NDArray[np.uint8]]:
    """Clips in batches of one size; the last is filled up with the first clips."""
    missing = -len(clips) % size
    whole = np.concatenate([clips, np.resize(clips, (missing, *clips.shape[1:]))])
    return [whole[at : at + size] for at in range(0, len(whole), size)]
