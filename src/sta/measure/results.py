"""What measured results have in common: they print as tables and turn into records."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

WIDTH = 80  # of a printed table, where there is no terminal


class Result(ABC):
    """A result with rows: `print` shows its tables."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """A flat dictionary per row, ready for JSON."""

    @abstractmethod
    def tables(self) -> Iterator[RenderableType]:
        """What is printed, for rich."""

    def to_pandas(self) -> Any:
        """The records as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.records())

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield from self.tables()

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())
