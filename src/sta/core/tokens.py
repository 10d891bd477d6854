"""Moving tokens about: gathering rows, filling a grid from the tokens that are left."""

from __future__ import annotations

import torch
from torch import Tensor


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows `index` of every batch element: (B, n, D), (B, K) -> (B, K, D).

    One `index_select` over the flattened batch copies whole rows, several times faster on a CPU
    than `gather` with an expanded index.
    """
    batch, tokens, dim = x.shape
    offset = torch.arange(batch, device=index.device).unsqueeze(1) * tokens  # (B, 1)
    rows = (index + offset).flatten()
    return x.reshape(batch * tokens, dim).index_select(0, rows).view(batch, -1, dim)


def nearest_kept(kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """For every place of a frame's grid, the kept token nearest to it (ties: the lower index).

    The squared distance is separable, so the search runs along rows, then along columns:
    `H * W * (H + W)` comparisons a frame, where looking at all pairs takes `(H * W) ** 2`.

    Args:
        kept: Kept places of each frame, (..., K), each `0 .. H * W - 1`.
        grid: (H, W).

    Returns:
        (..., H * W): grid indices, each a member of `kept`. Kept places map to themselves. A
        frame with nothing kept is undefined.
    """
    height, width = grid
    size = height * width
    lead = kept.shape[:-1]
    device = kept.device
    # One integer orders candidates by (distance, index): distance * size + index.
    far = size * (height * height + width * width + 1)
    place = torch.arange(size, device=device).view(height, width)
    present = torch.zeros(*lead, size, dtype=torch.bool, device=device)
    present = present.scatter(-1, kept, True).view(*lead, height, 1, width)
    columns = torch.arange(width, device=device)
    across = (columns.unsqueeze(1) - columns).square() * size  # (W, W'): from x to x'
    key = torch.where(present, across + place.view(height, 1, width), far)  # (..., H', W, W')
    key = key.amin(-1)  # (..., H', W): the best of row y' for column x
    rows = torch.arange(height, device=device)
    down = (rows.unsqueeze(1) - rows).square() * size  # (H, H')
    key = (key.unsqueeze(-3) + down.unsqueeze(-1)).amin(-2)  # (..., H, W)
    return (key % size).view(*lead, size)


def slot_of(kept: Tensor, size: int) -> Tensor:
    """Inverse of `kept`: place -> position in the kept list; 0 at dropped places.

    Args:
        kept: (..., K), grid indices.
        size: Number of places, H * W.

    Returns:
        (..., size).
    """
    slots = torch.arange(kept.shape[-1], device=kept.device).expand(kept.shape)
    return torch.zeros(*kept.shape[:-1], size, dtype=slots.dtype, device=kept.device).scatter(
        -1, kept, slots
    )


def fill_source(kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """Which kept token fills each place: (..., K) -> (..., H * W), positions in the kept list."""
    return slot_of(kept, grid[0] * grid[1]).gather(-1, nearest_kept(kept, grid))
