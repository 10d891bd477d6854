"""Telling tensors that stand for others, while a graph is recorded, from real ones."""

from __future__ import annotations

from torch import Tensor

# Not public, and the only way to tell: torch.compiler.is_exporting() is over when a caller looks.
from torch._subclasses.fake_tensor import FakeTensor


def is_fake(tensor: Tensor) -> bool:
    """Whether the tensor has a shape and no values: made by an export or on the meta device."""
    return isinstance(tensor, FakeTensor) or tensor.is_meta
