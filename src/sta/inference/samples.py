"""What flows through the pipeline: clips of a video, then its scores, then its rows.

A source is anything that yields `Sample`s: decoded files, a data set made on the fly, memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Sample:
    """One video, ready for the model; or why it is not.

    Attributes:
        path: Its name in results.
        clips: ``(V, T, H, W, 3)`` uint8 RGB, its views; None if it could not be read.
        label: Its class number, where known.
        error: Why there are no clips.
    """

    path: str
    clips: NDArray[np.uint8] | None
    label: int | None = None
    error: str | None = None


@dataclass
class Scored:
    """What the methods say about one video.

    Attributes:
        path: Its name in results.
        scores: ``(methods, classes)``: mean of the views' softmax; None if there are none.
        label: Its class number, where known.
        error: Why there are no scores.
        views: Number of views.
        seconds: ``(methods,)``: time in the model, its share of the batches'.
    """

    path: str
    scores: NDArray[np.float64] | None
    label: int | None = None
    error: str | None = None
    views: int = 0
    seconds: NDArray[np.float64] | None = None
