"""Frame difference (the run-length baseline): which tubelets changed since the frame before."""

from __future__ import annotations

import torch
from torch import Tensor

from sta.core.options import Budget, Direction


def tubelet_change(pixels: Tensor, tubelet: tuple[int, int, int], order: Direction = "F") -> Tensor:
    """Mean absolute change of each tubelet's pixels since the one before it in time.

    Args:
        pixels: (B, F, C, H, W).
        tubelet: (frames, height, width) of a tubelet.
        order: "B" compares with the one after it instead.

    Returns:
        (B, T, N). The first frame, which has none before it, is compared with the second; the last
        one, with "B", with the one before it.
    """
    t, h, w = tubelet
    batch, frames, channels, height, width = pixels.shape
    if frames < 2 * t:  # a single frame of tokens; V-JEPA 2 repeats an image that is even less
        return pixels.new_zeros(batch, 1, height // h * (width // w), dtype=torch.float32)
    cut = pixels.detach().float()[:, : frames // t * t, :, : height // h * h, : width // w * w]
    cut = cut.reshape(batch, frames // t, t, channels, height // h, h, width // w, w)
    change = cut.diff(dim=1).abs().mean(dim=(2, 3, 5, 7)).flatten(2)  # (B, T - 1, N)
    ends = (change[:, :1], change) if order == "F" else (change, change[:, -1:])
    return torch.cat(ends, 1)


def keep_changed(change: Tensor, r: int, budget: Budget = "frame") -> Tensor:
    """The tokens that changed most, ascending: (B, T, N) -> (B, T, N - r), or, if they compete over
    the whole clip, indices into its T * N, (B, T * (N - r))."""
    _, frames, tokens = change.shape
    keep = tokens - r
    if budget == "clip":
        change, keep = change.flatten(1), frames * keep
    order = (-change).argsort(dim=-1, stable=True)
    return order[..., :keep].sort(-1).values
