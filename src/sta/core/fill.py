"""What stands in for dropped tokens: the nearest kept one, a similar one, or their own last value.

`fill_source` and `fill_source_similar` say which kept token fills each place: in Video Swin's
windows and before its next patch merging, and where `sta.restore` makes a grid whole again.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sta.core.tokens import Grid, nearest_kept, nearest_present, present_at, slot_of, take


def fill_source(kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """Which kept token fills each place: (..., K) -> (..., H * W), positions in the kept list."""
    return slot_of(kept, grid[0] * grid[1]).gather(-1, nearest_kept(kept, grid))


def fill_source_similar(tokens: Tensor, kept: Tensor, grid: tuple[int, int]) -> Tensor:
    """`fill_source` from all frames: of the kept token nearest to a place in each of them, the one
    most similar to the token that was dropped there (cosine of tokens less the clip's mean).

    Args:
        tokens: All tokens of the clip, (B, T * H * W, C).
        kept: Kept places of each frame, at least one, (B, T, K).
        grid: (H, W).

    Returns:
        (B, T * H * W), positions in the clip's kept list of T * K.
    """
    batch, frames, each = kept.shape
    size = grid[0] * grid[1]
    present = present_at(kept, size)  # (B, T, N)
    place = nearest_present(present, grid)  # (B, T', N)
    time = torch.arange(frames, device=kept.device).view(-1, 1)
    slot = slot_of(kept, size).gather(-1, place) + time * each  # (B, T', N)
    tokens = tokens.float()
    unit = F.normalize(tokens - tokens.mean(1, keepdim=True), dim=-1)
    there = take(unit, (place + time * size).flatten(1)).view(batch, frames, size, -1)
    here = unit.view_as(there)
    similar = here.transpose(1, 2) @ there.permute(0, 2, 3, 1)  # (B, N, T, T')
    own = (time == time.view(1, -1)) & present.transpose(1, 2).unsqueeze(-1)  # a kept token itself
    best = similar.masked_fill(own, 2.0).argmax(-1)  # (B, N, T)
    return slot.gather(1, best.transpose(1, 2)).flatten(1)


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
    present = present_at(kept, frames * size).view(batch, frames, size)
    nearest = nearest_present(present, grid)  # (B, T, N), in the frame
    time = torch.arange(frames, device=kept.device)
    gap = (time.unsqueeze(1) - time).abs()  # (T, T')
    gap = torch.where(present.any(-1).unsqueeze(1), gap, frames)  # (B, T, T')
    source = gap.argmin(-1, keepdim=True)  # (B, T, 1): the frame that fills frame t
    place = source * size + nearest.gather(1, source.expand_as(nearest))
    return slot_of(kept, frames * size).gather(-1, place.flatten(1))


# Squared distances in a frame count so much more than those in time: what stands still, and that is
# most of what is dropped, is found again at the same place in a frame before or after.
ACROSS = 3
#: Kept tokens whose change a dropped place takes the mean of.
NEIGHBOURS = 4


def delta_fill(now: Tensor, then: Tensor, kept: Tensor, places: Tensor, grid: Grid) -> Tensor:
    """What a step received, brought up to date: kept tokens are what they are now, a dropped one is
    its last value plus the mean change of the nearest kept ones.

    Nearest are tokens in space and time.
    Where tokens were merged, see `delta_unmerge`.

    Args:
        now: Kept tokens, (B, K, D).
        then: All tokens that the step received, (B, n, D).
        kept: Which of these were kept, (B, K).
        places: Where on the clip's grid all of them belong, (B, n).
        grid: The clip's grid.

    Returns:
        (B, n, D).
    """
    change = now - take(then, kept)  # (B, K, D)
    nearest = _nearest(places, kept, grid)  # (B, n, m)
    batch, rows, count = nearest.shape
    moved = take(change, nearest.flatten(1)).view(batch, rows, count, -1).mean(2)
    return (then + moved).scatter(1, kept.unsqueeze(-1).expand_as(now), now)


def delta_unmerge(now: Tensor, left: Tensor, then: Tensor, into: Tensor) -> Tensor:
    """What a step received and merged, brought up to date: each token is its last value plus what
    the mean that it went into has changed by since. That holds for those that stayed, too: they
    are such means.

    Args:
        now: Merged tokens, (B, K, D).
        left: The same when the step left them, (B, K, D).
        then: All tokens that the step received, (B, n, D).
        into: Which merged token each went into, (B, n).

    Returns:
        (B, n, D).
    """
    return then + take(now - left, into)


def _nearest(places: Tensor, kept: Tensor, grid: Grid) -> Tensor:
    """For every token the nearest kept ones (ties: the earlier), positions in `kept`: (B, n, m)."""
    time, place = places // grid.tokens, places % grid.tokens
    scaled = torch.stack([time, place // grid.width, place % grid.width], -1).float()  # (B, n, 3)
    scaled = scaled * scaled.new_tensor([1.0, ACROSS**0.5, ACROSS**0.5])
    chosen = take(scaled, kept)  # (B, K, 3)
    count = kept.shape[1]
    # Whole numbers, so that ties are ties, whatever the machine.
    distance = torch.cdist(scaled, chosen).square().round().long()  # (B, n, K)
    order = distance * count + torch.arange(count, device=kept.device)
    return order.topk(min(NEIGHBOURS, count), largest=False).values % count
