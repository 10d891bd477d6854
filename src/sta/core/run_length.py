"""Run-length tokenization: a tubelet that repeats the one before it is not kept."""

from __future__ import annotations

import torch
from torch import Tensor


def run_change(pixels: Tensor, tubelet: tuple[int, int, int]) -> Tensor:
    """How much each tubelet's last frame differs from the first one of the tubelet before it.

    Args:
        pixels: (B, F, C, H, W).
        tubelet: (frames, height, width) of a tubelet.

    Returns:
        Mean absolute difference, (B, T, N); infinite for the first tubelets, which begin runs.
    """
    t, h, w = tubelet
    batch, frames, channels, height, width = pixels.shape
    times = max(1, frames // t)  # V-JEPA 2 repeats an image that is less than a tubelet
    cut = pixels.detach().float()[:, : times * t, :, : height // h * h, : width // w * w]
    begin = cut.new_full((batch, 1, height // h * (width // w)), torch.inf)
    if times == 1:
        return begin
    cut = cut.reshape(batch, times, t, channels, height // h, h, width // w, w)
    change = (cut[:, 1:, -1] - cut[:, :-1, 0]).abs().mean(dim=(2, 4, 6)).flatten(2)
    return torch.cat([begin, change], 1)
