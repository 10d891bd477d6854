"""Measured tables for people: within the width of a terminal, numbers never cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

#: Columns of a terminal that is not known, such as a file's.
WIDTH = 80
_SHARES = ("top5", "agreement", "motion", "colour")
_WITH_INTERVAL = ("top1", "difference")
_HEADS = {"clips_per_s": "clips/s", **{n: f"{n}, %" for n in (*_WITH_INTERVAL, *_SHARES)}}
#: What tells rows apart: repeated where a table goes on below.
_KEYS = ("method", "r", "variant")
_EDGES = 3  # of a column: two spaces and a line


def render(
    rows: Sequence[Mapping[str, Any]],
    title: str | None = None,
    hide: Sequence[str] = ("failed",),
    width: int = WIDTH,
) -> RenderableType:
    """Rows that have the same columns; ends of intervals stand beside their values.

    Columns that do not fit into `width` go on in a table below, with what tells the rows apart.
    """
    names = [n for n in rows[0] if not n.endswith(("_low", "_high")) and n not in hide]
    cells = {name: [cell(row, name) for row in rows] for name in names}
    keys = [name for name in names if name in _KEYS]

    def size(name: str) -> int:
        return _EDGES + max(len(text) for text in (_HEADS.get(name, name), *cells[name]))

    blocks: list[list[str]] = [[]]
    taken = lead = 1 + sum(size(name) for name in keys)
    for name in (name for name in names if name not in _KEYS):
        if blocks[-1] and taken + size(name) > width:
            blocks.append([])
            taken = lead
        blocks[-1].append(name)
        taken += size(name)
    tables = []
    for number, block in enumerate(blocks):
        table = Table(title=None if number else title, title_justify="left")
        for name in (*keys, *block):
            text = name in ("method", "variant")
            table.add_column(
                _HEADS.get(name, name), no_wrap=not text, justify="left" if text else "right"
            )
        for row in range(len(rows)):
            table.add_row(*(escape(cells[name][row]) for name in (*keys, *block)))
        tables.append(table)
    return tables[0] if len(tables) == 1 else Group(*tables)


def cell(row: Mapping[str, Any], name: str) -> str:
    """A value as people read it: shares in percent."""
    value = row.get(name)
    if value is None:
        return "-"
    sign = "+" if name == "difference" else ""
    if name in _WITH_INTERVAL:
        low, high = (100 * row[f"{name}_{end}"] for end in ("low", "high"))
        return f"{100 * value:{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"
    if name in _SHARES:
        return f"{100 * value:.2f}"
    if name == "gflops":
        return f"{value:.4g}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def to_text(made: RenderableType, width: int = WIDTH) -> str:
    """As plain text, for `print`."""
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(made)
    return capture.get().rstrip("\n")
