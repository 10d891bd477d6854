"""The STA score: semantic score (Eq. 4), accumulation chain (Eq. 3), combined score (Eq. 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sta.core.options import Combine, Score, Semantic

#: Below this temperature a transition's smallest entry, exp(-2 / temperature) / N, can underflow to
#: zero, and with it the weight of all kept tokens; the chain then starts anew from a uniform one.
SHARP = 0.03

#: Entries of the transitions that are made by one kernel (for each clip): about a megabyte.
_AT_ONCE = 1 << 18

#: What `combine="both"` adds to each part, so that what is least in one is not lost by that alone.
FLOOR = 0.1

#: Entries of tokens that are read and written by one kernel: a few megabytes.
IN_CACHE = 1 << 20


class ScoredStep(NamedTuple):
    """A pruning step with the scores that led to it."""

    kept: Tensor  # (B, T, K), ascending
    semantic: Tensor  # (B, T, N): F of Eq. 4
    accumulation: Tensor  # (B, T, N): A of Eq. 3, a distribution over each frame
    score: Tensor  # (B, T, N): Eq. 5, what the tokens were ranked by; the lowest of a frame stay


def semantic_score(x: Tensor, by: Semantic) -> Tensor:
    """Semantic score F (Eq. 4), min-max normalised per frame to [0, 1].

    Args:
        x: Tokens of one frame or several, (..., T, N, D).
        by: What a token weighs: its L1 "norm", as in the paper, or its "deviation", the L1 norm of
            what sets it apart from the mean of its frame: what all tokens share weighs nothing.

    Returns:
        (..., T, N) in float32. A frame whose tokens all weigh the same gets 0 everywhere.
    """
    return min_max(token_weight(x, by))


def token_weight(x: Tensor, by: Semantic) -> Tensor:
    """What the semantic score normalises: (..., T, N, D) -> (..., T, N), float32."""
    # On a CPU abs().sum() is five times faster than torch.linalg.vector_norm(ord=1), and fastest
    # over so many frames that their absolute values do not leave the cache. Compilers fuse it all.
    many = x.shape[-3]
    if not torch.compiler.is_compiling():
        many = max(1, IN_CACHE // max(1, x.select(-3, 0).numel()))
    weights = []
    for part in x.split(many, -3):
        values = part.abs() if by == "norm" else (part - part.mean(-2, keepdim=True)).abs_()
        weights.append(values.sum(-1, dtype=torch.float32))
    return torch.cat(weights, -2)


def min_max(values: Tensor) -> Tensor:
    """Normalised over the last dimension to [0, 1]; 0 where all are the same."""
    low = values.amin(-1, keepdim=True)
    span = values.amax(-1, keepdim=True) - low
    return torch.where(span > 0, (values - low) / span, 0.0)


def transition(old: Tensor, new: Tensor, temperature: float = 1.0) -> Tensor:
    """Transition probabilities P(X_t | X_t-1) of Eq. 3 between two frames.

    The softmax runs over the tokens of the *new* frame, so that what flows stays a distribution.

    Args:
        old: L2-normalised similarity features of the frame before, (..., N_old, C).
        new: Those of the frame that follows in the chain, (..., N_new, C).
        temperature: Divides the cosine similarities; 1.0 is the paper's.

    Returns:
        (..., N_old, N_new), rows summing to 1.
    """
    if temperature != 1:
        old = old / temperature  # here, where it is small
    return (old @ new.transpose(-1, -2)).softmax(-1)


def transitions(metric: Tensor, temperature: float = 1.0) -> Iterator[Tensor]:
    """`transition` from each frame to the next, (B, N, N), T - 1 times; a few frames per kernel.

    One at a time is many small kernels, all at once is megabytes that leave the cache before they
    are read. `metric` are L2-normalised features in the chain's order, (T, B, N, C).
    """
    frames, tokens = metric.shape[0], metric.shape[2]
    many = max(1, _AT_ONCE // tokens**2)
    for first in range(0, frames - 1, many):
        last = min(first + many, frames - 1)
        yield from transition(metric[first:last], metric[first + 1 : last + 1], temperature)


def rank_score(
    redundancy: Tensor,
    insignificance: Tensor,
    *,
    score: Score,
    combine: Combine = "either",
    normalise: Callable[[Tensor], Tensor] = min_max,
) -> Tensor:
    """What tokens are ranked by: the highest are dropped.

    Args:
        redundancy: The temporal part: A of Eq. 3, or another measure of how little is new.
        insignificance: The semantic part, 1 - F of Eq. 4.
        score: Which parts count.
        combine: "either" is Eq. 5, A (1 - F): a token stays if it is new or significant. "both"
            asks for both: tokens stay with the highest novelty times significance, each in [0, 1]
            and raised by `FLOOR`.
        normalise: To [0, 1] over the tokens that compete.
    """
    if score == "temporal":
        return redundancy
    if score == "semantic":
        return insignificance
    if combine == "either":
        return redundancy * insignificance
    return -(1 + FLOOR - normalise(redundancy)) * (1 + FLOOR - insignificance)


def accumulate(
    x: Tensor,
    metric: Tensor,
    first: Tensor,
    *,
    backward: bool = False,
    score: Score = "sta",
    semantic: Semantic = "deviation",
    combine: Combine = "either",
    temperature: float = 1.0,
) -> ScoredStep:
    """The accumulation chain (Eq. 3) with pruning at every frame (Alg. 1).

    Only what depends on the frame before is done frame by frame: six small kernels each.

    Args:
        x: Tokens, (B, T, N, D).
        metric: L2-normalised similarity features, (B, T, N, C).
        first: Tokens kept of the chain's first frame (the last one, if backward), (B, K).
        backward: Run from the last frame to the first.

    The other options are `sta.prune_step`'s.
    """
    keep = first.shape[-1]
    significance = semantic_score(x, semantic)  # (B, T, N)
    metric = metric.transpose(0, 1)
    if backward:
        significance, metric = significance.flip(1), metric.flip(0)
    insignificance = 1 - significance
    rank = partial(rank_score, score=score, combine=combine)
    a = torch.zeros_like(significance[:, 0]).scatter(-1, first, 1 / keep)  # (B, N)
    kept, flow, ranks = [first], [a], [rank(a, insignificance[:, 0])]
    for t, p in enumerate(transitions(metric.contiguous(), temperature), start=1):
        a = torch.bmm(a.unsqueeze(1), p).squeeze(1)  # Eq. 3: what the kept tokens pass on
        ranked = rank(a, insignificance[:, t])
        # A stable sort breaks ties towards the lower index; NaN sorts last and so is dropped.
        order = ranked.argsort(dim=-1, stable=True)
        kept.append(order[:, :keep])
        flow.append(a)
        ranks.append(ranked)
        a = _cut(a, order[:, keep:], restart=temperature < SHARP)
    chosen = torch.stack(kept, 1).sort(-1).values
    step = ScoredStep(chosen, significance, torch.stack(flow, 1), torch.stack(ranks, 1))
    return ScoredStep(*(of.flip(1) for of in step)) if backward else step


def _cut(a: Tensor, dropped: Tensor, *, restart: bool) -> Tensor:
    """Cut the dropped tokens out of a frame's distribution and renormalise: (B, N)."""
    left = a.scatter(-1, dropped, 0.0)
    total = left.sum(-1, keepdim=True)
    if not restart:
        return left / total
    keep = a.shape[-1] - dropped.shape[-1]
    uniform = torch.full_like(a, 1 / keep).scatter(-1, dropped, 0.0)
    return torch.where(total > 0, left / total, uniform)
