"""How far a long call is: a bar on a terminal, a line now and then elsewhere, or a function's call.

Every public function takes ``progress: bool | Callable[[Progress], object]``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
#: Seconds between two lines where there is no terminal.
LINE_SECONDS = 30.0


@dataclass(frozen=True)
class Progress:
    """How far a call is.

    Attributes:
        what: What is counted, e.g. "videos", or what is being done, e.g. "tuning".
        done: How many are done.
        total: How many there are; None where they are not counted.
        text: What is being done now, or how fast.
    """

    what: str
    done: int = 0
    total: int | None = None
    text: str = ""

    def __str__(self) -> str:
        count = self.what if self.total is None else f"{self.done} of {self.total} {self.what}"
        return f"{count}, {self.text}" if self.text else count


#: What a user gives: True shows a bar, or a line every `LINE_SECONDS` where standard error is no
#: terminal; False shows nothing; a function is called with every step.
ProgressArg = bool | Callable[[Progress], object]


class Report(Protocol):
    """Says how far the work is."""

    def __call__(self, text: str = "", done: int = 0, total: int | None = None) -> None:
        """See `Progress`."""


def silent(text: str = "", done: int = 0, total: int | None = None) -> None:
    """A `Report` that nobody reads."""


@contextmanager
def reporting(progress: ProgressArg, what: str) -> Iterator[Report]:
    """What to call while the work goes on inside."""
    with _shown(progress, what) as show:

        def report(text: str = "", done: int = 0, total: int | None = None) -> None:
            show(Progress(what, done, total, text))

        yield report


def track(items: Iterable[T], total: int, what: str, progress: ProgressArg = True) -> Iterator[T]:
    """The items, reported as they are done."""
    with reporting(progress, what) as report:
        report(done=0, total=total)
        for number, item in enumerate(items, 1):
            yield item
            report(done=number, total=total)


@contextmanager
def _shown(progress: ProgressArg, what: str) -> Iterator[Callable[[Progress], object]]:
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda now: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn(what),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # What is printed meanwhile goes above the bar, but stays on a standard output that is a file.
    to_file = not sys.stdout.isatty()
    with Bar(*columns, console=console, transient=True, redirect_stdout=not to_file) as bar:
        task = bar.add_task("", total=None)
        yield lambda now: bar.update(
            task, description=now.text, completed=now.done, total=now.total
        )


def _lines(console: Console) -> Callable[[Progress], object]:
    last = time.monotonic()

    def show(now: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            console.print(str(now), highlight=False, markup=False, soft_wrap=True)

    return show
