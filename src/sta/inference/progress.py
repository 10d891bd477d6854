"""How far a run is: a bar on a terminal, a line now and then elsewhere, or a function's call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

#: Seconds between two lines where there is no terminal.
LINE_SECONDS = 30.0


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        done: Videos that have their rows, those of earlier runs included.
        total: Videos in all.
        failed: Videos of this run that failed.
        clips: Clips that this run has scored.
        started: When this run began, in seconds of `time.monotonic`.
    """

    done: int
    total: int
    failed: int = 0
    clips: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def clips_per_s(self) -> float:
        """Clips per second so far."""
        return self.clips / max(time.monotonic() - self.started, 1e-9)

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {self.total} videos, {self.clips_per_s:.1f} clips/s{failed}"


Report = Callable[[Progress], object]


@contextmanager
def reporting(progress: bool | Report) -> Iterator[Report]:
    """What to call after every video.

    Args:
        progress: True shows a bar on standard error, or a line every `LINE_SECONDS` where that is
            no terminal; False shows nothing; a function is called itself.
    """
    if callable(progress):
        yield progress
        return
    console = Console(stderr=True)
    if not progress:
        yield lambda now: None
    elif console.is_terminal:
        with _bar(console) as report:
            yield report
    else:
        yield _lines(console)


@contextmanager
def _bar(console: Console) -> Iterator[Report]:
    columns = (
        TextColumn("videos"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("videos", total=None, speed="")

        def report(now: Progress) -> None:
            speed = f"{now.clips_per_s:.1f} clips/s" if now.clips else ""
            bar.update(task, total=now.total, completed=now.done, speed=speed)

        yield report


def _lines(console: Console) -> Report:
    last = time.monotonic()

    def report(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            console.print(str(now), highlight=False, soft_wrap=True)

    return report
