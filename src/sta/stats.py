"""Intervals of measured shares."""

from __future__ import annotations

import math

_Z95 = 1.959963984540054  # two-sided 95 % of a Gaussian


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share that was measured as ``hits / total``."""
    if not 0 <= hits <= total or total < 1:
        raise ValueError(f"{hits} hits of {total}: need 0 <= hits <= total and total >= 1")
    share, z2 = hits / total, _Z95**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    reach = _Z95 * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return max(0.0, middle - reach), min(1.0, middle + reach)
