"""Samples to scores: full batches across videos, whole videos out again, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

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


#: Clips ``(n, T, H, W, 3)`` to what tells like ones: a number each.
Lengths = Callable[[NDArray[np.uint8]], Sequence[int]]
#: Batches among whose clips like ones are looked for.
AHEAD = 4

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
        """Scores of one of its views, ``(methods, classes)``."""
        self.left -= 1
        self.scores = self.scores + scores
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
    """Score every sample, in order. A batch mixes videos so that all but the last are full.

    Where the number of tokens follows the clip, as the `lengths` of `score` tell, a batch is of
    like clips among those of the next few batches: it costs as much as its longest.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is not possible: use 1 or more")
    waiting: deque[_PartlyScored] = deque()
    lengths: Lengths | None = getattr(score, "lengths", None)
    for videos, clips in upload_ahead(_batches(samples, batch_size, waiting, lengths), score):
        if clips is not None:
            scores, seconds = run_clips(score, clips)
            for number, video in enumerate(videos):
                video.add(scores[:, number], seconds / len(clips))
        while waiting and not waiting[0].left:
            yield waiting.popleft().close()


def _batches(
    samples: Iterable[Sample],
    size: int,
    opened: deque[_PartlyScored],
    lengths: Lengths | None,
) -> Iterator[tuple[list[_PartlyScored], NDArray[np.uint8] | None]]:
    """Full batches, and whose each of their clips is; no clips after a video without."""
    held: list[_Clip] = []
    many = size if lengths is None else AHEAD * size
    for sample in samples:
        clips, sample.clips = sample.clips, None  # not kept longer than its batches
        views = 0 if clips is None else len(clips)
        video = _PartlyScored(sample, views, views)
        opened.append(video)
        if clips is None:
            yield [], None
            continue
        told = repeat(0) if lengths is None else lengths(clips)
        held += map(_Clip, told, repeat(video), clips)
        del clips
        while len(held) >= many:
            now = held[:many]
            del held[:many]
            yield from _like(now, size)
    yield from _like(held, size)


class _Clip(NamedTuple):
    length: int
    video: _PartlyScored
    pixels: NDArray[np.uint8]


def _like(clips: list[_Clip], size: int) -> Iterator[tuple[list[_PartlyScored], NDArray[np.uint8]]]:
    """Batches of clips of like length, which are taken from the list."""
    clips.sort(key=lambda clip: clip.length)
    while clips:
        _, videos, pixels = zip(*clips[:size], strict=True)
        del clips[:size]
        batch = np.stack(pixels)
        del pixels
        yield list(videos), batch
