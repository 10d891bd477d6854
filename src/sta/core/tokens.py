"""Moving tokens about: gathering rows, filling a grid from the tokens that are left."""

from __future__ import annotations

import torch
from torch import Tensor

# Squared distances in a frame count so much more than those in time: what stands still, and that is
# most of what is dropped, is found again at the same place in a frame before or after.
ACROSS = 3


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows `index` of every batch element: (B, n, D), (B, K) -> (B, K, D).

    One `index_select` over the flattened batch copies whole rows, several times faster on a CPU
    than `gather` with an expanded index.
    """
    batch, tokens, dim = x.shape
    offset = torch.arange(batch, device=index.device).unsqueeze(1) * tokens  # (B, 1)
    rows = (index + offset).flatten()
    return x.reshape(batch * tokens, dim).index_select(0, rows).view(batch, -1, dim)


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
    return _nearest_key(present, grid) % (grid[0] * grid[1])


def _nearest_key(present: Tensor, grid: tuple[int, int]) -> Tensor:
    """For every place: squared distance to its nearest present token * H * W + that one's index."""
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
    return key.view(*lead, size)


def _present(kept: Tensor, size: int) -> Tensor:
    """Which of `size` places are in a list: (..., K) -> (..., size), bool."""
    empty = torch.zeros(*kept.shape[:-1], size, dtype=torch.bool, device=kept.device)
    return empty.scatter(-1, kept, True)


def nearest_kept(kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """`nearest_present` for a list of kept places: (..., K) -> (..., H * W)."""
    return nearest_present(_present(kept, grid[0] * grid[1]), grid)


def slot_of(kept: Tensor, size: int) -> Tensor:
    """Inverse of `kept`: place -> position in the kept list; 0 at dropped places.

    Args:
        kept: (..., K), indices below `size`.
        size: Number of places.

    Returns:
        (..., size).
    """
    slots = torch.arange(kept.shape[-1], device=kept.device).expand(kept.shape)
    empty = torch.zeros(*kept.shape[:-1], size, dtype=slots.dtype, device=kept.device)
    return empty.scatter(-1, kept, slots)


def fill_source(kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """Which kept token fills each place: (..., K) -> (..., H * W), positions in the kept list."""
    return slot_of(kept, grid[0] * grid[1]).gather(-1, nearest_kept(kept, grid))


def fill_source_across(kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """`fill_source` from all frames: the token nearest in space and time (ties: the earlier one).

    Args:
        kept: Kept places of each frame, at least one, (B, T, K).
        grid: (H, W).

    Returns:
        (B, T * H * W), positions in the clip's kept list of T * K.
    """
    batch, frames, each = kept.shape
    size = grid[0] * grid[1]
    key = _nearest_key(_present(kept, size), grid)  # (B, T', N)
    distance, place = key // size, key % size
    time = torch.arange(frames, device=kept.device).view(-1, 1)
    gap = (time - time.view(1, -1)).square().unsqueeze(-1)  # (T, T', 1)
    slot = slot_of(kept, size).gather(-1, place) + time * each  # (B, T', N)
    length = frames * each
    near = (gap + ACROSS * distance.unsqueeze(1)) * length + slot.unsqueeze(1)  # (B, T, T', N)
    return (near.amin(2) % length).view(batch, frames * size)


def fill_source_clip(kept: Tensor, frames: int, grid: tuple[int, int]) -> Tensor:
    """`fill_source` for tokens spread over a clip, where a frame may have lost all of its own.

    An empty frame is filled from the nearest frame that is not (ties: the earlier one).

    Args:
        kept: Indices into the T * H * W grid, (B, K), in any order.
        frames: T.
        grid: (H, W).

    Returns:
        (B, T * H * W), positions in the kept list.
    """
    batch, size = kept.shape[0], grid[0] * grid[1]
    present = _present(kept, frames * size).view(batch, frames, size)
    nearest = nearest_present(present, grid)  # (B, T, N), in the frame
    time = torch.arange(frames, device=kept.device)
    gap = (time.unsqueeze(1) - time).abs()  # (T, T')
    gap = torch.where(present.any(-1).unsqueeze(1), gap, frames)  # (B, T, T')
    source = gap.argmin(-1, keepdim=True)  # (B, T, 1): the frame that fills frame t
    place = source * size + nearest.gather(1, source.expand_as(nearest))
    return slot_of(kept, frames * size).gather(-1, place.flatten(1))
