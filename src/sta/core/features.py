"""Features that measure how similar tokens are: keys, queries or values, averaged over heads."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def head_mean(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """A projection of `x`, averaged over heads: (..., D) -> (..., head dim).

    The mean over heads is itself one linear map, made anew in every forward so that it follows
    training, `.to(...)` and weight loading. Only a choice of tokens is made of it, so nothing here
    has a gradient.

    Args:
        x: What the attention layer receives.
        weight: Of its key, query or value projection, (heads * head dim, D).
        bias: Of the same, or None.
        heads: Number of heads.
    """
    weight = weight.detach().unflatten(0, (heads, -1)).mean(0)
    if bias is not None:
        bias = bias.detach().unflatten(0, (heads, -1)).mean(0)
    return F.linear(x.detach().to(weight.dtype), weight, bias)


def mean_over_heads(projected: Tensor, heads: int) -> Tensor:
    """The same of what was projected already: (..., heads * head dim) -> (..., head dim)."""
    return projected.unflatten(-1, (heads, -1)).mean(-2)
