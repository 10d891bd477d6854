"""VideoMAE's table of positions, which transformers makes number by number each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def quick_positions() -> Iterator[None]:
    """Inside, VideoMAE's classes are built with `position_table`: the same bits, far sooner."""
    module: Any = import_module("transformers.models.videomae.modeling_videomae")
    usual = module.get_sinusoid_encoding_table
    module.get_sinusoid_encoding_table = position_table
    try:
        yield
    finally:
        module.get_sinusoid_encoding_table = usual


def position_table(count: int, width: int) -> Tensor:
    """Sines and cosines of positions 0 to `count` - 1, (1, N, D)."""
    # One power at a time, as transformers does: NumPy's of a whole row may have other last bits.
    powers = [np.power(10000, 2 * (channel // 2) / width) for channel in range(width)]
    table = np.arange(count)[:, None] / np.array(powers)  # (N, D)
    table[:, 0::2] = np.sin(table[:, 0::2])
    table[:, 1::2] = np.cos(table[:, 1::2])
    return torch.FloatTensor(table).unsqueeze(0)
