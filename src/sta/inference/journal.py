"""A file of results that survives being killed.

Rows are appended to a JSON Lines file as they come. Parquet and CSV files are written from it at
the end, so a run that was killed has lost nothing, whatever it was writing. Each row says what it
was made of (`origin`), so any file of rows, finished or not, can be gone on with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from sta.inference.outputs import check_writable, locked, writing
from sta.inference.rows import Row, check_ending, convert, from_line, read_rows, to_line
from sta.video.lists import exists, is_remote

_DIGITS = 6  # of each setting's digest
_VERSION = "sta"  # the setting that is written as it is
#: What a resumed run must know of a video that is done.
_ERROR = ("error", "error_kind")
_REMEMBERED = ("label", *_ERROR, "origin")


def check_out(
    out: str | None, *, resume: bool = False, overwrite: bool = False, retry_failed: bool = False
) -> None:
    """Refuse a file of results that cannot be made, or that would be lost.

    That is another ending, a format whose package is not installed, flags that contradict each
    other or lack the file, a file that cannot be written, or one that is there while nothing is
    said of it.
    """
    if resume and overwrite:
        raise ValueError("resume=True goes on with a file, overwrite=True starts it anew: give one")
    if retry_failed and not resume:
        raise ValueError("retry_failed=True goes on with a file of rows: give resume=True as well")
    if out is None:
        if resume or overwrite:
            flag = "resume=True" if resume else "overwrite=True"
            raise ValueError(f'{flag} needs the file that it is about: give it as out="FILE"')
        return
    check_ending(out)
    for file in dict.fromkeys((out, str(_journal_path(out)))):
        check_writable(file)
        if not resume and not overwrite and exists(file):
            with locked(out):
                pass  # a run that writes it right now is named first
            raise FileExistsError(
                f"{file}: holds the rows of an earlier run; resume=True goes on with "
                f"them, overwrite=True starts anew"
            )


def _journal_path(out: str) -> Path:
    """Where the rows are collected while the run lasts."""
    if is_remote(out):
        return Path(PurePosixPath(out).name + ".partial.jsonl")
    return Path(out if PurePosixPath(out).suffix.lower() == ".jsonl" else f"{out}.partial.jsonl")


def signature(settings: Mapping[str, Any]) -> str:
    """A short digest of each setting, in the order of their names; of `sta` the version itself."""
    digests = []
    for name in sorted(settings):
        text = json.dumps(settings[name], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
        digests.append(str(settings[name]) if name == _VERSION else digest)
    return "-".join(digests)


class Journal:
    """A file of rows that grows video by video and can be continued: .jsonl, .parquet or .csv.

    `rows_per_video` is how many rows a complete video has; None if that differs, and the last one's
    origin says how many. Continuing with other `settings` (model, views ...) is refused. `known`
    are the complete videos: path to what its rows were made of and whether it failed.
    """

    def __init__(
        self,
        out: str,
        *,
        resume: bool = False,
        overwrite: bool = False,
        rows_per_video: int | None = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        check_out(out, resume=resume, overwrite=overwrite)
        self.out = out
        self.kind = PurePosixPath(out).suffix.lower()
        self.rows_per_video = rows_per_video
        self.settings = settings or {}
        self.path = _journal_path(out)
        self.known: dict[str, Row] = {}
        torn = self._recover() if resume else set()
        with writing(self.path):
            self._open("ab" if resume else "wb")
        self.discard(torn)

    @property
    def done(self) -> set[str]:
        return set(self.known)

    def _open(self, mode: str) -> None:
        # Without a buffer: what was written is in the file, and closing it cannot fail.
        self._file: BinaryIO = self.path.open(mode, buffering=0)  # type: ignore[assignment]
        self._size = self.path.stat().st_size

    def _recover(self) -> set[str]:
        """Find the complete videos; cut off what was being written when the run ended.

        Gives the videos of which some rows are left that are not complete.
        """
        if not self.path.exists():
            if str(self.path) == self.out or not exists(self.out):
                return set()
            with self._replacing() as file:  # a finished run that is to go on
                for finished in read_rows(self.out):
                    self._check_settings(finished)
                    file.write(to_line(finished))
        counts: dict[str, int] = {}
        failed: dict[str, Row] = {}  # of each video the first row with an error
        complete = position = 0
        with self.path.open("rb") as file:
            for line in file:
                position += len(line)
                row = from_line(line)
                if row is None:
                    break
                self._check_settings(row)
                path = row["path"]
                counts[path] = counts.get(path, 0) + 1
                if row.get("error") is not None:
                    failed.setdefault(path, row)
                expected = self.rows_per_video
                if expected is None:
                    expected = (row.get("origin") or {}).get("rows")
                if counts[path] == expected:
                    about = {**row, **{name: failed.get(path, row).get(name) for name in _ERROR}}
                    self.known[path] = {name: about.get(name) for name in _REMEMBERED}
                    complete = position
        with writing(self.path), self.path.open("r+b") as file:
            file.truncate(complete)
        return counts.keys() - self.known.keys()

    def _check_settings(self, row: Row) -> None:
        """Refuse to add to rows that were made with other settings."""
        if not self.settings:
            return
        before = (row.get("origin") or {}).get("settings")
        if not before:
            raise ValueError(
                f"{self.out}: cannot be resumed: its rows do not say what they were made of; start "
                f"over with overwrite=True"
            )
        olds, news = before.split("-"), signature(self.settings).split("-")
        if olds == news:
            return
        what, other = "these settings, or by this command", "another"
        if len(olds) == len(news):
            changes = zip(sorted(self.settings), olds, news, strict=True)
            changed, old = next((name, old) for name, old, new in changes if old != new)
            what = f"{changed} {self.settings[changed]!r}"
            other = repr(old) if changed == _VERSION else other
        raise ValueError(
            f"{self.out}: cannot be resumed with {what}: its rows were made with {other}; use "
            f"the same, or start over with overwrite=True"
        )

    def append(self, rows: Iterable[Row]) -> None:
        """Add all rows of one video, at once."""
        data = memoryview(b"".join(to_line(row) for row in rows))
        hint = "; the rows before are kept: make room, then go on with resume=True"
        with writing(self.path, hint):
            try:
                written = 0
                while written < len(data):
                    written += self._file.write(data[written:])
            except OSError:
                with suppress(OSError):
                    self._file.truncate(self._size)  # no half row
                raise
        self._size += len(data)

    def discard(self, paths: Collection[str]) -> None:
        """Take the rows of videos out again, to be made anew."""
        if paths:
            with self._rewriting() as (old, new):
                new.writelines(line for path, line in _lines(old) if path not in paths)
        for path in paths:
            self.known.pop(path, None)

    def sort(self, position: Callable[[str], int]) -> None:
        """Put the videos in order, those of the same position as they are."""
        spans: list[tuple[int, int, int]] = []  # position, where its line starts, how long it is
        with self.path.open("rb") as file:
            start = 0
            for path, line in _lines(file):
                spans.append((position(path), start, len(line)))
                start += len(line)
        in_order = sorted(spans)  # lines are found again by their place: rows need not fit memory
        if in_order == spans:
            return
        with self._rewriting() as (old, new):
            for _, start, length in in_order:
                old.seek(start)
                new.write(old.read(length))

    @contextmanager
    def _rewriting(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """The journal as it is, and the one that takes its place."""
        self._file.close()
        with self.path.open("rb") as old, self._replacing() as new:
            yield old, new
        self._open("ab")

    @contextmanager
    def _replacing(self) -> Iterator[BinaryIO]:
        """A new journal, which takes the place of the old one when it is whole."""
        half = self.path.with_name(self.path.name + ".tmp")
        try:
            with writing(half):
                with half.open("wb") as file:
                    yield file
                half.replace(self.path)
        finally:
            half.unlink(missing_ok=True)

    def rows(self) -> Iterator[Row]:
        """All rows, also those of earlier runs."""
        return read_rows(str(self.path))

    def finish(self) -> None:
        """Close, and make the Parquet or CSV file."""
        self._file.close()
        if str(self.path) == self.out:
            return
        hint = f"; the rows are in {self.path}: make room, then go on with resume=True"
        with writing(self.out, hint):
            if is_remote(self.out):
                import fsspec

                with fsspec.open(self.out, "wb") as file:
                    convert(self.path, self.kind, file)
            else:
                half = Path(self.out + ".tmp")
                with half.open("wb") as file:
                    convert(self.path, self.kind, file)
                half.replace(self.out)  # whole or not at all
        self.path.unlink()

    def close(self) -> None:
        self._file.close()


def _lines(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    for line in file:
        row = from_line(line)
        if row is not None:
            yield row["path"], line


class MemoryJournal:
    """The same for a run whose rows are not kept in a file."""

    def __init__(self) -> None:
        self.known: dict[str, Row] = {}
        self._rows: list[Row] = []

    def append(self, rows: Iterable[Row]) -> None:
        self._rows += rows

    def discard(self, paths: Collection[str]) -> None:
        self._rows = [row for row in self._rows if row["path"] not in paths]

    def sort(self, position: Callable[[str], int]) -> None:
        self._rows.sort(key=lambda row: position(row["path"]))

    def rows(self) -> Iterator[Row]:
        return iter(self._rows)


@contextmanager
def open_journal(
    out: str | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    rows_per_video: int | None = 1,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Journal | MemoryJournal]:
    """A journal for `out`, which no other run may write meanwhile; or in memory without one.

    It is finished when all went well, and else left as it is, for a later run to resume.
    """
    check_out(out, resume=resume, overwrite=overwrite)
    if out is None:
        yield MemoryJournal()
        return
    with locked(out):
        journal = Journal(
            out,
            resume=resume,
            overwrite=overwrite,
            rows_per_video=rows_per_video,
            settings=settings,
        )
        try:
            yield journal
        except BaseException:
            journal.close()
            raise
        journal.finish()
