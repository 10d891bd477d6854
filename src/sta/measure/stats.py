"""Intervals of measured shares, their differences, and means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_Z95 = 1.959963984540054  # two-sided 95 % of a Gaussian
_Z95_ONE_SIDED = 1.6448536269514722


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share that was measured as ``hits / total``."""
    return _wilson(hits, total, _Z95)


def wilson_low(hits: int, total: int) -> float:
    """What the share is at least, with 95 % confidence: the one-sided Wilson bound."""
    return _wilson(hits, total, _Z95_ONE_SIDED)[0]


def _wilson(hits: int, total: int, z: float) -> tuple[float, float]:
    if not 0 <= hits <= total or total < 1:
        raise ValueError(f"{hits} hits of {total}: need 0 <= hits <= total and total >= 1")
    share, z2 = hits / total, z**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    reach = z * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    # The ends that are 0 and 1 by the formula are so to the last digit.
    return middle - reach if hits else 0.0, middle + reach if hits < total else 1.0


def paired_difference(gained: int, lost: int, total: int) -> tuple[float, float]:
    """The 95 % interval of the difference of two shares that were measured on the same cases.

    Only cases on which the two disagree tell anything, as in McNemar's test, so that it is much
    narrower than what the two shares' own intervals suggest. Bonett and Price's: one case is added
    to either side of the disagreement.

    Args:
        gained: Cases that the first has right and the second wrong.
        lost: Cases that the second has right and the first wrong.
        total: All cases.
    """
    if gained < 0 or lost < 0 or total < 1 or gained + lost > total:
        raise ValueError(
            f"{gained} gained and {lost} lost of {total}: need counts of different cases, "
            f"gained + lost <= total and total >= 1"
        )
    up, down = (gained + 1) / (total + 2), (lost + 1) / (total + 2)
    reach = _Z95 * math.sqrt((up + down - (up - down) ** 2) / (total + 2))
    return max(-1.0, up - down - reach), min(1.0, up - down + reach)


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
