"""Which tubelets or patches changed since the frame before."""

from __future__ import annotations

import torch
from torch import Tensor

from sta.core.options import Budget, Direction

Tubelet = tuple[int, int, int]


def tubelets(pixels: Tensor, tubelet: Tubelet) -> Tensor:
    """A clip cut into tubelets of (frames, height, width); what makes no whole one is left out.

    (B, F, C, H, W) -> (B, F / t, t, C, H / h, h, W / w, w), float32.
    """
    t, h, w = tubelet
    batch, frames, channels, height, width = pixels.shape
    cut = pixels.detach().float()[:, : frames // t * t, :, : height // h * h, : width // w * w]
    return cut.reshape(batch, frames // t, t, channels, height // h, h, width // w, w)


def tubelet_change(pixels: Tensor, tubelet: Tubelet, order: Direction = "F") -> Tensor:
    """Mean absolute change of each tubelet's pixels since the one before it in time.

    (B, F, C, H, W) -> (B, T, N). The order "B" compares with the one after it instead. The first
    frame, which has none before it, is compared with the second; the last one, with "B", with the
    one before it.
    """
    if pixels.shape[1] < 2 * tubelet[0]:
        return _single_frame(pixels, tubelet, 0.0)
    change = tubelets(pixels, tubelet).diff(dim=1).abs().mean(dim=(2, 3, 5, 7)).flatten(2)
    ends = (change[:, :1], change) if order == "F" else (change, change[:, -1:])
    return torch.cat(ends, 1)


def run_change(pixels: Tensor, tubelet: Tubelet) -> Tensor:
    """How much each tubelet's last frame differs from the first one of the tubelet before it.

    (B, F, C, H, W) -> mean absolute difference, (B, T, N); infinite for the first tubelets, which
    begin runs.
    """
    begin = _single_frame(pixels, tubelet, torch.inf)
    if pixels.shape[1] < 2 * tubelet[0]:
        return begin
    cut = tubelets(pixels, tubelet)
    change = (cut[:, 1:, -1] - cut[:, :-1, 0]).abs().mean(dim=(2, 4, 6)).flatten(2)
    return torch.cat([begin, change], 1)


def embedding_change(x: Tensor) -> Tensor:
    """Distance of each patch embedding from the one before it in time: (B, T, N, D) -> (B, T, N).

    The first frame, which has none before it, is compared with the second.
    """
    if x.shape[1] == 1:
        return torch.zeros_like(x[..., 0])
    change = x.diff(dim=1).norm(dim=-1)  # (B, T - 1, N)
    return torch.cat([change[:, :1], change], 1)


def keep_changed(change: Tensor, r: int, budget: Budget = "frame") -> Tensor:
    """The tokens that changed most, ascending: (B, T, N) -> (B, T, N - r), or, if they compete over
    the whole clip, indices into its T * N, (B, T * (N - r))."""
    _, frames, tokens = change.shape
    keep = tokens - r
    if budget == "clip":
        change, keep = change.flatten(1), frames * keep
    order = (-change).argsort(dim=-1, stable=True)
    return order[..., :keep].sort(-1).values


def _single_frame(pixels: Tensor, tubelet: Tubelet, value: float) -> Tensor:
    """One frame of tubelets, (B, 1, N), also where V-JEPA 2 repeats an image that is even less."""
    _, h, w = tubelet
    batch, _, _, height, width = pixels.shape
    return pixels.new_full((batch, 1, height // h * (width // w)), value, dtype=torch.float32)
