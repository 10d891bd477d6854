"""The loop of every run: videos to rows, in a journal that survives being stopped.

`sta.predict`, `sta.evaluate` and whatever else makes rows of videos run through `collect`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from sta.inference.journal import Journal, MemoryJournal, open_journal, signature
from sta.inference.rows import Row, read_rows
from sta.inference.scoring import TRANSIENT, Scored
from sta.progress import ProgressArg, Report, reporting
from sta.results import Result
from sta.video.lists import Entry, is_remote

T = TypeVar("T")
R = TypeVar("R", bound="RowsResult")
#: Requests for the size of remote files at a time.
_REMOTE_THREADS = 16


class Failure(NamedTuple):
    """A video without predictions."""

    path: str
    error: str
    kind: str


class Score(Protocol):
    """Scores videos, as `sta.inference.run.Run.score` does."""

    def __call__(self, entries: Iterable[Entry], *, alone: bool = False) -> Iterator[Scored]:
        """Each video once, in any order."""


@dataclass
class Job:
    """What there is to do."""

    entries: Sequence[Entry]  # the videos, each path once
    score: Score  # scores videos
    rows: Callable[[Scored], list[Row]]  # the rows of a video
    # How many those are; None if that differs, and the score says which is a video's last.
    rows_per_video: int | None
    # What the rows depend on; a file of rows is only resumed with the same.
    settings: Mapping[str, Any]


@dataclass
class Collected(Generic[T]):
    """What a run has made."""

    summary: T
    done: int
    total: int
    failures: list[Failure]
    interrupted: bool


@dataclass
class RowsResult(Result):
    """Rows of videos, in the order of the videos, in memory or in a file; it iterates over them.

    Attributes:
        total: Videos that were asked for.
        done: Videos that have their rows: all, unless Ctrl-C ended the run.
        failures: Videos that could not be read to their end: path, error and kind of each.
        out: The file of rows, or the folder of arrays; None where the rows are here.
    """

    total: int
    done: int
    failures: list[Failure]
    out: str | None = None
    _file: str | None = field(default=None, repr=False)
    _rows: list[Row] = field(default_factory=list, repr=False)
    _paths: frozenset[str] = field(default_factory=frozenset, repr=False)

    def __iter__(self) -> Iterator[Row]:
        if self._file is None:
            yield from self._rows
            return
        for row in read_rows(self._file):
            if row["path"] in self._paths:
                yield {name: value for name, value in row.items() if name != "origin"}

    def __len__(self) -> int:
        return len(self._rows) if self._file is None else sum(1 for _ in self)

    def records(self) -> list[Row]:
        return list(self)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run. `result` is what was done until then; files hold it, too."""

    def __init__(self, result: Any) -> None:
        super().__init__("interrupted")
        self.result = result


def collect(
    job: Job,
    summarise: Callable[[Iterator[Row]], T],
    *,
    out: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    retry_failed: bool = False,
    progress: ProgressArg = True,
) -> Collected[T]:
    """Score videos into rows, in the file `out` or in memory.

    `summarise` gets them in the order of the job's videos. A failure that may be gone the next time
    (see `TRANSIENT`) is tried again at the end of the run; a decoder that was killed then has the
    machine's memory for itself. `resume` keeps the rows that were made of the same file and label,
    and tries such failures again; with `retry_failed`, all failures.
    """
    position = {entry.path: number for number, entry in enumerate(job.entries)}
    with open_journal(
        out,
        resume=resume,
        overwrite=overwrite,
        rows_per_video=job.rows_per_video,
        settings=job.settings,
    ) as journal:
        journal.discard(set(_outdated(job, journal.known, retry_failed)))
        left = [entry for entry in job.entries if entry.path not in journal.known]
        interrupted = False
        with reporting(progress, "videos") as report:
            writer = _Writer(job, journal, report)
            writer.done = len(job.entries) - len(left)
            try:
                writer.run(left)
            except KeyboardInterrupt:
                interrupted = True
                journal.discard(set(writer.written))  # of which some windows are there
        journal.sort(lambda path: position.get(path, -1))
        failures = list(_failures(_of_job(journal, position)))
        summary = summarise(_of_job(journal, position))
        return Collected(summary, writer.done, len(job.entries), failures, interrupted)


def collect_rows(
    kind: type[R], job: Job, *, out: str | None, file: str | None, **options: Any
) -> R:
    """Score videos into a result of their rows, which are in `file`, or in memory without one.

    Ctrl-C raises `Interrupted`, whose `result` is what was done.
    """
    keep: Callable[[Iterator[Row]], list[Row]] = list if file is None else lambda rows: []
    done = collect(job, keep, out=file, **options)
    paths = frozenset(entry.path for entry in job.entries)
    result = kind(done.total, done.done, done.failures, out, file, done.summary, paths)
    if done.interrupted:
        raise Interrupted(result)
    return result


class _Writer:
    """Scores videos and writes their rows."""

    def __init__(self, job: Job, journal: Journal | MemoryJournal, report: Report) -> None:
        self.job = job
        self.journal = journal
        self.report = report
        self.done = self.failed = self.clips = 0
        self.started = time.monotonic()
        self.signature = signature(job.settings)
        self.made_of: dict[str, tuple[int | None, float | None]] = {}  # until the row is written
        self.source: dict[str, str] = {}
        self.waiting: dict[str, Scored] = {}  # failures that are to be tried again
        self.written: dict[str, int] = {}  # rows so far, of videos that are not done

    def run(self, entries: Sequence[Entry]) -> None:
        """Everything, and what failed but may work now once more."""
        self._report()
        try:
            self._score(entries, keep_transient=False)
            killed = {p for p, video in self.waiting.items() if video.error_kind == "killed"}
            again = [entry for entry in entries if entry.path in self.waiting]
            self._score([entry for entry in again if entry.path not in killed])
            self._score([entry for entry in again if entry.path in killed], alone=True)
        except KeyboardInterrupt:
            for video in list(self.waiting.values()):
                self._write(video)
            raise

    def _score(
        self, entries: Sequence[Entry], *, alone: bool = False, keep_transient: bool = True
    ) -> None:
        if not entries:
            return
        videos: Any = self.job.score(self._noted(entries), alone=alone)
        with closing(videos):  # when interrupted, its processes end now
            for video in videos:
                self.clips += video.views
                if video.error_kind in TRANSIENT and not keep_transient:
                    self.waiting[video.path] = video
                    if self.written.pop(video.path, None):
                        self.journal.discard({video.path})  # its windows are made again
                else:
                    self._write(video)

    def _noted(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The same, each file's size and time noted before it is read."""
        for entry in entries:
            self.source[entry.path] = entry.source
            self.made_of[entry.path] = file_state(entry.source)
            yield entry

    def _write(self, video: Scored) -> None:
        rows = self.job.rows(video)
        path = video.path
        if isinstance(self.journal, Journal):  # to be compared when the file is gone on with
            size, mtime = self.made_of[path]
            origin: Row = {"source": self.source[path], "size": size, "mtime": mtime}
            origin["settings"] = self.signature
            if self.job.rows_per_video is None:  # the last row says that it is the last
                count = self.written.get(path, 0) + len(rows)
                origin["rows"] = count if video.last else None
            rows = [{**row, "origin": origin} for row in rows]
        self.waiting.pop(path, None)  # first: an interrupt may cost a row, never double it
        if not video.last:
            self.written[path] = self.written.get(path, 0) + len(rows)
            self.journal.append(rows)
            return
        self.journal.append(rows)
        for known in (self.written, self.made_of, self.source):
            known.pop(path, None)
        self.done += 1
        self.failed += video.error is not None
        self._report()

    def _report(self) -> None:
        speed = self.clips / max(time.monotonic() - self.started, 1e-9)
        failed = f", {self.failed} failed" if self.failed else ""
        self.report(f"{speed:.1f} clips/s{failed}", self.done, len(self.job.entries))


def file_state(source: str) -> tuple[int | None, float | None]:
    """Size and time of the last change of a file; None where unknown."""
    try:
        if is_remote(source):
            import fsspec

            system, path = fsspec.url_to_fs(source)
            info = system.info(path)
            changed = info.get("mtime") or info.get("LastModified") or info.get("created")
            stamp = getattr(changed, "timestamp", None)
            return info.get("size"), float(stamp() if stamp else changed) if changed else None
        state = Path(source).stat()
        return state.st_size, state.st_mtime
    except Exception:  # file systems raise their own kinds; reading it will say what is wrong
        return None, None


def _outdated(job: Job, known: Mapping[str, Row], retry_failed: bool) -> Iterator[str]:
    """Videos whose rows are to be made again: changed since, or failed and worth another try."""
    entries = [entry for entry in job.entries if entry.path in known]
    remote = [entry.source for entry in entries if is_remote(entry.source)]
    with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
        states = dict(zip(remote, pool.map(file_state, remote), strict=True))
    for entry in entries:
        row = known[entry.path]
        origin = row["origin"]
        state = states.get(entry.source) or file_state(entry.source)
        made_of = (origin["source"], (origin["size"], origin["mtime"]))
        failed = row["error"] is not None
        if (
            made_of != (entry.source, state)
            or (None not in (row["label"], entry.label) and row["label"] != entry.label)
            or (failed and (retry_failed or row["error_kind"] in TRANSIENT))
        ):
            yield entry.path


def _of_job(journal: Journal | MemoryJournal, position: Mapping[str, int]) -> Iterator[Row]:
    return (row for row in journal.rows() if row["path"] in position)


def _failures(rows: Iterator[Row]) -> Iterator[Failure]:
    last = None
    for row in rows:  # those of one video stand together
        if row["error"] is not None and row["path"] != last:
            last = row["path"]
            yield Failure(row["path"], row["error"], row["error_kind"] or "damaged")
