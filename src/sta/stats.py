"""Intervals of measured shares and means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_Z95 = 1.959963984540054  # two-sided 95 % of a Gaussian


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share that was measured as ``hits / total``."""
    if not 0 <= hits <= total or total < 1:
        raise ValueError(f"{hits} hits of {total}: need 0 <= hits <= total and total >= 1")
    share, z2 = hits / total, _Z95**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    reach = _Z95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def bootstrap(values: Sequence[float], rounds: int = 4000) -> tuple[float, float]:
    """The 95 % interval of a mean, by drawing as many values again and again, always the same way.

    A single value says nothing about others: its interval has no ends.
    """
    if not len(values):
        raise ValueError("the mean of no values has no interval; give at least one")
    if len(values) == 1:
        return -math.inf, math.inf
    sample = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(0).integers(len(sample), size=(rounds, len(sample)))
    low, high = np.quantile(sample[draws].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)
