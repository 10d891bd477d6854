"""`sta.timeline`: the classes of videos over time, as a picture or a page."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sta.explain.style import INK, LINE, QUIET, font_family, new_figure
from sta.inference.outputs import check_writable, writing
from sta.inference.rows import Row
from sta.inference.segments import class_scores, segments, smoothed

ENDINGS = (".html", ".png")
#: Classes that have a line of their own in a picture; of more, those with the highest scores.
MOST_CLASSES = 12
#: The most columns of a picture: a longer video shows the highest score in each.
COLUMNS = 1200

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Timeline</title>
<style>body{{font:14px/1.5 Inter,Helvetica,Arial,sans-serif;color:{ink};max-width:72rem;margin:2rem
auto;padding:0 1rem}}img{{max-width:100%}}table{{border-collapse:collapse}}td,th{{padding:.1rem
.8rem .1rem 0;text-align:left}}.quiet{{color:{quiet}}}</style>
{videos}
</html>
"""


def check_timeline(path: str | Path) -> None:
    """Refuse a file that no timeline can be written to."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise ValueError(f"{path}: a timeline is written as {' or '.join(ENDINGS)}; use one")
    check_writable(path)


def timeline(
    rows: Iterable[Row], path: str | Path, *, smooth: int = 1, threshold: float = 0.5
) -> None:
    """Draw the classes of each video over time.

    >>> sta.timeline(sta.predict("match.mp4", windows="2s", every="1s"), "match.html", smooth=3)

    Args:
        rows: Of `sta.predict` with windows.
        path: The file: .html, with a list of the segments as well, or .png.
        smooth: See `sta.segments`.
        threshold: See `sta.segments`; the segments are drawn as bars below the classes.
    """
    check_timeline(path)
    videos = [(name, list(group)) for name, group in groupby(rows, key=lambda row: row["path"])]
    if Path(path).suffix.lower() == ".png":
        with writing(path):
            Path(path).write_bytes(_picture(videos, smooth, threshold))
        return
    parts = [_section(name, windows, smooth, threshold) for name, windows in videos]
    page = _PAGE.format(ink=INK, quiet=QUIET, videos="\n".join(parts))
    with writing(path):
        Path(path).write_text(page, encoding="utf-8", errors="backslashreplace")


def _section(name: str, windows: list[Row], smooth: int, threshold: float) -> str:
    title = f"<h2>{html.escape(name)}</h2>"
    errors = [row["error"] for row in windows if row["error"] is not None]
    notes = "".join(f'<p class="quiet">{html.escape(error)}</p>' for error in errors)
    if len(errors) == len(windows):
        return title + notes
    picture = base64.b64encode(_picture([(name, windows)], smooth, threshold)).decode()
    lines = "".join(
        f"<tr><td>{one['start']:.2f}</td><td>{one['end']:.2f}</td>"
        f"<td>{html.escape(one['label'])}</td><td>{one['score']:.3f}</td></tr>"
        for one in segments(windows, smooth=smooth, threshold=threshold)
    )
    head = "<tr><th>start</th><th>end</th><th>label</th><th>score</th></tr>"
    image = f'<img alt="classes over time" src="data:image/png;base64,{picture}">'
    return f"{title}{image}<table>{head}{lines}</table>{notes}"


def _picture(videos: list[tuple[str, list[Row]]], smooth: int, threshold: float) -> bytes:
    """All videos below each other, as PNG."""
    shown = [(name, [row for row in rows if row["error"] is None]) for name, rows in videos]
    counts = [max(1, min(MOST_CLASSES, len(class_scores(rows)[0]))) for _, rows in shown] or [1]
    heights = [0.9 + 0.22 * count for count in counts]
    # Agg's pictures have 2 ** 16 pixels a side at most.
    dpi = min(130, int(60000 / max(sum(heights), 1)))
    figure = new_figure(9.0, sum(heights), dpi)
    axes = figure.subplots(len(counts), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for (name, rows), one in zip(shown, axes[:, 0], strict=False):
        _draw(one, name, rows, smooth, threshold)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _draw(axes: Any, name: str, rows: list[Row], smooth: int, threshold: float) -> None:
    """One video: a line of brightness per class, and its segments as frames around it."""
    family = font_family()
    readable = name.encode("utf-8", "replace").decode().replace("$", r"\$")
    axes.set_title(readable, color=INK, family=family, fontsize=9, loc="left")
    if not rows:
        axes.text(0, 0.5, "no windows", color=QUIET, family=family, fontsize=8)
        axes.set_axis_off()
        return
    labels, raw = class_scores(rows)
    scores = smoothed(raw, smooth)
    chosen = np.argsort(-scores.max(0), kind="stable")[:MOST_CLASSES]
    chosen = chosen[np.argsort(scores[:, chosen].argmax(0), kind="stable")]  # as they come
    starts = np.array([row["start"] for row in rows])
    width = float(np.diff(starts).min()) if len(starts) > 1 else rows[0]["end"] - rows[0]["start"]
    count = max(1, min(COLUMNS, round((starts[-1] - starts[0]) / width) + 1))
    column = np.round((starts - starts[0]) / max(starts[-1] - starts[0], width) * (count - 1))
    picture = np.zeros((len(chosen), count))
    for at, values in zip(column.astype(int), scores[:, chosen], strict=True):
        picture[:, at] = np.maximum(picture[:, at], values)
    extent = (starts[0], max(rows[-1]["end"], starts[0] + 1e-6), len(chosen) - 0.5, -0.5)
    axes.imshow(
        picture, aspect="auto", cmap="Blues", vmin=0, vmax=1, extent=extent, interpolation="nearest"
    )
    place = {labels[number]: line for line, number in enumerate(chosen)}
    for one in segments(rows, smooth=smooth, threshold=threshold):
        if one["label"] in place:
            line = place[one["label"]] + 0.42
            axes.plot([one["start"], one["end"]], [line, line], color=INK, lw=1.6)
    axes.set_yticks(range(len(chosen)))
    names = [labels[number].replace("$", r"\$") for number in chosen]
    axes.set_yticklabels(names, fontsize=7, color=INK, family=family)
    axes.tick_params(axis="x", labelsize=7, colors=QUIET)
    axes.set_xlabel("seconds", fontsize=7, color=QUIET, family=family)
    for spine in axes.spines.values():
        spine.set_color(LINE)
