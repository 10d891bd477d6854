"""A cache of small frames, made once: decoding costs more than all the rest of a small training.

A cache is a folder: ``index.json`` says what is in it, ``frames/`` has one ``.npy`` array of uint8
frames ``(F, H, W, 3)`` per video, which is mapped into memory. `read_views` takes such an array as
it takes a video file, so clips of any stride, size and crop come from it.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sta.video.resize import Resizer
from sta.video.views import Views, ViewSpec, clip_indices, crop_window, resized

if TYPE_CHECKING:
    from sta.video.lists import Entry
    from sta.video.safe import SafeDecoder

INDEX = "index.json"
FRAMES = "frames"
ENDING = ".npy"
_FORMAT = "sta frames, version 1"
#: Frames of the longest video that is kept whole; of a longer one, as many evenly spread.
MOST_FRAMES = 2**16
#: Seconds between writings of the index while the cache is made.
_SAVE_SECONDS = 20.0


@dataclass(frozen=True)
class Cached:
    """One video of a cache."""

    path: str  # its name in results, as the list has it
    source: str  # where the video was
    label: int | None  # its class number, where known
    file: str  # its array, from the cache's folder
    frames: int  # how many are kept
    height: int  # of the kept frames
    width: int  # of the kept frames
    fps: float | None  # frames per second of the video, where it says so
    bytes: int | None  # size of the video's file; None where it is remote
    # When the video's file was changed last, in nanoseconds; None where it is remote.
    modified: int | None

    @property
    def stale(self) -> bool:
        """Is the video another one now? One that is gone, or remote, is taken for the same."""
        state = _state(self.source)
        return state is not None and state != (self.bytes, self.modified)


@dataclass
class Index:
    """What is in a cache."""

    size: int  # short side of the frames
    frames: int | None = None  # how many are kept of each video, evenly spread; None keeps all
    # What the labels stand for, where the videos lay in a folder per class.
    class_names: tuple[str, ...] | None = None
    videos: dict[str, Cached] = field(default_factory=dict)  # each video by its name
    # What is wrong with the others, by their names.
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path) -> Index:
        """The index of a cache; refuses a folder that is none, and a damaged index."""
        path = Path(folder) / INDEX
        try:
            content: dict[str, Any] = json.loads(path.read_text())
            if content.pop("format") != _FORMAT:
                raise ValueError("it is of another version")
            names = content["class_names"]
            content["class_names"] = None if names is None else tuple(names)
            videos = [Cached(**video) for video in content.pop("videos")]
            return cls(videos={video.path: video for video in videos}, **content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: not the index of a cache ({error}); make it with sta data cache"
            ) from None

    def write(self, folder: Path) -> None:
        """Write the index; a kill in between leaves the last one whole."""
        content = {
            "format": _FORMAT,
            **asdict(self),
            "videos": [*map(asdict, self.videos.values())],
        }
        partial = folder / f"{INDEX}.partial"
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.replace(folder / INDEX)


def is_cache(name: str) -> bool:
    """Is this the folder of a cache?"""
    path = Path(name) / INDEX
    if "://" in name or not path.is_file():
        return False
    with path.open() as file:
        return _FORMAT in file.read(200)


def open_cache(name: str) -> Index:
    """The index of a cache that is to be read; says which of its videos are missing or stale."""
    index = Index.read(name)
    if index.left_out:
        first = "; ".join(f"{path}: {why}" for path, why in [*index.left_out.items()][:3])
        warnings.warn(
            f"{name}: {len(index.left_out)} videos could not be cached and are left out ({first})",
            stacklevel=3,
        )
    if stale := [video.path for video in index.videos.values() if video.stale]:
        warnings.warn(
            f"{name}: {len(stale)} videos have changed since they were cached, e.g. {stale[0]}; "
            f"run sta data cache again",
            stacklevel=3,
        )
    return index


# Reading


def read_frames(path: str, spec: ViewSpec) -> Views:
    """The views of an array of uint8 RGB frames; a `VideoError` where the file is none."""
    from sta.video.errors import VideoError

    try:
        video: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise VideoError("there is no such file", "missing") from None
    except PermissionError:
        raise VideoError("permission to read it is denied", "unreadable") from None
    except (OSError, ValueError, EOFError) as error:
        raise VideoError(f"damaged: the array cannot be read ({error})") from None
    if video.dtype != np.uint8 or video.ndim != 4 or video.shape[-1] != 3 or not len(video):
        raise VideoError(f"an array of {video.dtype} {video.shape} is no video: expected uint8 RGB")
    clips = clip_indices(len(video), spec)  # (T, F)
    needed, positions = np.unique(clips, return_inverse=True)
    old: tuple[int, int] = (video.shape[1], video.shape[2])
    size = resized(*old, spec)
    window, offsets = crop_window(*size, spec)
    frames = np.empty((len(needed), *window[2:], 3), dtype=np.uint8)
    resizer = Resizer(old, size, window)
    for place, number in enumerate(needed):
        resizer(video[number], frames[place])
    return Views(frames, positions.reshape(clips.shape), offsets, spec.size)


# Making


def make_cache(
    name: str,
    out: str | Path,
    *,
    root: str | None = None,
    size: int = 128,
    frames: int | None = None,
    workers: int | None = None,
    timeout: float = 60.0,
) -> Iterator[tuple[str, str | None]]:
    """Cache the videos of a list or folder, yielding each one's name and what is wrong with it.

    Run again, it goes on: what is there and unchanged is kept. The index is whole at any time.
    Frames are resized to a short side of `size`. With `frames`, so many of each video are kept,
    evenly spread, and strides then count these; None keeps all. A folder that holds something else,
    or a cache of other settings, is refused.
    """
    from sta.video.prefetch import default_workers, prefetch_map
    from sta.video.safe import SafeDecoder

    for setting, value in (("size", size), ("frames", frames)):
        if value is not None and value < 1:
            raise ValueError(f"{setting}={value} is not possible: use 1 or more")
    entries, class_names = _entries(name, root)
    folder = Path(out)
    index = _start(folder, Index(size, frames, class_names))
    before = index.videos
    index.videos, index.left_out = {}, {}
    todo: list[Entry] = []
    for entry in entries:
        kept = before.get(entry.path)
        if kept is not None and _whole(folder, kept, entry.source):
            index.videos[entry.path] = Cached(**{**asdict(kept), "label": entry.label})
            yield entry.path, None
        else:
            todo.append(entry)
    workers = workers or default_workers()
    spec = ViewSpec(frames or MOST_FRAMES, 1, size, spatial=2, sampling="uniform")
    decoders = [SafeDecoder(spec, timeout) for _ in range(workers)]
    results = prefetch_map(todo, decoders, partial(_cache_one, folder), 2 * workers)
    saved = time.monotonic()
    try:
        for entry, result in zip(todo, results, strict=True):
            if isinstance(result, str):
                index.left_out[entry.path] = result
            else:
                index.videos[entry.path] = result
            if time.monotonic() - saved > _SAVE_SECONDS:
                index.write(folder)
                saved = time.monotonic()
            yield entry.path, result if isinstance(result, str) else None
    finally:
        index.write(folder)
    used = {video.file for video in index.videos.values()}
    for file in (folder / FRAMES).iterdir():
        if f"{FRAMES}/{file.name}" not in used:
            file.unlink()


def count_videos(name: str, root: str | None = None) -> int:
    """How many videos a cache of a list or folder would hold."""
    return len(_entries(name, root)[0])


def _entries(name: str, root: str | None) -> tuple[list[Entry], tuple[str, ...] | None]:
    from sta.video.lists import class_folders, find_labelled, find_videos, is_folder

    if is_cache(name):
        raise ValueError(f"{name}: this is a cache already; give the list or folder of the videos")
    if is_folder(name) and (folders := class_folders(name)):
        return find_labelled(name, classes=folders), tuple(folders)
    return find_videos([name], root), None


def _start(folder: Path, wanted: Index) -> Index:
    if not folder.exists() or not any(folder.iterdir()):
        (folder / FRAMES).mkdir(parents=True, exist_ok=True)
        return wanted
    found = Index.read(folder)
    for name in ("size", "frames"):
        if (have := getattr(found, name)) != (asked := getattr(wanted, name)):
            raise ValueError(
                f"{folder}: the cache there has {name}={have or 'all'}, not {asked or 'all'}; use "
                f"the same, or another folder"
            )
    found.class_names = wanted.class_names
    return found


def _whole(folder: Path, video: Cached, source: str) -> bool:
    """Is the array there, and of the file as it is now?"""
    return video.source == source and not video.stale and (folder / video.file).is_file()


def _cache_one(folder: Path, decoder: SafeDecoder, entry: Entry) -> Cached | str:
    """The array of a video is written where it is decoded."""
    from sta.video.decode import VideoError, frame_rate

    state = _state(entry.source)
    try:
        views = decoder(entry.source)
        fps = frame_rate(entry.source)
    except VideoError as error:
        return str(error)
    # Two crops at both ends cover the whole picture, and each needed frame is there once.
    video = views.frames
    name = hashlib.sha256(entry.source.encode("utf-8", "surrogateescape")).hexdigest()[:20]
    file = f"{FRAMES}/{name}{ENDING}"
    partial = folder / f"{file}.partial"
    with partial.open("wb") as stream:
        np.save(stream, video)
    partial.replace(folder / file)
    count, height, width = video.shape[:3]
    known = (None, None) if state is None else state
    return Cached(
        entry.path, entry.source, entry.label, file, count, height, width, fps, known[0], known[1]
    )


def _state(source: str) -> tuple[int, int] | None:
    """Size and time of a file; None where it is not here."""
    if "://" in source:
        return None
    try:
        state = Path(source).stat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns
