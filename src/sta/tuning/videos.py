"""The clips to tune on: decoded once, kept in memory, the same for all settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sta.inference.local import decode_ahead
from sta.measure.clips import drawn_clips
from sta.video.lists import find_videos
from sta.video.views import ViewSpec

Failures = list[tuple[str, str]]  # path and error


def tuning_clips(
    inputs: Sequence[str],
    spec: ViewSpec,
    limit: int,
    *,
    root: str | None = None,
    seed: int = 0,
    workers: int | None = None,
    timeout: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[NDArray[np.uint8], Failures]:
    """Up to `limit` clips, (n, T, H, W, 3) uint8, and the videos that could not be read.

    Args:
        inputs: Videos, folders and lists; or "digits" for digit actions of the training split.
        spec: The views of each video.
        limit: Where there are more, a choice of them.
        root: Where a list's paths start.
        seed: Of the choice and the order.
        workers: Decoding processes.
        timeout: Seconds without a sign of life after which a video is given up.
        tell: Is told what is being done.

    Raises:
        ValueError: There is no video, or none can be read.
    """
    if list(inputs) == ["digits"]:
        tell(f"drawing {limit} clips of digits")
        return drawn_clips(range(seed * limit, (seed + 1) * limit), spec, "train"), []
    entries = find_videos(inputs, root)
    if not entries:
        raise ValueError("no videos to tune on: name files, folders, a list, or digits")
    order = np.random.default_rng(seed).permutation(len(entries))
    chosen = [entries[i] for i in order[: -(-limit // spec.views)]]
    clips: list[NDArray[np.uint8]] = []
    failures: Failures = []
    for sample in decode_ahead(chosen, spec, workers=workers, timeout=timeout):
        tell(f"reading video {len(clips) + len(failures) + 1} of {len(chosen)}")
        if sample.clips is None:
            failures.append((sample.path, sample.error or "cannot be read"))
        else:
            clips.append(sample.clips)
    if not clips:
        path, error = failures[0]
        raise ValueError(f"none of the {len(failures)} videos can be read, e.g. {path}: {error}")
    return np.concatenate(clips)[:limit], failures
