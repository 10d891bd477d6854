"""Samples to scores: full batches across videos, whole videos out again, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sta.inference.uploads import upload_ahead
from sta.video.prefetch import Sample

#: Errors that may be gone the next time: the file was not there, could not be read or took too
#: long, or the system ended the process that decoded it. They are tried again.
TRANSIENT = ("missing", "unreadable", "timeout", "killed")


@dataclass
class Scored:
    """What the methods say about one video."""

    path: str  # its name in results
    # ``(methods, classes)``: mean of the views' softmax, followed by the mean of their logits where
    # the classifier gives them; None if there are none.
    scores: NDArray[np.float64] | None
    label: int | None = None  # its class number, where known
    error: str | None = None  # why there are no scores
    views: int = 0  # number of views
    # ``(methods,)``: time in the model, its share of the batches'.
    seconds: NDArray[np.float64] | None = None
    # With an error: one of `sta.video.ErrorKind`, or "scores" of the model.
    error_kind: str | None = None
    # Of one window of the video, in seconds; then `scores` are that window's.
    start: float | None = None
    end: float | None = None  # of the same
    last: bool = True  # whether nothing more comes of this video


#: Clips ``(B, T, H, W, 3)``, or pixels that were uploaded, to probabilities
#: ``(methods, B, classes)`` and seconds ``(methods,)``.
ScoreClips = Callable[[Any], tuple[NDArray[np.float64], NDArray[np.float64]]]


#: What is said of a clip whose results are not finite.
NOT_NUMBERS = "the model's results are not numbers (NaN); are its weights damaged?"


def run_clips(
    model: Callable[[Any], tuple[NDArray[Any], NDArray[np.float64]]],
    clips: NDArray[np.uint8] | Tensor,
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Results ``(methods, B, ...)`` and seconds of clips ``(B, T, H, W, 3)``.

    Results that are not numbers are made once more, each alone: in low precision, another clip of
    the batch may be the cause.
    """
    results, seconds = model(clips)
    finite = np.isfinite(results).all(axis=(0, *range(2, results.ndim)))
    if finite.all() or len(clips) == 1:
        return results, seconds
    results = results.copy()
    for number in np.flatnonzero(~finite):
        alone, more = model(clips[number : number + 1])
        results[:, number] = alone[:, 0]
        seconds = seconds + more
    return results, seconds


@dataclass
class _PartlyScored:
    """A video some of whose views are still to be scored."""

    sample: Sample
    views: int
    left: int
    scores: NDArray[np.float64] | float = 0.0
    seconds: NDArray[np.float64] | float = 0.0

    def add(self, scores: NDArray[np.float64], seconds: NDArray[np.float64]) -> None:
        """Scores of some of its views, ``(methods, n, classes)``."""
        self.left -= scores.shape[1]
        self.scores = self.scores + scores.sum(axis=1)
        self.seconds = self.seconds + seconds

    def close(self) -> Scored:
        sample = self.sample
        if not isinstance(self.scores, np.ndarray) or not isinstance(self.seconds, np.ndarray):
            return Scored(
                sample.path, None, sample.label, sample.error, error_kind=sample.error_kind
            )
        scores, error = self.scores / self.views, None
        if not np.isfinite(scores).all():
            error = NOT_NUMBERS
        return Scored(
            sample.path,
            scores if error is None else None,
            sample.label,
            error,
            self.views,
            self.seconds,
            None if error is None else "scores",
        )


def score_samples(
    samples: Iterable[Sample], score: ScoreClips, batch_size: int
) -> Iterator[Scored]:
    """Score every sample, in order. A batch mixes videos so that all but the last are full."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is not possible: use 1 or more")
    waiting: deque[_PartlyScored] = deque()
    for pieces, clips in upload_ahead(_batches(samples, batch_size, waiting), score):
        if clips is not None:
            scores, seconds = run_clips(score, clips)
            at = 0
            for video, count in pieces:
                video.add(scores[:, at : at + count], seconds * (count / len(clips)))
                at += count
        while waiting and not waiting[0].left:
            yield waiting.popleft().close()


def _batches(
    samples: Iterable[Sample], size: int, opened: deque[_PartlyScored]
) -> Iterator[tuple[list[tuple[_PartlyScored, int]], NDArray[np.uint8] | None]]:
    """Full batches, and how many of a batch's clips are whose; no clips after a video without."""
    pieces: list[tuple[_PartlyScored, int]] = []
    parts: list[NDArray[np.uint8]] = []
    filled = 0
    for sample in samples:
        clips, sample.clips = sample.clips, None  # not kept longer than its batches
        views = 0 if clips is None else len(clips)
        video = _PartlyScored(sample, views, views)
        opened.append(video)
        if clips is None:
            yield [], None
            continue
        while len(clips):
            part = clips[: size - filled]
            pieces.append((video, len(part)))
            parts.append(part)
            filled += len(part)
            clips = clips[len(part) :]
            if filled == size:
                batch, given = _joined(parts), pieces
                pieces, parts, filled = [], [], 0
                yield given, batch
    if parts:
        yield pieces, _joined(parts)


def _joined(parts: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
