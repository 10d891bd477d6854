"""Token merging (the ToMe baseline): similar tokens become their size-weighted average."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sta.core.first_frame import bipartite_match
from sta.core.tokens import slot_of, take


class Merge(NamedTuple):
    """Outcome of one merging step."""

    x: Tensor  # (B, n - r, D)
    size: Tensor  # (B, n - r, 1): how many original tokens each stands for
    kept: Tensor  # (B, n - r): index of the token that each result stands at, ascending
    source: Tensor  # (B, n): which result each old token went into


def merge_step(x: Tensor, metric: Tensor, size: Tensor, r: int) -> Merge:
    """Merge the r even-numbered tokens with the most similar match into that match.

    Args:
        x: Tokens, (B, n, D).
        metric: Similarity features, (B, n, C); normalised here.
        size: Original tokens that each token stands for, (B, n, 1).
        r: How many to merge away, at most n // 2.
    """
    tokens = x.shape[1]
    similarity, match = bipartite_match(F.normalize(metric.detach().float(), dim=-1))
    order = similarity.argsort(dim=-1, descending=True, stable=True)
    gone, stays = order[:, :r], order[:, r:]  # numbers among the even tokens
    target = match.gather(-1, gone) * 2 + 1  # (B, r)
    odd = torch.arange(1, tokens, 2, device=x.device).expand(x.shape[0], -1)
    kept = torch.cat([stays * 2, odd], -1).sort(-1).values
    slot = slot_of(kept, tokens)
    into = slot.gather(-1, target)
    source = slot.scatter(-1, gone * 2, into)
    total = _add_rows(take(size, kept), into, take(size, gone * 2))
    merged = _add_rows(take(x * size, kept), into, take(x * size, gone * 2)) / total
    return Merge(merged.to(x.dtype), total, kept, source)


def _add_rows(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with rows[b, i] added to row index[b, i]: (B, n, D), (B, r), (B, r, D)."""
    batch, tokens, dim = x.shape
    offset = torch.arange(batch, device=x.device).unsqueeze(1) * tokens
    flat = (index + offset).flatten()
    return x.reshape(-1, dim).index_add(0, flat, rows.reshape(-1, dim)).view(batch, tokens, dim)
