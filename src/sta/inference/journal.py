"""A file of results that survives being killed.

Rows are appended to a JSON Lines file as they come. Parquet and CSV files are written from it at
the end, so a run that was killed has lost nothing, whatever it was writing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from sta.inference.rowfiles import ENDINGS, convert, from_line, read_rows, to_line
from sta.inference.rows import Row
from sta.video.lists import exists, is_remote


def check_out(out: str | None, *, resume: bool = False, overwrite: bool = False) -> None:
    """Refuse a file of results that cannot be made, or that would be lost.

    Raises:
        ValueError: It has another ending, or the flags contradict each other or lack the file.
        FileExistsError: It is there, or rows of an unfinished run are, and nothing is said of them.
    """
    if resume and overwrite:
        raise ValueError("--resume goes on with a file, --overwrite starts it anew: give one")
    if out is None:
        if resume or overwrite:
            flag = "--resume" if resume else "--overwrite"
            raise ValueError(f"{flag} needs the file that it is about: give it as --out FILE")
        return
    if PurePosixPath(out).suffix.lower() not in ENDINGS:
        raise ValueError(f"{out}: results are written as {', '.join(ENDINGS)}; use one of them")
    if resume or overwrite:
        return
    for file in dict.fromkeys((out, str(_journal_path(out)))):
        if exists(file):
            raise FileExistsError(
                f"{file}: holds the rows of an earlier run; --resume goes on with them, "
                f"--overwrite starts anew"
            )


def _journal_path(out: str) -> Path:
    """Where the rows are collected while the run lasts."""
    if is_remote(out):
        return Path(PurePosixPath(out).name + ".partial.jsonl")
    return Path(out if PurePosixPath(out).suffix.lower() == ".jsonl" else f"{out}.partial.jsonl")


class Journal:
    """A file of rows that grows video by video and can be continued.

    Args:
        out: The file to make: ``.jsonl``, ``.parquet`` or ``.csv``, local or remote.
        resume: Keep the complete videos that are there and go on after them.
        overwrite: Start over where there is such a file already, which is an error otherwise.
        rows_per_video: Rows that a complete video has.
        settings: What the rows depend on (model, views ...). Continuing with others is refused.
    """

    def __init__(
        self,
        out: str,
        *,
        resume: bool = False,
        overwrite: bool = False,
        rows_per_video: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        check_out(out, resume=resume, overwrite=overwrite)
        self.out = out
        self.kind = PurePosixPath(out).suffix.lower()
        self.rows_per_video = rows_per_video
        self.path = _journal_path(out)
        self.done: set[str] = set()
        self._settings_path = self.path.with_name(self.path.name + ".settings.json")
        if resume:
            self._check_settings(settings or {})
            self._recover()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = self.path.open("ab" if resume else "wb")
        self._settings_path.write_text(json.dumps(settings or {}, indent=1, default=str) + "\n")

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        if not self._settings_path.exists():
            return
        try:
            before = json.loads(self._settings_path.read_text())
        except ValueError:
            return  # killed while it was written: no row was there yet
        now = json.loads(json.dumps(settings, default=str))
        for name in now.keys() & before.keys():
            if now[name] != before[name]:
                raise ValueError(
                    f"{self.out}: cannot be resumed with {name} {now[name]!r}, its rows were made "
                    f"with {before[name]!r}; use the same, or start over with --overwrite"
                )

    def _recover(self) -> None:
        """Find the complete videos; cut off what was being written when the run ended."""
        if not self.path.exists():
            if self.kind == ".jsonl" or is_remote(self.out) or not Path(self.out).exists():
                return
            half = self.path.with_name(self.path.name + ".tmp")
            with half.open("wb") as file:  # a finished run that is to go on
                file.writelines(to_line(row) for row in read_rows(self.out))
            half.replace(self.path)
        counts: dict[str, int] = {}
        complete = position = 0
        with self.path.open("rb") as file:
            for line in file:
                position += len(line)
                row = from_line(line)
                if row is None:
                    break
                path = row["path"]
                counts[path] = counts.get(path, 0) + 1
                if counts[path] == self.rows_per_video:
                    self.done.add(path)
                    complete = position
        with self.path.open("r+b") as file:
            file.truncate(complete)

    def append(self, rows: Iterable[Row]) -> None:
        """Add all rows of one video, at once."""
        self._file.write(b"".join(to_line(row) for row in rows))
        self._file.flush()

    def rows(self) -> Iterator[Row]:
        """All rows, also those of earlier runs."""
        self._file.flush()
        return read_rows(str(self.path))

    def finish(self) -> None:
        """Close, and make the Parquet or CSV file."""
        self._file.close()
        if str(self.path) == self.out:
            return
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
        """Close and leave everything for a later `resume`."""
        self._file.close()


class MemoryJournal:
    """The same for a run whose rows are shown and not kept."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        self._rows: list[Row] = []

    def append(self, rows: Iterable[Row]) -> None:
        """Add all rows of one video."""
        self._rows += rows

    def rows(self) -> Iterator[Row]:
        """All rows."""
        return iter(self._rows)


@contextmanager
def open_journal(
    out: str | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    rows_per_video: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Journal | MemoryJournal]:
    """A journal for `out`, or in memory without one.

    It is finished when all went well, and else left as it is, for a later run to resume.
    """
    if out is None:
        check_out(out, resume=resume, overwrite=overwrite)
        yield MemoryJournal()
        return
    journal = Journal(
        out, resume=resume, overwrite=overwrite, rows_per_video=rows_per_video, settings=settings
    )
    try:
        yield journal
    except BaseException:
        journal.close()
        raise
    journal.finish()
