"""The step of the authors' released program, which differs from the paper's (see docs/method.md).

It works on groups of neighbouring frames instead of frames, starts its chain from all tokens of the
first group, unnormalised, and leaves the tokens in score order, which the next step's even/odd
matching then sees.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sta.core.first_frame import bipartite_match
from sta.core.score import semantic_score, transition


def released_step(
    x: Tensor, metric: Tensor, r: int, *, groups: int, backward: bool = False
) -> Tensor:
    """Choose the tokens that stay as the released program does.

    Args:
        x: Tokens, (B, n, D), in the order the step before left them.
        metric: Similarity features, (B, n, C); normalised here.
        r: Tokens to drop per group.
        groups: Number of groups that the n tokens are cut into.
        backward: Start the chain at the last group.

    Returns:
        (B, groups * (n / groups - r)): indices into the n tokens, in the program's own order.
    """
    batch, tokens, dim = x.shape
    size = tokens // groups
    x = x.detach().view(batch, groups, size, dim)
    metric = F.normalize(metric.detach().float(), dim=-1).view(batch, groups, size, -1)
    before, *rest = reversed(range(groups)) if backward else range(groups)
    kept = [_first_group(metric[:, before], r)]
    a = x.new_ones(batch, size, dtype=torch.float32)  # all tokens of the first group, weight 1
    insignificance = 1 - semantic_score(x, "norm")  # (B, groups, size)
    for g in rest:
        joint = transition(metric[:, before], metric[:, g])  # (B, size, size)
        a = torch.bmm(a.unsqueeze(1), joint).squeeze(1)
        order = (a * insignificance[:, g]).argsort(dim=-1, stable=True)
        kept.append(order[:, : size - r])
        a = a.scatter(-1, order[:, size - r :], 0.0)
        a = a / a.sum(-1, keepdim=True)
        before = g
    offset = torch.arange(groups, device=x.device).view(1, groups, 1) * size
    return (torch.stack(kept[:: -1 if backward else 1], 1) + offset).flatten(1)


def _first_group(metric: Tensor, r: int) -> Tensor:
    """Odd-numbered tokens in order, then even-numbered ones by rising similarity, cut by r."""
    similarity, _ = bipartite_match(metric)
    batch, tokens, _ = metric.shape
    odd = torch.arange(1, tokens, 2, device=metric.device).expand(batch, -1)
    even = similarity.argsort(dim=-1, stable=True) * 2
    return torch.cat([odd, even[:, : even.shape[1] - r]], -1)
