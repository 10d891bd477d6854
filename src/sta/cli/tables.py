"""Measured tables on the terminal and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sta.measure.tables import WIDTH, render


def show(
    rows: Sequence[Mapping[str, Any]], title: str | None = None, hide: Sequence[str] = ("failed",)
) -> None:
    """Print rows that have the same columns, as wide as the terminal; a file is 80 columns wide."""
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    console.print(render(rows, title, hide, console.width))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows; columns that only some have are empty in the others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
