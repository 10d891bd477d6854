"""What a row of results holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sta.inference.scoring import Scored

Row = dict[str, Any]


def prediction_row(
    scored: Scored, names: Sequence[str], top_k: int, method: int = 0, *, logits: bool = False
) -> Row:
    """The row of one video under one method.

    Returns:
        ``path``, ``predictions`` (best first), ``error``, ``error_kind``, and perhaps ``logits``.
    """
    predictions: list[Row] = []
    values: list[float] | None = None
    if scored.scores is not None:
        scores = scored.scores[method]
        if logits:
            scores, raw = np.split(scores, 2)
            values = [round(float(value), 6) for value in raw]
        predictions = [
            {"label": names[c], "score": round(float(scores[c]), 6)} for c in best(scores, top_k)
        ]
    row: Row = {"path": scored.path, "predictions": predictions}
    row |= {"error": scored.error, "error_kind": scored.error_kind}
    return {**row, "logits": values} if logits else row


def evaluation_rows(
    scored: Scored, names: Sequence[str], methods: Sequence[tuple[str, int]], top_k: int = 5
) -> list[Row]:
    """A prediction row per method, with what metrics need: label, best classes, views, seconds."""
    rows = []
    for number, (method, r) in enumerate(methods):
        row = prediction_row(scored, names, top_k, number)
        classes = [] if scored.scores is None else best(scored.scores[number], top_k)
        seconds = 0.0 if scored.seconds is None else float(scored.seconds[number])
        row |= {"label": scored.label, "method": method, "r": r, "classes": classes}
        row |= {"views": scored.views, "seconds": round(seconds, 6)}
        rows.append(row)
    return rows


def best(scores: NDArray[np.float64], count: int) -> list[int]:
    """The classes with the highest scores, best first; ties to the lower class."""
    return np.argsort(-scores, kind="stable")[:count].tolist()
