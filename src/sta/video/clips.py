"""Clips to measure, tune and check with: of videos, or drawn digits at the model's size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sta.video.digits import FRAMES, NAMES, SIDE, DigitActions, Split
from sta.video.lists import Entry, find_videos
from sta.video.prefetch import Sample, prefetch_clips
from sta.video.resize import Resizer
from sta.video.views import ViewSpec

DIGITS = "digits"

#: Videos, folders and lists; "digits" for drawn clips; or clips (n, T, H, W, 3) uint8 themselves.
Videos = str | Path | Sequence[str | Path] | NDArray[np.uint8]
#: Path and error of each video that could not be read.
Failures = list[tuple[str, str]]


def load_clips(
    videos: Videos,
    spec: ViewSpec,
    limit: int | None = None,
    *,
    split: Split = "test",
    root: str | None = None,
    seed: int | None = None,
    workers: int = 1,
    timeout: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[NDArray[np.uint8], Failures]:
    """Up to `limit` clips, (n, T, H, W, 3) uint8, and the videos that could not be read.

    None as the limit takes all views of all videos; "digits", which are drawn from a `split`, need
    one. A seed chooses videos and their order at random; None takes the first ones. Refused are no
    videos, only unreadable ones, and given clips of another shape.
    """
    if isinstance(videos, np.ndarray):
        return _checked(videos, spec)[:limit], []
    if (names := _names(videos)) == [DIGITS]:
        if limit is None:
            raise ValueError("digits are drawn without end: say how many clips")
        progress(f"drawing {limit} clips of digits")
        first = (seed or 0) * limit
        return drawn_clips(range(first, first + limit), spec, split), []
    entries = find_videos(names, root)
    if not entries:
        raise ValueError("no videos: name files, folders, a list, or digits")
    if seed is not None:
        entries = [entries[i] for i in np.random.default_rng(seed).permutation(len(entries))]
    if limit is not None:
        entries = entries[: -(-limit // spec.views)]
    clips: list[NDArray[np.uint8]] = []
    failures: Failures = []
    samples = prefetch_clips(entries, spec, workers=workers, timeout=timeout)
    for number, sample in enumerate(samples, start=1):
        progress(f"reading video {number} of {len(entries)}")
        if sample.clips is None:
            failures.append((sample.path, sample.error or "cannot be read"))
        else:
            clips.append(sample.clips)
    if not clips:
        path, error = failures[0]
        raise ValueError(f"none of the videos ({len(entries)}) can be read, e.g. {path}: {error}")
    return np.concatenate(clips)[:limit], failures


def views_of(videos: Videos, spec: ViewSpec) -> int:
    """How many clips in a row `load_clips` gives of a video; given and drawn ones stand alone."""
    alone = isinstance(videos, np.ndarray) or _names(videos) == [DIGITS]
    return 1 if alone else spec.views


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


def is_digits(source: str) -> bool:
    """Whether a source is no file but digit actions, e.g. "digits:5" or "digits-jitter"."""
    return source.partition(":")[0] in NAMES


def clip_number(source: str) -> int:
    """The number of a clip of digit actions, e.g. of "digits:5"; 0 of "digits"."""
    name, colon, number = source.partition(":")
    if colon and not number.isdecimal():
        raise ValueError(f"{source}: {number!r} is no clip's number; use 0 up, e.g. {name}:5")
    return int(number or 0)


def digit_entries(source: str, count: int) -> list[Entry]:
    """The first test clips of "digits" or "digits-jitter"; or the one of "digits:5"."""
    name, colon, _ = source.partition(":")
    numbers = [clip_number(source)] if colon else list(range(count))
    labels = DigitActions("test", size=numbers[-1] + 1).labels(numbers).tolist()
    return [
        Entry(f"{name}-{i}", f"{name}:{i}", label) for i, label in zip(numbers, labels, strict=True)
    ]


def digit_clip(source: str, spec: ViewSpec) -> NDArray[np.uint8]:
    """The frames of "digits:5", (T, H, W, 3); refuses clips of another length or size."""
    name, number = source.partition(":")[0], clip_number(source)
    if (spec.frames, spec.size) != (FRAMES, SIDE):
        raise ValueError(
            f"{name}:{number}: digit actions have {FRAMES} frames of {SIDE} pixels, this model "
            f"takes {spec.frames} of {spec.size}; use vit-digits or swin-digits, or a video file"
        )
    data = DigitActions("test", size=number + 1, camera_jitter=name == "digits-jitter")
    return data[number][0]


def read_samples(entries: Iterable[Entry], spec: ViewSpec, **options: Any) -> Iterator[Sample]:
    """The clips of videos and of digit actions, in their order."""
    for digits, group in groupby(entries, lambda entry: is_digits(entry.source)):
        if not digits:
            yield from prefetch_clips(group, spec, **options)
            continue
        for entry in group:
            yield Sample(entry.path, digit_clip(entry.source, spec)[None], entry.label)


def full_batches(clips: NDArray[np.uint8], size: int) -> list[NDArray[np.uint8]]:
    """Clips in batches of one size; the last is filled up with the first clips."""
    missing = -len(clips) % size
    filled = np.concatenate([clips, np.resize(clips, (missing, *clips.shape[1:]))])
    return [filled[at : at + size] for at in range(0, len(filled), size)]


def _names(videos: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(videos)] if isinstance(videos, str | Path) else [str(name) for name in videos]


def _checked(clips: NDArray[np.uint8], spec: ViewSpec) -> NDArray[np.uint8]:
    expected = (spec.frames, spec.size, spec.size, 3)
    if clips.dtype != np.uint8 or clips.ndim != 5 or clips.shape[1:] != expected or not len(clips):
        raise ValueError(
            f"clips of shape {clips.shape}, {clips.dtype}: this model takes (n, "
            f"{', '.join(map(str, expected))}) uint8, n >= 1"
        )
    return clips
