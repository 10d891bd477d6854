"""Intervals of measured shares, their differences, and means. scipy is imported when needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNBOUNDED = (-math.inf, math.inf)  # what may have any value

_TINY = 1e-12  # probabilities below it count as it
_DRAWN = 2**20  # values that a bootstrap draws at a time
_Z95 = NormalDist().inv_cdf(0.975)  # two-sided 95 % of a Gaussian


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share that was measured as ``hits / total``."""
    interval = _binomial(hits, total, "two-sided").proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def wilson_low(hits: int, total: int) -> float:
    """What the share is at least, with 95 % confidence: the one-sided Wilson bound."""
    return float(_binomial(hits, total, "greater").proportion_ci(0.95, method="wilson").low)


def _binomial(hits: int, total: int, alternative: str) -> Any:
    from scipy.stats import binomtest

    if not 0 <= hits <= total or total < 1:
        raise ValueError(f"{hits} hits of {total}: need 0 <= hits <= total and total >= 1")
    return binomtest(int(hits), int(total), alternative=alternative)


def paired_difference(gained: int, lost: int, total: int) -> tuple[float, float]:
    """The 95 % interval of the difference of two shares that were measured on the same cases.

    Only cases on which the two disagree count, as in McNemar's test, so that it is much narrower
    than what the two shares' own intervals suggest. Bonett and Price's, which scipy does not have:
    one case is added to either side of the disagreement.

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


def divergence(unpruned: NDArray[np.float64], ours: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL(unpruned || ours) of probabilities ``(..., classes)``, in nats."""
    ratio = np.log(np.maximum(unpruned, _TINY)) - np.log(np.maximum(ours, _TINY))
    return np.asarray((unpruned * ratio).sum(-1))


def nats(value: float) -> str:
    """A divergence for people: two significant digits, however small it is."""
    return np.format_float_positional(value, precision=2, fractional=False, trim="-")


def bootstrap(
    values: Sequence[float], rounds: int = 4000, bounds: tuple[float, float] = (-1.0, 1.0)
) -> tuple[float, float]:
    """The 95 % interval of a mean, by drawing as many values again and again, always the same way.

    Values that are all the same are so however they are drawn, which is no certainty: of n such
    values, with 95 % confidence, up to 1 - 0.05 ** (1 / n) of all others differ, about 3 / n. The
    interval then is what that share can do to the mean, within bounds; without, it has no ends.

    Args:
        values: Of each case, e.g. of each video.
        rounds: How often they are drawn.
        bounds: What a value can be; of differences of accuracies, unless given.
    """
    from scipy import stats

    if not len(values):
        raise ValueError("the mean of no values has no interval; give at least one")
    sample = np.asarray(values, dtype=np.float64)
    least, most = float(sample.min()), float(sample.max())
    if least < bounds[0] or most > bounds[1]:
        raise ValueError(
            f"values from {least:g} to {most:g} cannot be within bounds=({bounds[0]:g}, "
            f"{bounds[1]:g}); give theirs"
        )
    if least == most:
        share = 1 - 0.05 ** (1 / len(sample))
        return least - share * (least - bounds[0]), most + share * (bounds[1] - most)
    interval = stats.bootstrap(
        (sample,),
        np.mean,
        n_resamples=rounds,
        batch=max(1, _DRAWN // len(sample)),  # what is drawn is the same, a part at a time
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(interval.low), float(interval.high)
