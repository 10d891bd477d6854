"""Clips to check and to calibrate with, in whole batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sta.video.views import ViewSpec


def read(videos: Sequence[str], spec: ViewSpec) -> NDArray[np.uint8]:
    """The views of videos: files, folders or lists."""
    from sta.video.decode import VideoError
    from sta.video.lists import find_videos
    from sta.video.safe import SafeDecoder

    clips = []
    with SafeDecoder(spec) as decoder:
        for entry in find_videos(list(videos), None):
            try:
                clips.append(decoder(entry.source).clips())
            except VideoError as error:
                raise ValueError(f"{entry.path}: {error}; check with other videos") from error
    return np.concatenate(clips)


def full_batches(clips: NDArray[np.uint8], size: int) -> list[NDArray[np.uint8]]:
    """Clips in batches of one size; the last is filled up with the first clips."""
    missing = -len(clips) % size
    whole = np.concatenate([clips, np.resize(clips, (missing, *clips.shape[1:]))])
    return [whole[at : at + size] for at in range(0, len(whole), size)]
