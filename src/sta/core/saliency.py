"""How sharply tokens attend: vid-TLDR's saliency."""

from __future__ import annotations

import torch
from torch import Tensor

from sta.core.score import min_max

#: Attention weights that are made at a time (for each clip and head): a few megabytes.
_AT_ONCE = 1 << 18


def attention_sharpness(query: Tensor, key: Tensor) -> Tensor:
    """Negative entropy of each token's attention, averaged over heads first, (B, n); of queries and
    keys, (B, heads, n, head dim)."""
    query, key = query.detach().float(), key.detach().float()
    scale = query.shape[-1] ** -0.5
    rows = max(1, _AT_ONCE // key.shape[-2])
    if torch.compiler.is_compiling():
        rows = query.shape[-2]
    parts = []
    for part in query.split(rows, -2):
        attention = (part @ key.transpose(-1, -2) * scale).softmax(-1).mean(1)  # (B, rows, n)
        parts.append(torch.special.entr(attention).sum(-1).neg())
    return torch.cat(parts, -1)


def foreground_weight(sharpness: Tensor) -> Tensor:
    """What tokens count in a merge: 0 below the clip's mean sharpness, up to 1 above, (B, n)."""
    scaled = min_max(sharpness)
    above = (scaled - scaled.mean(-1, keepdim=True)).clamp(min=0)
    most = above.amax(-1, keepdim=True)
    return torch.where(most > 0, above / most, 0.0)
