"""Merging tokens: similar ones become their weighted mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sta.core.first_frame import bipartite_match
from sta.core.tokens import slot_of, take


def match_step(metric: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """ToMe's choice: the r even-numbered tokens with the most similar match go into that match.

    Args:
        metric: Similarity features, (B, n, C); normalised here.
        r: How many to merge away, at most n // 2.

    Returns:
        Kept tokens, (B, n - r), ascending; and the number of the kept token that each goes into,
        (B, n).
    """
    similarity, match = bipartite_match(F.normalize(metric.detach().float(), dim=-1))
    return merge_best(similarity, match, r, metric.shape[1])


def ward_step(x: Tensor, sizes: Tensor | None, r: int) -> tuple[Tensor, Tensor]:
    """The r even-numbered tokens that cost least go into the odd-numbered one where they do.

    The cost is Ward's, of tokens centred and scaled to the same length, times how far the token
    that goes is from the clip's mean.

    Args:
        x: Tokens, (B, n, D).
        sizes: How many original tokens each stands for, (B, n, 1); None if all are single.
        r: How many to merge away, at most n // 2.

    Returns:
        Kept tokens, (B, n - r), ascending; and the number of the kept token that each goes into,
        (B, n).
    """
    x = x.detach().float()
    least, match = ward_cost(x, sizes).min(-1)
    return merge_best(-least * clip_deviation(x), match, r, x.shape[1])


def ward_cost(x: Tensor, sizes: Tensor | None) -> Tensor:
    """What merging an even-numbered token into an odd one adds to the squared error (Ward).

    Args:
        x: Tokens, (B, n, D); centred and scaled to length 1 here.
        sizes: How many original tokens each stands for, (B, n, 1); None if all are single.

    Returns:
        (B, ceil(n / 2), n // 2).
    """
    x = x.detach().float()
    unit = F.normalize(x - x.mean(-1, keepdim=True), dim=-1)
    even, odd = unit[:, ::2], unit[:, 1::2].transpose(-1, -2)
    single = torch.baddbmm(unit.new_ones(1, 1, 1), even, odd, alpha=-1)  # 1 - cosine
    if sizes is None:
        return single
    inverse = 0.5 / sizes.detach().float()
    return single / (inverse[:, ::2] + inverse[:, 1::2].transpose(-1, -2))


def clip_deviation(x: Tensor) -> Tensor:
    """L1 distance of even-numbered tokens from the clip's mean: (B, n, D) -> (B, ceil(n / 2))."""
    x = x.detach().float()
    return (x - x.mean(1, keepdim=True))[:, ::2].abs().sum(-1)


def merge_best(score: Tensor, match: Tensor, r: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Merge the r best-scored even tokens into the odd tokens they match: kept, and into."""
    batch = score.shape[0]
    order = score.argsort(dim=-1, descending=True, stable=True)
    gone, stays = order[:, :r], order[:, r:]  # numbers among the even tokens
    odd = torch.arange(1, tokens, 2, device=score.device).expand(batch, -1)
    kept = torch.cat([stays * 2, odd], -1).sort(-1).values
    slot = slot_of(kept, tokens)
    target = match.gather(-1, gone) * 2 + 1  # (B, r)
    return kept, slot.scatter(-1, gone * 2, slot.gather(-1, target))


def most_similar(metric: Tensor, kept: Tensor) -> Tensor:
    """Where tokens go that are merged into the most similar kept one (ties: the first).

    Args:
        metric: Similarity features, (B, n, C); normalised here.
        kept: Which stay, (B, K).

    Returns:
        Number of the kept token that each goes into, (B, n); kept ones go into themselves.
    """
    metric = F.normalize(metric.detach().float(), dim=-1)
    gone = _dropped(kept, metric.shape[1])
    match = (take(metric, gone) @ take(metric, kept).transpose(-1, -2)).argmax(-1)
    return slot_of(kept, metric.shape[1]).scatter(-1, gone, match)


def weighted_mean(x: Tensor, sizes: Tensor) -> Tensor:
    """The mean of tokens, each as many times as it stands for: (B, n, D), (B, n, 1) -> (B, D)."""
    return (x * sizes).sum(1) / sizes.sum(1)


def merge_tokens(x: Tensor, kept: Tensor, into: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Kept tokens as the weighted mean of those that go into them, and the sums of the weights.

    Args:
        x: Tokens, (B, n, D).
        kept: Which stay, (B, K), ascending.
        into: Number of the kept token that each goes into, (B, n).
        weights: What each counts, (B, n, 1): its size, or less.

    Returns:
        (B, K, D) and (B, K, 1).
    """
    gone = _dropped(kept, x.shape[1])
    target, heavy, light = into.gather(-1, gone), take(weights, kept), take(weights, gone)
    total = _add_rows(heavy, target, light)
    summed = _add_rows(take(x, kept) * heavy, target, take(x, gone) * light)
    return summed.div_(total).to(x.dtype), total


def _dropped(kept: Tensor, tokens: int) -> Tensor:
    """The tokens that do not stay, ascending: (B, K) -> (B, tokens - K)."""
    stays = torch.zeros(kept.shape[0], tokens, device=kept.device).scatter(-1, kept, 1.0)
    return stays.argsort(dim=-1, stable=True)[:, : tokens - kept.shape[1]]


def _add_rows(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with rows[b, i] added to row index[b, i]: (B, n, D), (B, r), (B, r, D)."""
    batch, tokens, dim = x.shape
    offset = torch.arange(batch, device=x.device).unsqueeze(1) * tokens
    flat = (index + offset).flatten()
    return x.reshape(-1, dim).index_add(0, flat, rows.reshape(-1, dim)).view(batch, tokens, dim)
