"""Progress of a long call: a bar on the terminal, a callback, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: True shows a bar; a function is called with the number done and the number of all.
Progress = bool | Callable[[int, int], object]


@contextmanager
def reporting(progress: Progress, what: str) -> Iterator[Callable[[int, int], object]]:
    """What to call with the number done and the number of all, while the work goes on inside.

    Args:
        progress: As the caller asked for it.
        what: What is counted, e.g. "videos".
    """
    if callable(progress):
        yield progress
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    hidden = not (progress and console.is_terminal)
    with Bar(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
