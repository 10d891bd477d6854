"""Results as text: tables that fit 80 columns."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.table import Table

from sta.explain import captions
from sta.explain.analysis import Analysis, GradNormRow, RedundancyDifference, RedundancyRow
from sta.explain.inspect import Inspection

WIDTH = 80


def inspection_table(inspection: Inspection) -> str:
    """A line per method: tokens, cost and prediction."""
    table = Table("method", title=f"{inspection.model} · {inspection.clip}", title_justify="left")
    timed = inspection.stock.seconds is not None
    for name in ("tokens\nleft", "GFLOPs", *(["time"] if timed else [])):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("prediction", overflow="fold")
    for method in (inspection.stock, *inspection.methods):
        table.add_row(
            method.title,
            f"{method.steps[-1].tokens:,}" if method.steps else "all",
            captions.amount(method.gflops),
            *([captions.duration(method.seconds)] if timed else []),
            captions.prediction(method),
        )
    return _text(table)


def analysis_tables(analysis: Analysis) -> str:
    """S of each method, the differences, and GradNorm where it was measured."""
    if not analysis.redundancy:
        return "no clip could be read"
    table = Table("method")
    for name in ("tokens\na frame", "clips", f"S (0 to {analysis.frames - 1})", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in analysis.redundancy:
        counts = (str(row.tokens_per_frame), str(row.clips))
        table.add_row(row.method, *counts, f"{row.S:.3f}", _interval(row))
    parts: list[RenderableType] = [table]
    parts += [
        f"S of {gap.method} minus {gap.other}: {gap.S:+.3f} ({_interval(gap)})"
        for gap in analysis.differences
    ]
    if analysis.gradnorm:
        table = Table("method")
        for name in ("step\nafter", "tokens\nkept", "gradient\non them", "95 % interval"):
            table.add_column(name, justify="right", no_wrap=True)
        for step in analysis.gradnorm:
            shares = (f"{100 * step.tokens:.1f} %", f"{100 * step.gradient:.1f} %")
            table.add_row(step.method, step.after, *shares, _interval(step, 100, " %"))
        parts.append(table)
    return _text(*parts)


def _interval(
    row: RedundancyRow | RedundancyDifference | GradNormRow, times: float = 1.0, unit: str = ""
) -> str:
    if row.low is None or row.high is None:
        return "-"
    digits = 3 if times == 1.0 else 1
    return f"{times * row.low:.{digits}f} to {times * row.high:.{digits}f}{unit}"


def _text(*parts: RenderableType) -> str:
    console = Console(width=WIDTH, file=io.StringIO(), highlight=False, markup=False)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())
