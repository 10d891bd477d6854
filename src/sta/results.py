"""What results have in common: they print as tables and turn into records."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

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


def print_result(result: Result) -> None:
    """Print on standard output, as wide as the terminal; a file is 80 columns wide."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(result)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Text] | str | None],
    *,
    title: str | None = None,
    text: Collection[str] = (),
) -> RenderableType:
    """A table in the style of all results: numbers to the right and never cut, text folded.

    Args:
        heads: Of the columns.
        rows: The cells of each row; a string is the title of the rows after it, None a gap.
        title: Above the table.
        text: Columns of text, beside the first.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    for number, head in enumerate(heads):
        if number == 0 or head in text:
            made.add_column(head, overflow="fold")
        else:
            made.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        if row is None or isinstance(row, str):
            made.add_section()
        if isinstance(row, str):
            made.add_row(Text(row, style="bold"))
        elif row is not None:
            made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made if title is None else Group(Text(title, style="italic"), made)


@dataclass(frozen=True)
class WideTable:
    """A table whose columns go on in another one below where the terminal is too narrow."""

    heads: Sequence[str]  # of the columns
    rows: Sequence[Sequence[str]]  # the cells of each row
    keys: int  # how many of the first columns tell rows apart: they are repeated

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        sizes = [1 + max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        keys = list(range(self.keys))
        lead = taken = sum(sizes[: self.keys])
        blocks: list[list[int]] = [[]]
        for number in range(self.keys, len(self.heads)):
            if blocks[-1] and taken + sizes[number] > options.max_width:
                blocks.append([])
                taken = lead
            blocks[-1].append(number)
            taken += sizes[number]
        for block in blocks:
            if block is not blocks[0]:
                yield ""
            columns = [*keys, *block]
            yield table(
                [self.heads[i] for i in columns], [[row[i] for i in columns] for row in self.rows]
            )
