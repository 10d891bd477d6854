"""Tokens and their places: the grid, gathering rows, finding the nearest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Grid(NamedTuple):
    """Places for tokens: frames x height x width."""

    frames: int
    height: int
    width: int

    @property
    def tokens(self) -> int:
        """Places per frame."""
        return self.height * self.width

    @property
    def frame(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height, self.width


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows `index` of every batch element: (B, n, D), (B, K) -> (B, K, D).

    One `index_select` over the flattened batch copies whole rows, several times faster on a CPU
    than `gather` with an expanded index.
    """
    batch, tokens, dim = x.shape
    offset = torch.arange(batch, device=index.device).unsqueeze(1) * tokens  # (B, 1)
    rows = (index + offset).flatten()
    return x.reshape(batch * tokens, dim).index_select(0, rows).view(batch, -1, dim)


def clip_indices(kept: Tensor, tokens: int) -> Tensor:
    """Indices into frames of so many tokens, (B, T, K), as indices into the clip, (B, T * K).

    Those into the clip, (B, K), stay as they are.
    """
    if kept.ndim == 2:
        return kept
    start = torch.arange(kept.shape[1], device=kept.device).view(-1, 1) * tokens
    return (kept + start).flatten(1)


def nearest_present(present: Tensor, grid: tuple[int, int]) -> Tensor:
    """For every place of a frame's grid, the present token nearest to it (ties: the lower index).

    The squared distance is separable, so the search runs along rows, then along columns:
    `H * W * (H + W)` comparisons a frame, where looking at all pairs takes `(H * W) ** 2`.

    Args:
        present: Which places hold a token, bool, (..., H * W).
        grid: (H, W).

    Returns:
        (..., H * W): grid indices of present places, which map to themselves. The values of a
        frame that holds nothing mean nothing.
    """
    height, width = grid
    size = height * width
    lead, device = present.shape[:-1], present.device
    # One integer orders candidates by (distance, index): distance * size + index.
    far = size * (height * height + width * width)
    place = torch.arange(size, device=device).view(height, 1, width)
    columns = torch.arange(width, device=device)
    rows = torch.arange(height, device=device)
    across = (columns.unsqueeze(1) - columns).square() * size + place  # (H', W, W'): x to x'
    down = ((rows.unsqueeze(1) - rows).square() * size).unsqueeze(-1)  # (H, H', 1): y to y'
    key = torch.where(present.view(*lead, height, 1, width), across, far)  # (..., H', W, W')
    key = key.amin(-1)  # (..., H', W): the best of row y' for column x
    key = (key.unsqueeze(-3) + down).amin(-2)  # (..., H, W)
    return key.view(*lead, size) % size


def present_at(kept: Tensor, size: int) -> Tensor:
    """Which of `size` places are in a list: (..., K) -> (..., size), bool."""
    empty = torch.zeros(*kept.shape[:-1], size, dtype=torch.bool, device=kept.device)
    return empty.scatter(-1, kept, True)


def nearest_kept(kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """`nearest_present` for a list of kept places: (..., K) -> (..., H * W)."""
    return nearest_present(present_at(kept, grid[0] * grid[1]), grid)


def slot_of(kept: Tensor, size: int) -> Tensor:
    """Inverse of `kept`, (..., K): the position in it of each place, (..., size); 0 if dropped."""
    slots = torch.arange(kept.shape[-1], device=kept.device).expand(kept.shape)
    empty = torch.zeros(*kept.shape[:-1], size, dtype=slots.dtype, device=kept.device)
    return empty.scatter(-1, kept, slots)
