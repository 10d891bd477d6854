"""Seeded random order without a generator: a hash of the token's number.

A counter-based hash has no state, so it gives the same order on every device, in every batch and
batch size, under `torch.compile` and in exported graphs, where a `torch.Generator` cannot go.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
N = TypeVar("N", int, Tensor)


def noise(shape: tuple[int, ...], *, seed: int, device: torch.device | None = None) -> Tensor:
    """Pseudo-random integers in `0 .. 2**32 - 1`, int64, the same for the same seed and shape."""
    count = 1
    for size in shape:
        count *= size
    x = torch.arange(count, dtype=torch.int64, device=device)
    x = _mix(x ^ _mix(seed & _MASK))
    return _mix(x + (seed & _MASK)).view(shape)


def derive(seed: int, stream: int) -> int:
    """A seed for an independent stream, such as one pruning step."""
    return _mix((seed * 0x9E3779B1 + stream * 0x85EBCA6B + 1) & _MASK)


def _mix(x: N) -> N:
    """A bijection of 32-bit integers whose output bits all depend on all input bits."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x045D9F3B) & _MASK
    return x ^ (x >> 16)
