"""The STA score: semantic score (Eq. 4), accumulation chain (Eq. 3), combined score (Eq. 5)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Score = Literal["sta", "temporal", "semantic"]


class Step(NamedTuple):
    """A pruning step with the scores that led to it."""

    kept: Tensor  # (B, T, K), ascending
    semantic: Tensor  # (B, T, N): F of Eq. 4
    accumulation: Tensor  # (B, T, N): A of Eq. 3, a distribution over each frame
    score: Tensor  # (B, T, N): Eq. 5, what the tokens were ranked by; the lowest of a frame stay


def semantic_score(x: Tensor) -> Tensor:
    """Semantic score F (Eq. 4), min-max normalised per frame to [0, 1].

    Args:
        x: Tokens of one frame or several, (..., N, D).

    Returns:
        (..., N) in float32. A frame whose tokens all weigh the same gets 0 everywhere.
    """
    # Five times faster on a CPU than torch.linalg.vector_norm(ord=1).
    weight = x.abs().sum(-1, dtype=torch.float32)  # (..., N)
    low = weight.amin(-1, keepdim=True)
    span = weight.amax(-1, keepdim=True) - low
    return torch.where(span > 0, (weight - low) / span, 0.0)


def transition(old: Tensor, new: Tensor, temperature: float = 1.0) -> Tensor:
    """Transition probabilities P(X_t | X_t-1) of Eq. 3 between two frames.

    The softmax runs over the tokens of the *new* frame, so that what flows stays a distribution.

    Args:
        old: L2-normalised similarity features of the frame before, (B, N_old, C).
        new: Those of the frame that follows in the chain, (B, N_new, C).
        temperature: Divides the cosine similarities; 1.0 is the paper's.

    Returns:
        (B, N_old, N_new), rows summing to 1.
    """
    if temperature != 1:
        old = old / temperature  # here, where it is small
    return torch.bmm(old, new.transpose(-1, -2)).softmax(-1)


def combine(accumulation: Tensor, semantic: Tensor, score: Score) -> Tensor:
    """What tokens are ranked by (Eq. 5): high means redundant and without meaning, so dropped."""
    if score == "sta":
        return accumulation * (1 - semantic)
    return accumulation if score == "temporal" else 1 - semantic


def accumulate(
    x: Tensor,
    metric: Tensor,
    first: Tensor,
    *,
    backward: bool = False,
    score: Score = "sta",
    temperature: float = 1.0,
) -> Step:
    """The accumulation chain (Eq. 3) with pruning at every frame (Alg. 1).

    Frame by frame: what one frame needs stays in the cache, where all frames' transitions at once
    would be megabytes that are made, read once and thrown away.

    Args:
        x: Tokens, (B, T, N, D).
        metric: L2-normalised similarity features, (B, T, N, C).
        first: Tokens kept of the chain's first frame (the last one, if backward), (B, K).
        backward: Run from the last frame to the first.
        score: Which part of the score ranks the tokens.
        temperature: Of the affinity softmax.
    """
    frames, keep = x.shape[1], first.shape[-1]
    before, *rest = reversed(range(frames)) if backward else range(frames)
    semantic = semantic_score(x[:, before])  # (B, N)
    a = torch.zeros_like(semantic).scatter(-1, first, 1 / keep)  # (B, N)
    steps = [(first, semantic, a, combine(a, semantic, score))]
    for t in rest:
        joint = transition(metric[:, before], metric[:, t], temperature)
        a = torch.bmm(a.unsqueeze(1), joint).squeeze(1)
        semantic = semantic_score(x[:, t])
        ranked = combine(a, semantic, score)
        # A stable sort breaks ties towards the lower index; NaN sorts last and so is dropped.
        order = ranked.argsort(dim=-1, stable=True)
        steps.append((order[:, :keep], semantic, a, ranked))
        # Cut the dropped tokens out and renormalise. A sharp softmax can underflow to a kept set
        # of weight zero; the chain then starts anew from a uniform one.
        stays = torch.ones_like(a).scatter(-1, order[:, keep:], 0.0)
        a = a * stays
        total = a.sum(-1, keepdim=True)
        a = torch.where(total > 0, a / total, stays / keep)
        before = t
    kept, *scores = (
        torch.stack(of, 1) for of in zip(*steps[:: -1 if backward else 1], strict=True)
    )
    return Step(kept.sort(-1).values, *scores)
