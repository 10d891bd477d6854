"""One array of features per video, written window by window."""

from __future__ import annotations

import hashlib
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
from sta.inference.samples import Scored

ArrayFormat = Literal["npy", "npz"]
FORMATS: tuple[ArrayFormat, ...] = ("npy", "npz")
#: The journal of a folder of arrays: a row per video.
INDEX = "index.jsonl"
_COPY_BYTES = 2**20


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

    Args:
        folder: Where the arrays go.
        kind: "npy" is the features alone, ``(windows, ...)``; "npz" has ``features``, and ``start``
            and ``end`` in seconds.
        names: What the array of each path is called, without its ending.
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
        if video.scores is not None and video.start is not None and video.end is not None:
            if array is None:
                array = _Array(self.folder / f"{self.names[video.path]}.{self.kind}.part")
                self._open[video.path] = array
            array.append(video.scores[0], video.start, video.end)
        if not video.last:
            return []
        file, count = None, 0
        if array is not None:
            file, count = f"{self.names[video.path]}.{self.kind}", len(array.times)
            array.finish(self.folder / file, self.kind)
            del self._open[video.path]
        row: Row = {"path": video.path, "file": file, "windows": count}
        return [{**row, "error": video.error, "error_kind": video.error_kind}]

    def close(self) -> None:
        """Take away what is not whole."""
        for array in self._open.values():
            array.abandon()
        self._open.clear()


class _Array:
    """A .npy file that grows; its header, which has room for any length, is written at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.times: list[tuple[float, float]] = []
        self._shape: tuple[int, ...] = ()
        with writing(path):
            self._file: BinaryIO = path.open("wb+")

    def append(self, features: NDArray[np.floating], start: float, end: float) -> None:
        with writing(self.path):
            if not self.times:
                self._shape = features.shape
                self._header(0)
            self._file.write(np.ascontiguousarray(features, dtype="<f4").tobytes())
        self.times.append((start, end))

    def _header(self, count: int) -> None:
        about = {"descr": "<f4", "fortran_order": False, "shape": (count, *self._shape)}
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
                    while block := file.read(_COPY_BYTES):
                        out.write(block)
                for name, values in (("start", times[:, 0]), ("end", times[:, 1])):
                    with archive.open(f"{name}.npy", "w") as out:
                        npy.write_array(out, values)
            packed.replace(self.path)
        finally:
            packed.unlink(missing_ok=True)

    def abandon(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)
