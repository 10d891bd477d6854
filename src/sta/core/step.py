"""One pruning step: which tokens of each frame stay."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from sta.core.first_frame import prune_first_frame, random_prune
from sta.core.noise import derive
from sta.core.options import (
    Combine,
    Direction,
    FirstFrame,
    Score,
    Semantic,
    check_drop,
    check_option,
)
from sta.core.score import ScoredStep, accumulate


def prune_step(
    x: Tensor,
    metric: Tensor,
    r: int,
    *,
    order: Direction = "F",
    score: Score = "sta",
    semantic: Semantic = "deviation",
    combine: Combine = "either",
    first_frame: FirstFrame = "tome",
    temperature: float = 1.0,
    grid: tuple[int, int] | None = None,
    seed: int = 0,
) -> Tensor:
    """Choose the tokens that stay: one step of STA.

    Args:
        x: Tokens at the end of a block, (B, T, N, D).
        metric: Features that measure similarity, (B, T, N, C); normalised here.
        r: Tokens to drop per frame, 0 <= r < N.
        order: "F" follows time, "B" runs against it.
        score: "sta" (Eq. 5), or only its "temporal" or "semantic" part.
        semantic: What the semantic score weighs tokens by: their "deviation" from the mean of their
            frame, or their "norm" (Eq. 4 of the paper).
        combine: Whether a token stays that is "either" new or significant (Eq. 5), or only one that
            is "both".
        first_frame: How the chain's first frame is pruned: "tome", "grid" or "random".
        temperature: Of the affinity softmax; 1.0 is the paper's.
        grid: (H, W) of a frame whose tokens form a full grid; used by `first_frame="grid"`.
        seed: Of the random choices of "grid" and "random".

    Returns:
        Indices of the kept tokens in their frame, (B, T, N - r), int64, ascending.
    """
    return explain_step(
        x,
        metric,
        r,
        order=order,
        score=score,
        semantic=semantic,
        combine=combine,
        first_frame=first_frame,
        temperature=temperature,
        grid=grid,
        seed=seed,
    ).kept


def explain_step(
    x: Tensor,
    metric: Tensor,
    r: int,
    *,
    order: Direction = "F",
    score: Score = "sta",
    semantic: Semantic = "deviation",
    combine: Combine = "either",
    first_frame: FirstFrame = "tome",
    temperature: float = 1.0,
    grid: tuple[int, int] | None = None,
    seed: int = 0,
) -> ScoredStep:
    """`prune_step` with the scores it went by. Same arguments."""
    if x.ndim != 4 or metric.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"x must be (B, T, N, D) and metric (B, T, N, C); "
            f"got {tuple(x.shape)} and {tuple(metric.shape)}"
        )
    tokens = x.shape[2]
    check_drop(r, tokens)
    for name, given, allowed in (
        ("order", order, Direction),
        ("score", score, Score),
        ("semantic", semantic, Semantic),
        ("combine", combine, Combine),
        ("first_frame", first_frame, FirstFrame),
    ):
        check_option(name, given, get_args(allowed))
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be above 0; 1.0 is the paper's")
    if grid is not None and grid[0] * grid[1] != tokens:
        raise ValueError(
            f"grid={grid} has {grid[0] * grid[1]} places, but x has {tokens} tokens per frame"
        )
    # Only indices leave this function, so nothing in it needs a gradient.
    x, metric = x.detach(), F.normalize(metric.detach().float(), dim=-1)
    backward = order == "B"
    first = prune_first_frame(
        metric[:, -1 if backward else 0], r, first_frame, grid=grid, seed=seed
    )
    return accumulate(
        x,
        metric,
        first,
        backward=backward,
        score=score,
        semantic=semantic,
        combine=combine,
        temperature=temperature,
    )


def random_step(
    batch: int, frames: int, tokens: int, r: int, *, seed: int, device: torch.device | None = None
) -> Tensor:
    """Kept tokens of random dropping, (B, T, N - r): another choice in every frame.

    All clips share it, so that a clip's result does not depend on the batch it is in.
    """
    kept = [random_prune(tokens, r, seed=derive(seed, t), device=device) for t in range(frames)]
    return torch.stack(kept).expand(batch, -1, -1)
