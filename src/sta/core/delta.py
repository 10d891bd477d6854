"""Filling dropped places by what changed around them since they were dropped."""

from __future__ import annotations

import torch
from torch import Tensor

from sta.core.grid import Grid
from sta.core.tokens import take

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
