"""As many tokens as a clip needs: those whose value is above a threshold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sta.core.options import Direction
from sta.core.tracing import is_fake


def keep_above(value: Tensor, threshold: float, size: int) -> tuple[Tensor, Tensor]:
    """The tokens whose value is above a threshold, at most so many of a clip.

    Args:
        value: (B, T, N); at least one of every clip is above the threshold.
        threshold: Above which a token stays.
        size: Places for tokens; where more would stay, those of the highest value do.

    Returns:
        Indices into the clip's T * N, ascending, (B, size): a clip that keeps fewer repeats its
        last one. And how many each clip keeps, (B,).
    """
    value = value.flatten(1)
    most = (-value).argsort(dim=-1, stable=True)[:, :size]
    stays = value.gather(-1, most) > threshold
    nowhere = value.shape[1]
    places = torch.where(stays, most, nowhere).sort(-1).values
    counts = stays.sum(-1)
    last = places.gather(-1, counts.unsqueeze(-1) - 1)
    return torch.minimum(places, last), counts


def places_for(value: Tensor, threshold: float, buckets: Sequence[int] | None) -> int:
    """Places for the tokens of each clip of a batch: as many as the longest one keeps.

    `buckets` are sizes to round up to, rising; the last is the limit.
    """
    places = value.shape[1] * value.shape[2]
    sizes = [min(size, places) for size in buckets or ()]
    # What a graph is recorded of has no values, and so no lengths.
    if len(sizes) == 1 or is_fake(value):
        return (sizes or [places])[-1]
    longest = int((value > threshold).sum((1, 2)).max())
    return next((size for size in sizes if size >= longest), (sizes or [longest])[-1])


def begin_runs(value: Tensor, order: Direction = "F") -> Tensor:
    """The values, (B, T, N), with the first frame's infinite: nothing came before it, so it stays.
    The order "B" begins with the last frame."""
    first = torch.full_like(value[:, :1], torch.inf)
    ends = (first, value[:, 1:]) if order == "F" else (value[:, :-1], first)
    return torch.cat(ends, 1)
