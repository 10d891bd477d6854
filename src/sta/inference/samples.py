"""What flows through the pipeline after the model: a video's scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Errors that may be gone the next time: the file was not there, could not be read or took too
#: long, or the system ended the process that decoded it. They are tried again.
TRANSIENT = ("missing", "unreadable", "timeout", "killed")


@dataclass
class Scored:
    """What the methods say about one video.

    Attributes:
        path: Its name in results.
        scores: ``(methods, classes)``: mean of the views' softmax, followed by the mean of their
            logits where the classifier gives them; None if there are none.
        label: Its class number, where known.
        error: Why there are no scores.
        views: Number of views.
        seconds: ``(methods,)``: time in the model, its share of the batches'.
        error_kind: With an error: one of `sta.video.ErrorKind`, or "scores" of the model.
        start: Of one window of the video, in seconds; then `scores` are that window's.
        end: Of the same.
        last: Whether nothing more comes of this video.
    """

    path: str
    scores: NDArray[np.float64] | None
    label: int | None = None
    error: str | None = None
    views: int = 0
    seconds: NDArray[np.float64] | None = None
    error_kind: str | None = None
    start: float | None = None
    end: float | None = None
    last: bool = True
