"""The STA score: semantic score (Eq. 4), accumulation chain (Eq. 3), combined score (Eq. 5)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Score = Literal["sta", "temporal", "semantic"]


class Chain(NamedTuple):
    """Everything the chain decided, for one step."""

    kept: Tensor  # (B, T, K), ascending
    accumulation: Tensor  # (B, T, N): A of Eq. 3, a distribution over each frame
    score: Tensor  # (B, T, N): what the tokens were ranked by; the lowest K of a frame stay


def semantic_score(x: Tensor) -> Tensor:
    """Semantic score F (Eq. 4), min-max normalised per frame to [0, 1].

    Args:
        x: Tokens, (B, T, N, D).

    Returns:
        (B, T, N) in float32. A frame whose tokens all weigh the same gets 0 everywhere.
    """
    # Five times faster on a CPU than torch.linalg.vector_norm(ord=1).
    weight = x.abs().sum(-1, dtype=torch.float32)  # (B, T, N)
    low = weight.amin(-1, keepdim=True)
    span = weight.amax(-1, keepdim=True) - low
    return torch.where(span > 0, (weight - low) / span, 0.0)


def transitions(metric: Tensor, *, backward: bool = False, temperature: float = 1.0) -> Tensor:
    """Transition probabilities P(X_t | X_t-1) of Eq. 3, for all neighbouring frames at once.

    The softmax runs over the tokens of the *new* frame, so it does not depend on which tokens of
    the old frame were kept: every matrix can be made before the chain starts.

    Args:
        metric: L2-normalised similarity features, (B, T, N, C).
        backward: Go from later frames to earlier ones.
        temperature: Divides the cosine similarities; 1.0 is the paper's.

    Returns:
        (B, T - 1, N_old, N_new), rows summing to 1. Entry `t` joins frames `t` and `t + 1`.
    """
    early, late = metric[:, :-1], metric[:, 1:]
    old, new = (late, early) if backward else (early, late)
    if temperature != 1:
        old = old / temperature  # here, where it is small
    return (old @ new.transpose(-1, -2)).softmax(-1)


def combine(accumulation: Tensor, semantic: Tensor, score: Score) -> Tensor:
    """What tokens are ranked by (Eq. 5): high means redundant and without meaning, so dropped."""
    if score == "sta":
        return accumulation * (1 - semantic)
    return accumulation if score == "temporal" else 1 - semantic


def accumulate(
    transition: Tensor,
    semantic: Tensor,
    first: Tensor,
    *,
    backward: bool = False,
    score: Score = "sta",
) -> Chain:
    """The accumulation chain (Eq. 3) with pruning at every frame (Alg. 1).

    Args:
        transition: From `transitions`, (B, T - 1, N, N).
        semantic: From `semantic_score`, (B, T, N).
        first: Tokens kept of the chain's first frame (the last one, if backward), (B, K).
        backward: Direction of the chain, the same as `transition`'s.
        score: Which part of the score ranks the tokens.
    """
    frames, keep = semantic.shape[1], first.shape[-1]
    start, *rest = reversed(range(frames)) if backward else range(frames)
    a = torch.zeros_like(semantic[:, start]).scatter(-1, first, 1 / keep)  # (B, N)
    kept, accumulation, ranked = [first], [a], [combine(a, semantic[:, start], score)]
    for t in rest:
        joint = transition[:, t if backward else t - 1]  # (B, N_old, N_new)
        a = torch.bmm(a.unsqueeze(1), joint).squeeze(1)  # (B, N)
        s = combine(a, semantic[:, t], score)
        # A stable sort breaks ties towards the lower index; NaN sorts last and so is dropped.
        order = s.argsort(dim=-1, stable=True)
        kept.append(order[:, :keep])
        accumulation.append(a)
        ranked.append(s)
        # Cut the dropped tokens out and renormalise. A sharp softmax can underflow to a kept set
        # of weight zero; the chain then starts anew from a uniform one.
        stays = torch.ones_like(a).scatter(-1, order[:, keep:], 0.0)
        a = a * stays
        total = a.sum(-1, keepdim=True)
        a = torch.where(total > 0, a / total, stays / keep)
    step = -1 if backward else 1
    return Chain(
        kept=torch.stack(kept[::step], 1).sort(-1).values,
        accumulation=torch.stack(accumulation[::step], 1),
        score=torch.stack(ranked[::step], 1),
    )
