"""Clips to measure on: of a video, or drawn digits at the model's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sta.video.decode import VideoError
from sta.video.digits import DigitActions, Split
from sta.video.resize import Resizer
from sta.video.safe import SafeDecoder
from sta.video.views import ViewSpec


def measuring_clips(
    count: int, spec: ViewSpec, video: str | None = None, *, timeout: float = 60.0
) -> NDArray[np.uint8]:
    """`count` clips, (B, T, H, W, 3) uint8.

    Args:
        count: How many.
        spec: Frames and size of a clip.
        video: A file to cut them from; None draws moving digits.
        timeout: Seconds without a sign of life after which the video is given up.

    Raises:
        ValueError: The file cannot be read.
    """
    if video is None:
        return drawn_clips(range(count), spec)
    with SafeDecoder(replace(spec, temporal=count, spatial=1), timeout) as decoder:
        try:
            return decoder(video).clips()
        except VideoError as error:
            raise ValueError(f"{video}: {error}; give a video to cut clips from") from error


def drawn_clips(indices: Sequence[int], spec: ViewSpec, split: Split = "test") -> NDArray[np.uint8]:
    """Digit actions at any length and size: as they are where that is theirs."""
    frames, _ = DigitActions(split, size=max(indices) + 1).batch(indices)  # (B, 16, 64, 64, 3)
    times = np.arange(spec.frames) * frames.shape[1] // spec.frames
    side = (spec.size, spec.size)
    resize = Resizer(frames.shape[2:4], side, (0, 0, *side))
    clips = np.empty((len(frames), spec.frames, *side, 3), dtype=np.uint8)
    for clip, drawn in zip(clips, frames[:, times], strict=True):
        for out, picture in zip(clip, drawn, strict=True):
            resize(picture, out)
    return clips
