"""Image-based pruning of one frame: how the first frame of a chain loses its tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sta.core.noise import noise
from sta.core.options import FirstFrame
from sta.core.tokens import take


def bipartite_match(metric: Tensor) -> tuple[Tensor, Tensor]:
    """ToMe's bipartite soft matching: each even-numbered token against all odd-numbered ones.

    Of L2-normalised features, (B, N, C), N at least 2: the similarity of the best match, and which
    odd token it is (0 .. N // 2 - 1), both (B, ceil(N / 2)).
    """
    best = (metric[:, ::2] @ metric[:, 1::2].transpose(-1, -2)).max(-1)
    return best.values, best.indices


def tome_prune(metric: Tensor, r: int) -> Tensor:
    """Drop the r < N even-numbered tokens whose best match is most similar.

    One matching can drop at most the even-numbered half; beyond that it is repeated on what is
    left. L2-normalised features, (B, N, C) -> kept indices, (B, N - r), ascending.
    """
    batch, tokens, _ = metric.shape
    kept = torch.arange(tokens, device=metric.device).expand(batch, tokens)
    while r > 0:
        similarity, _ = bipartite_match(take(metric, kept) if kept.shape[1] < tokens else metric)
        even, odd = kept[:, ::2], kept[:, 1::2]
        drop = min(r, even.shape[1])
        order = similarity.argsort(dim=-1, stable=True)
        even = even.gather(-1, order[:, : even.shape[1] - drop])
        kept = torch.cat([even, odd], -1).sort(-1).values
        r -= drop
    return kept


def random_prune(tokens: int, r: int, *, seed: int, device: torch.device | None = None) -> Tensor:
    """Drop r random tokens: (N - r,), ascending."""
    order = noise((tokens,), seed=seed, device=device).argsort(stable=True)
    return order[: tokens - r].sort().values


def grid_prune(
    tokens: int,
    r: int,
    *,
    grid: tuple[int, int] | None = None,
    seed: int,
    device: torch.device | None = None,
) -> Tensor:
    """Cut the frame into sqrt(r) x sqrt(r) cells and drop one random token per cell.

    Where r is no square, or a frame too small has fewer cells than r, the r drops are still
    spread evenly: random cells lose one, or every cell loses one before any loses two.

    Args:
        tokens: N.
        r: How many to drop.
        grid: (H, W) with H * W = N. None where the tokens are no full grid any more: the cells
            are then equal runs of the tokens.
        seed: Of the random choice.
        device: Where to put the result.

    Returns:
        Kept indices, (N - r,), ascending.
    """
    index = torch.arange(tokens, device=device)
    if r == 0:
        return index
    if grid is None:
        cell = index * r // tokens
    else:
        height, width = grid
        side = math.isqrt(r - 1) + 1  # ceil(sqrt(r))
        down, across = min(side, height), min(side, width)
        cell = (index // width * down // height) * across + index % width * across // width
    random = noise((tokens,), seed=seed, device=device)
    # Random rank inside the cell: how many tokens of the same cell drew a smaller number.
    same = cell.unsqueeze(1) == cell
    rank = (same & (random < random.unsqueeze(1))).sum(-1)
    order = (rank * (1 << 32) + random).argsort(stable=True)  # first of every cell, second, ...
    return order[r:].sort().values


def prune_first_frame(
    metric: Tensor,
    r: int,
    method: FirstFrame,
    *,
    grid: tuple[int, int] | None = None,
    seed: int = 0,
) -> Tensor:
    """Kept tokens of the first frame, (B, N - r), ascending.

    The random choices are the same for every clip, so that a clip's result does not depend on
    the batch it is in.
    """
    batch, tokens, _ = metric.shape
    if method == "tome":
        return tome_prune(metric, r)
    if method == "grid":
        kept = grid_prune(tokens, r, grid=grid, seed=seed, device=metric.device)
    else:
        kept = random_prune(tokens, r, seed=seed, device=metric.device)
    return kept.expand(batch, -1)
