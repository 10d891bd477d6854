"""Measured tables on the terminal and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_SHARES = ("top5", "agreement", "motion", "colour")
_WITH_INTERVAL = ("top1", "difference")
_WIDE = 240


def show(
    rows: Sequence[Mapping[str, Any]], title: str | None = None, hide: Sequence[str] = ("failed",)
) -> None:
    """Print rows that have the same columns; ends of intervals stand beside their values."""
    names = [n for n in rows[0] if not n.endswith(("_low", "_high")) and n not in hide]
    table = Table(*names, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(cell(row, name) for name in names))
    console = Console()
    if not console.is_terminal:  # a file or a pipe has no edge to wrap at
        console = Console(width=_WIDE)
    console.print(table)


def cell(row: Mapping[str, Any], name: str) -> str:
    """A value as people read it: shares in percent."""
    value = row.get(name)
    if value is None:
        return "-"
    sign = "+" if name == "difference" else ""
    if name in _WITH_INTERVAL:
        low, high = (100 * row[f"{name}_{end}"] for end in ("low", "high"))
        return f"{100 * value:{sign}.2f} % \\[{low:{sign}.2f}, {high:{sign}.2f}]"
    if name in _SHARES:
        return f"{100 * value:.2f} %"
    if name == "gflops":
        return f"{value:.4g}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows; columns that only some have are empty in the others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
