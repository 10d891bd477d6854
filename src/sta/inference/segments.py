"""Rows of windows to segments: what happens, from when to when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from sta.inference.rows import Row


def segments(rows: Iterable[Row], *, smooth: int = 1, threshold: float = 0.5) -> list[Row]:
    """Turn windows into segments.

    >>> rows = sta.predict("match.mp4", model="vit-b-k400", windows="2s", every="1s")
    >>> sta.segments(rows, smooth=3, threshold=0.4)

    A class's scores over time are averaged over `smooth` neighbouring windows. A segment is a run
    of windows in which the same class is the best, with the threshold or more.

    Args:
        rows: Of `sta.predict` with windows: `path`, `start`, `end` and `predictions` each. A class
            that a row does not list counts as 0 in it.
        smooth: Windows that are averaged, an odd number; 1 leaves the scores as they are.
        threshold: The least score of a window in a segment, 0 to 1.

    Returns:
        `path`, `start`, `end` (seconds), `label` and `score` (the mean) of each, in order.
        Overlapping windows share their time out: a segment that follows another one begins in the
        middle of the overlap.
    """
    if smooth < 1 or smooth % 2 == 0:
        raise ValueError(f"smooth={smooth}: use an odd number of windows, 1 or more")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold}: use 0 to 1")
    found: list[Row] = []
    for path, group in groupby(rows, key=lambda row: row["path"]):
        windows = [row for row in group if row["error"] is None]
        if windows and windows[0].get("start") is None:
            raise ValueError("rows without start and end: call sta.predict with windows or every")
        found += _of_video(path, windows, smooth, threshold)
    return found


def class_scores(windows: list[Row]) -> tuple[list[str], NDArray[np.float64]]:
    """The classes that some window lists, and their scores over time, (windows, classes)."""
    labels: dict[str, int] = {}
    for row in windows:
        for one in row["predictions"]:
            labels.setdefault(one["label"], len(labels))
    scores = np.zeros((len(windows), len(labels)))
    for number, row in enumerate(windows):
        for one in row["predictions"]:
            scores[number, labels[one["label"]]] = one["score"]
    return list(labels), scores


def smoothed(scores: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Means over `count` neighbouring windows; fewer at the ends."""
    if count == 1 or not len(scores):
        return scores
    sums = np.cumsum(np.vstack([np.zeros(scores.shape[1]), scores]), axis=0)
    at = np.arange(len(scores))
    first, last = np.maximum(at - count // 2, 0), np.minimum(at + count // 2 + 1, len(scores))
    return (sums[last] - sums[first]) / (last - first)[:, None]


def _of_video(path: str, windows: list[Row], smooth: int, threshold: float) -> Iterator[Row]:
    if not windows:
        return
    labels, raw = class_scores(windows)
    scores = smoothed(raw, smooth)
    best = scores.argmax(1)
    reached = scores.max(1) >= threshold
    keys = [int(label) if ok else -1 for label, ok in zip(best, reached, strict=True)]
    at = 0
    for key, run in groupby(keys):
        count = len(list(run))
        first, last = at, at + count - 1
        at += count
        if key < 0:
            continue
        start, end = windows[first]["start"], windows[last]["end"]
        if first and keys[first - 1] >= 0:
            start = _border(windows, first)
        if at < len(keys) and keys[at] >= 0:
            end = _border(windows, at)
        score = float(scores[first : last + 1, key].mean())
        times = {"start": round(start, 6), "end": round(end, 6)}
        yield {"path": path, **times, "label": labels[key], "score": round(score, 6)}


def _border(windows: list[Row], number: int) -> float:
    """Where a window begins that follows another one of a segment: in the middle of what both
    cover; at its own start where there is a gap."""
    before, start = windows[number - 1]["end"], windows[number]["start"]
    return float((before + start) / 2 if before > start else start)
