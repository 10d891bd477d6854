"""Which videos, and which labels: files, folders, Kinetics lists and Something-Something's JSON.

Everything may be local or on any file system that fsspec knows (``s3://bucket/val.txt``).
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from sta.video.cache import is_cache, open_cache

VIDEO_ENDINGS = frozenset(
    f".{ending}"
    for ending in (
        *("3gp", "asf", "avi", "flv", "gif", "m2ts", "m4v", "mkv", "mov", "mp4"),
        *("mpeg", "mpg", "mts", "ogv", "ts", "webm", "wmv"),
    )
)
LIST_ENDINGS = frozenset((".txt", ".csv", ".json"))
_SSV2_LABELS = ("something-something-v2-labels.json", "labels.json")
_LINE = re.compile(r"(?P<path>.+?)\s*[,\s]\s*(?P<label>-?\d+)\s*")
# "path frames label": the path ends where a video's ending does, before both numbers.
_LINE_WITH_FRAMES = re.compile(
    r"(?P<path>.+\.(?:" + "|".join(ending[1:] for ending in sorted(VIDEO_ENDINGS)) + r"))"
    r"\s*[,\s]\s*\d+\s*[,\s]\s*(?P<label>-?\d+)\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Entry:
    """One video of a list or folder."""

    path: str  # its name in results, as the user or the list has it
    source: str  # what to open
    label: int | None = None  # its class number, where known


def find_videos(
    inputs: str | Path | Sequence[str | Path], root: str | Path | None = None
) -> list[Entry]:
    """The videos that `inputs` name: files, folders (searched to the bottom), lists and caches.

    Entries of lists are relative to `root`, or to the list's own folder without one. A video that
    is named twice is taken once. Video files need not exist: that is found out when they are read.
    """
    entries: list[Entry] = []
    root = None if root is None else str(root)
    for name in map(str, [inputs] if isinstance(inputs, str | Path) else inputs):
        if is_cache(name):
            cached = open_cache(name).videos.values()
            entries += [Entry(video.path, _join(name, video.file), video.label) for video in cached]
        elif is_folder(name):
            left_out: list[str] = []
            found = _walk(name, left_out)
            if links := [file for file in left_out if "ending)" not in file]:
                warnings.warn(f"{name}: left out: {_several(links)}", stacklevel=2)
            if not found:
                raise ValueError(
                    f"{name}: there are no videos in this folder "
                    f"(endings looked for: {' '.join(sorted(VIDEO_ENDINGS))})"
                )
            entries += [Entry(path, path) for path in found]
        elif PurePosixPath(name).suffix.lower() in LIST_ENDINGS:
            entries += _read_list(name, root)
        else:
            entries.append(Entry(name, name))
    entries = [  # lists without labels often have -1 there
        entry if entry.label is None or entry.label >= 0 else replace(entry, label=None)
        for entry in entries
    ]
    unique = {entry.source: entry for entry in reversed(entries)}  # the first of each
    names = Counter(entry.path for entry in unique.values())
    # Two lists may use the same name for different files: those are called by their sources.
    return [
        entry if names[entry.path] == 1 else Entry(entry.source, entry.source, entry.label)
        for entry in reversed(unique.values())
    ]


def find_labelled(
    name: str,
    root: str | None = None,
    *,
    classes: Sequence[str] = (),
    labels: str | None = None,
) -> list[Entry]:
    """The videos of a labelled list, or of a folder with one folder per class.

    Args:
        name: A Kinetics list (``path label``, ``path frames label`` or with commas),
            Something-Something's JSON, a folder, or a cache (see `sta.video.cache`).
        root: Where the list's paths start; the list's own folder by default.
        classes: The model's class names in label order; folders and class names in lists are
            matched with them. Without, folders are numbered alphabetically.
        labels: For a folder, a file with the folders' names in label order, one per line, where
            they are not the model's class names. For Something-Something, its labels file, which is
            looked for next to the list by default.
    """
    if is_cache(name):
        entries = _from_cache(name, classes, labels)
    elif is_folder(name):
        entries = _by_class_folder(name, classes, labels)
    else:
        entries = _read_list(name, root, classes=classes, labels=labels)
    unique: dict[str, Entry] = {}
    for entry in entries:
        if entry.label is None:
            raise ValueError(
                f"{name}: {entry.path!r} has no label; lines must read 'path label' or "
                f"'path,label' with the class's number (or, after a comma, its name)"
            )
        if entry.label < 0 or (classes and entry.label >= len(classes)):
            numbers = f"0..{len(classes) - 1}" if classes else "0 and up"
            raise ValueError(
                f"{name}: label {entry.label} of {entry.path!r} is not a class of the model, which "
                f"has {numbers}; is this the model for this data set, and is the list labelled? "
                f"`sta train --classes` gives the model a new head"
            )
        known = unique.setdefault(entry.source, entry)
        if known.label != entry.label:
            raise ValueError(
                f"{name}: {entry.path!r} is listed twice, with labels {known.label} and "
                f"{entry.label}; keep one"
            )
    if again := len(entries) - len(unique):
        warnings.warn(
            f"{name}: {again} of {len(entries)} videos are listed again; each counts once",
            stacklevel=2,
        )
    return list(unique.values())


def check_source(name: str, labels: str | None = None) -> None:
    """Refuse a labelled list or folder that is not there, before a model is loaded for it."""
    for file in (name, labels):
        if file is not None and not exists(file):
            raise FileNotFoundError(f"{file}: there is no such file or folder")


def _read_list(
    name: str, root: str | None, classes: Sequence[str] = (), labels: str | None = None
) -> list[Entry]:
    text = _read_text(name)
    if root is not None and not is_folder(root):
        raise FileNotFoundError(f"{root}: there is no such folder to find the list's videos in")
    base = root if root is not None else _parent(name)
    if PurePosixPath(name).suffix.lower() == ".json":
        entries = _read_ssv2(name, text, base, labels)
    else:
        entries = [
            _read_line(line, base, classes, name) for line in text.splitlines() if line.strip()
        ]
        _check_lines(name, entries)
    if not entries:
        raise ValueError(f"{name}: the list is empty")
    return entries


def _check_lines(name: str, entries: Sequence[Entry]) -> None:
    """Refuse a text that is no list at all. Single videos may be missing, their rows say so."""
    for entry in entries:
        is_video = PurePosixPath(entry.source).suffix.lower() in VIDEO_ENDINGS
        if is_video or is_remote(entry.source) or exists(entry.source):
            return
    if entries:
        raise ValueError(
            f"{name}: was read as a list of videos, a path per line, but no line names one (the "
            f"first: {entries[0].path[:60]!r}); give video files, folders, or lists of them"
        )


def _read_line(line: str, base: str, classes: Sequence[str], name: str) -> Entry:
    """One line: ``path``, ``path label``, ``path frames label``, or with commas, class names."""
    if match := _LINE_WITH_FRAMES.fullmatch(line) or _LINE.fullmatch(line):
        path, label = match["path"].strip(), int(match["label"])
        return Entry(path, _join(base, path), label)
    path, comma, text = line.rpartition(",")
    if comma and classes:
        number = _numbers(classes).get(_plain(text))
        if number is None:
            raise ValueError(
                f"{name}: {text.strip()!r} in the line {line.strip()!r} is neither a class number "
                f"nor one of the model's class names"
            )
        return Entry(path.strip(), _join(base, path.strip()), number)
    path = line.strip() if not comma else path.strip()
    return Entry(path, _join(base, path))


def _read_ssv2(name: str, text: str, base: str, labels: str | None) -> list[Entry]:
    """Something-Something V2: ``[{"id": ..., "template": ...}]`` and ``{template: number}``."""
    try:
        records = json.loads(text)
        videos = [(str(r["id"]), r.get("template", r.get("label"))) for r in records]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{name}: not a Something-Something list; expected JSON with a list of objects that "
            f"have an 'id' and a 'template' ({type(error).__name__}: {error})"
        ) from None
    labelled = any(template for _, template in videos)
    numbers = _ssv2_numbers(name, labels) if labelled else {}
    entries = []
    for video, template in videos:
        number = numbers.get(_plain(template)) if template else None
        if numbers and template and number is None:
            raise ValueError(f"{name}: template {template!r} of video {video} is not in the labels")
        entries.append(Entry(video, _ssv2_file(base, video), number))
    return entries


def _ssv2_numbers(name: str, labels: str | None) -> dict[str, int]:
    if labels is None:
        beside = [_join(_parent(name), file) for file in _SSV2_LABELS]
        labels = next((file for file in beside if exists(file)), None)
        if labels is None:
            return {}
    try:
        return {_plain(key): int(value) for key, value in json.loads(_read_text(labels)).items()}
    except (ValueError, AttributeError):
        raise ValueError(
            f"{labels}: not a Something-Something labels file; expected JSON that gives each "
            f"template its number"
        ) from None


def _ssv2_file(base: str, video: str) -> str:
    candidates = [_join(base, video + ending) for ending in (".webm", ".mp4", ".avi", ".mkv")]
    return next((file for file in candidates if exists(file)), candidates[0])


def class_folders(name: str) -> list[str]:
    """The names of the folders that hold videos, one per class, in alphabetical order.

    Of a cache, the folders that it was made of.
    """
    if is_cache(name):
        return list(open_cache(name).class_names or ())
    found = {rest.split("/")[0] for rest in _below(name, _walk(name)) if "/" in rest}
    return sorted(found)


def read_names(name: str) -> list[str]:
    """The class names of a file, one per line, in label order."""
    names = [line.strip() for line in _read_text(name).splitlines() if line.strip()]
    if not names:
        raise ValueError(f"{name}: there are no class names in it; expected one per line")
    for first, again in ((names.index(n), i) for i, n in enumerate(names) if names.index(n) < i):
        raise ValueError(
            f"{name}: {names[again]!r} is class {first} and class {again}; keep one of the two"
        )
    return names


def _below(name: str, paths: Iterable[str]) -> list[str]:
    if is_remote(name):
        system, path = _remote(name)
        top = str(system.unstrip_protocol(path))
    else:
        top = Path(name).as_posix()
    return [path.removeprefix(top.rstrip("/") + "/") for path in paths]


def _by_class_folder(name: str, classes: Sequence[str], labels: str | None) -> list[Entry]:
    """A folder per class; the class's number is that of the model's class of the same name."""
    left_out: list[str] = []
    paths = _walk(name, left_out)
    videos = list(zip(paths, _below(name, paths), strict=True))
    left_out += [f"{path} (in no class's folder)" for path, rest in videos if "/" not in rest]
    if left_out:
        warnings.warn(f"{name}: left out: {_several(left_out)}", stacklevel=3)
    folders = sorted({rest.split("/")[0] for _, rest in videos if "/" in rest})
    if not folders:
        raise ValueError(f"{name}: expected one folder of videos per class, found none")
    numbers = _class_numbers(name, folders, classes, labels)
    return [Entry(path, path, numbers[rest.split("/")[0]]) for path, rest in videos if "/" in rest]


def _from_cache(name: str, classes: Sequence[str], labels: str | None) -> list[Entry]:
    """The videos of a cache; where it was made of class folders, they are matched by name."""
    index = open_cache(name)
    numbers: Sequence[int] | None = None
    if index.class_names is not None:
        by_name = _class_numbers(name, index.class_names, classes, labels)
        numbers = [by_name[folder] for folder in index.class_names]
    entries = []
    for video in index.videos.values():
        label = video.label if numbers is None or video.label is None else numbers[video.label]
        entries.append(Entry(video.path, _join(name, video.file), label))
    return entries


def _class_numbers(
    name: str, folders: Sequence[str], classes: Sequence[str], labels: str | None
) -> dict[str, int]:
    names = classes if labels is None else read_names(labels)
    known = _numbers(names or folders)
    if strange := [folder for folder in folders if _plain(folder) not in known]:
        of = "in the labels file" if labels is not None else "a class of the model"
        raise ValueError(
            f"{name}: {len(strange)} of {len(folders)} folders are not {of}, e.g. {strange[0]!r} "
            f"(there are {_first(names)}); rename or remove them, or give a file with the folders' "
            f"names in label order, one per line (labels; for sta train, --classes FILE)"
        )
    return {folder: known[_plain(folder)] for folder in folders}


def _several(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _first(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")


def _numbers(classes: Sequence[str]) -> dict[str, int]:
    return {_plain(name): number for number, name in enumerate(classes)}


def _plain(text: str) -> str:
    """Class names are spelt "ApplyLipstick", "apply_lipstick", "Apply [something]" ..."""
    return re.sub(r"[\W_]+", "", text).lower()


# Files, here or elsewhere


def is_remote(name: str) -> bool:
    """Is this the address of another file system?"""
    return "://" in name


def _remote(name: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    import fsspec

    return fsspec.url_to_fs(name)


def _join(base: str, path: str) -> str:
    if is_remote(path) or path.startswith("/") or base in ("", "."):
        return path
    return f"{base.rstrip('/')}/{path}"


def _parent(name: str) -> str:
    return name.rpartition("/")[0] if is_remote(name) else str(Path(name).parent)


def is_folder(name: str) -> bool:
    """Is there a folder of this name?"""
    if is_remote(name):
        system, path = _remote(name)
        return bool(system.isdir(path))
    return Path(name).is_dir()


def exists(name: str) -> bool:
    """Is there a file or folder of this name?"""
    if is_remote(name):
        system, path = _remote(name)
        return bool(system.exists(path))
    return Path(name).exists()


def _walk(name: str, left_out: list[str] | None = None) -> list[str]:
    """All videos below a folder, in alphabetical order; symbolic links are followed.

    `left_out` receives what could be a video and is none, each with the reason.
    """
    left_out = [] if left_out is None else left_out
    if is_remote(name):
        system, path = _remote(name)
        files = [system.unstrip_protocol(file) for file in system.find(path)]
    else:
        files = _walk_local(name, left_out)
    videos = []
    for file in files:
        ending = PurePosixPath(file).suffix.lower()
        if ending in VIDEO_ENDINGS:
            videos.append(file)
        elif not PurePosixPath(file).name.startswith("."):
            left_out.append(f"{file} (not a video's ending)")
    return sorted(videos)


def _walk_local(name: str, left_out: list[str]) -> list[str]:
    """All files below a folder; also pipes and their like, which cannot be read as a video."""

    def unreadable(error: OSError) -> None:
        left_out.append(f"{error.filename} ({error.strerror})")

    files = []
    parents = {name: {os.path.realpath(name)}}  # the real folders above each, to notice loops
    for folder, inner, found in os.walk(name, followlinks=True, onerror=unreadable):
        for part in list(inner):
            path = os.path.join(folder, part)  # noqa: PTH118 (as os.walk joins)
            real = os.path.realpath(path)
            if real in parents[folder]:
                left_out.append(f"{path} (a link to a folder that it is in)")
                inner.remove(part)
            parents[path] = parents[folder] | {real}
        for part in found:
            file = Path(folder) / part
            if file.exists():
                files.append(file.as_posix())
            else:
                left_out.append(f"{file.as_posix()} (a link to nothing)")
    return files


def _read_text(name: str) -> str:
    try:
        if is_remote(name):
            import fsspec

            with fsspec.open(name, "rb") as file:
                data: bytes = file.read()
        else:
            data = Path(name).read_bytes()
    except OSError as error:
        reason = error.strerror or "there is no such file"
        raise FileNotFoundError(f"{name}: the list cannot be read ({reason})") from None
    # Names that are not UTF-8 pass through unharmed, as Python opens files by them, too.
    return data.decode("utf-8-sig", errors="surrogateescape")
