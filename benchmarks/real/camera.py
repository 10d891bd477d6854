"""A moving camera over real pixels: the crop pans, zooms and shakes across a clip."""

from __future__ import annotations

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
