"""Progress of a long measurement: a bar on the terminal, a callback, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: True is a bar where stderr is a terminal, False nothing; a function is called with each step.
Progress = bool | Callable[[str], None]


@contextmanager
def reporting(progress: Progress) -> Iterator[Callable[[str], None]]:
    """A function to call with what is being done."""
    if progress is False:
        yield lambda text: None
    elif progress is True:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = (BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))
        shown = console.is_terminal
        with Bar(*columns, console=console, disable=not shown, transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda text: bar.update(task, description=text)
    else:
        yield progress
