"""One array of features per video, written window by window."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sta.inference.outputs import writing
from sta.inference.rows import Row
from sta.inference.scoring import Scored

ArrayFormat = Literal["npy", "npz"]
FORMATS: tuple[ArrayFormat, ...] = ("npy", "npz")
#: The journal of a folder of arrays: a row per video.
INDEX = "index.jsonl"


def file_names(paths: Iterable[str]) -> dict[str, str]:
    """A name in one folder for every path: its stem, and a digest where stems are not unique."""
    stems = {path: PurePosixPath(path).stem or "video" for path in paths}
    counts = Counter(stem.lower() for stem in stems.values())
    return {
        path: stem
        if counts[stem.lower()] == 1
        else f"{stem}-{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
        for path, stem in stems.items()
    }


class ArrayFolder:
    """Makes the rows of a folder of arrays: one per video, once its array is whole.

    "npy" is the features alone, ``(windows, ...)``; "npz" has ``features``, and ``start`` and
    ``end`` in seconds. `names` are the arrays' names by path, without their endings.
    """

    def __init__(self, folder: Path, kind: ArrayFormat, names: dict[str, str]) -> None:
        self.folder, self.kind, self.names = folder, kind, names
        self._open: dict[str, _Array] = {}

    def rows(self, video: Scored) -> list[Row]:
        """Write one window; the row of a video comes with its last."""
        array = self._open.get(video.path)
        if array is not None and video.start is not None and video.start <= array.times[-1][0]:
            array.abandon()  # read again from the start, after a failure
            array = None
        if video.start is not None and video.end is not None:
            if array is None:
                array = _Array(self.folder / f"{self.names[video.path]}.{self.kind}.part")
                self._open[video.path] = array
            array.append(None if video.scores is None else video.scores[0], video.start, video.end)
            if video.error is not None:
                array.error = array.error or (video.error, video.error_kind)
        if not video.last:
            return []
        row: Row = {"path": video.path, "file": None, "windows": 0}
        error = video.error, video.error_kind
        if array is not None:
            if array.shape is not None:
                row["file"] = f"{self.names[video.path]}.{self.kind}"
                row["windows"] = len(array.times)
                array.finish(self.folder / row["file"], self.kind)
            else:
                array.abandon()
            error = error if video.error is not None else array.error or error
            del self._open[video.path]
        return [{**row, "error": error[0], "error_kind": error[1]}]

    def close(self) -> None:
        for array in self._open.values():
            array.abandon()
        self._open.clear()


class _Array:
    """A .npy file that grows; its header, which has room for any length, is written at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.times: list[tuple[float, float]] = []
        self.shape: tuple[int, ...] | None = None  # of a window, once one has features
        self.error: tuple[str, str | None] | None = None  # the first of a window
        with writing(path):
            self._file: BinaryIO = path.open("wb+")

    def append(self, features: NDArray[np.floating] | None, start: float, end: float) -> None:
        """Add a window; one without features is NaN, so that the others keep their places."""
        with writing(self.path):
            if self.shape is None and features is not None:
                self.shape = features.shape
                self._header(0)
                for _ in self.times:
                    self._write(None)
            if self.shape is not None:
                self._write(features)
        self.times.append((start, end))

    def _write(self, features: NDArray[np.floating] | None) -> None:
        row = np.full(self.shape or (), np.nan) if features is None else features
        self._file.write(np.ascontiguousarray(row, dtype="<f4").tobytes())

    def _header(self, count: int) -> None:
        about = {"descr": "<f4", "fortran_order": False, "shape": (count, *(self.shape or ()))}
        self._file.seek(0)
        npy.write_array_header_1_0(self._file, about)

    def finish(self, target: Path, kind: ArrayFormat) -> None:
        with writing(target):
            self._header(len(self.times))
            self._file.close()
            if kind == "npz":
                self._pack()
            self.path.replace(target)  # whole or not at all

    def _pack(self) -> None:
        packed = self.path.with_name(self.path.name + "z")
        times = np.array(self.times)
        try:
            with zipfile.ZipFile(packed, "w") as archive:
                with (
                    self.path.open("rb") as file,
                    archive.open("features.npy", "w", force_zip64=True) as out,
                ):
                    shutil.copyfileobj(file, out)
                for name, values in (("start", times[:, 0]), ("end", times[:, 1])):
                    with archive.open(f"{name}.npy", "w") as out:
                        npy.write_array(out, values)
            packed.replace(self.path)
        finally:
            packed.unlink(missing_ok=True)

    def abandon(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)
