"""`sta.predict`: what is in these videos?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Unpack

from rich.console import RenderableType
from rich.text import Text
from torch import nn

from sta.backbones.zoo.video_model import VideoModel
from sta.inference.collect import Job, RowsResult, Score, collect_rows
from sta.inference.journal import check_out
from sta.inference.options import RunOptions, split
from sta.inference.rows import Row, prediction_row, window_times
from sta.inference.scoring import Scored
from sta.inference.segments import segments
from sta.inference.setup import Setup
from sta.inference.windows import over_windows
from sta.methods import Config
from sta.progress import ProgressArg
from sta.results import table
from sta.video.lists import find_videos
from sta.video.views import ViewSpec
from sta.video.windows import seconds_of


class PredictionResult(RowsResult):
    """Rows of predictions, one per video, in the order of the videos.

    It iterates over the rows, and prints as a table. A row has `path`, `predictions` (best first,
    each with `label` and `score`), `error` and `error_kind` (None for a video that was read), and
    with logits `logits`.
    """

    def tables(self) -> Iterator[RenderableType]:
        """A line for each of a video's best classes."""
        records = self.records()
        folders = {row["path"][: row["path"].rfind("/") + 1] for row in records}
        folder = folders.pop() if len(folders) == 1 else ""
        rows: list[Sequence[str | Text] | None] = []
        for row in records:
            name = row["path"].removeprefix(folder)
            if row["error"] is not None:
                rows.append((name, Text(row["error"], style="red"), ""))
            for number, one in enumerate(row["predictions"]):
                rows.append(("" if number else name, one["label"], f"{one['score']:.3f}"))
            if len(row["predictions"]) > 1:
                rows.append(None)
        heads = ("video", "prediction", "score")
        yield table(heads, rows, title=folder or None, text=("prediction",))


class WindowsResult(PredictionResult):
    """Rows of predictions, one per window, in the order of the videos; each has `start` and `end`
    in seconds. A video that could not be read to its end has a last row with its error."""

    def segments(self, *, smooth: int = 1, threshold: float = 0.5) -> list[Row]:
        """When what happens: see `sta.segments`."""
        return segments(self, smooth=smooth, threshold=threshold)

    def tables(self) -> Iterator[RenderableType]:
        """A line per window."""
        rows: list[Sequence[str | Text]] = []
        last = None
        for row in self:
            name = "" if row["path"] == last else row["path"]
            last = row["path"]
            if row["error"] is not None:
                rows.append((name, "", "", Text(row["error"], style="red"), ""))
                continue
            best = row["predictions"][0]
            times = (f"{row['start']:.2f}", f"{row['end']:.2f}")
            rows.append((name, *times, best["label"], f"{best['score']:.3f}"))
        heads = ("video", "start", "end", "prediction", "score")
        yield table(heads, rows, text=("prediction",))


def predict(
    inputs: str | Path | Sequence[str | Path],
    model: str | Path | nn.Module | VideoModel = "vit-digits",
    *,
    r: int | None = None,
    method: str | None = None,
    config: Config | str | Path | None = None,
    views: str | None = None,
    protocol: Literal["k400", "ssv2"] | None = None,
    windows: float | str | None = None,
    every: float | str | None = None,
    top_k: int = 5,
    logits: bool = False,
    shard: str | None = None,
    root: str | Path | None = None,
    out: str | Path | None = None,
    progress: ProgressArg = True,
    **options: Unpack[RunOptions],
) -> PredictionResult:
    """Predict the classes of videos; what `sta predict` does.

    >>> rows = sta.predict("videos/", model="vit-b-k400", r=64)
    >>> print(rows)
    >>> rows.to_pandas()

    A video that cannot be read has a row with its error; it never stops the others.

    Args:
        inputs: Video files, folders of them, and lists; one or several.
        model: What `sta.load` takes, a model, or a `VideoModel`. A model is left as it is.
        r: Tokens to drop per frame; default: 0.
        method: How they are chosen; default: "sta".
        config: A method's settings, or a file of them, instead of `method` and `r`.
        views: Clips x crops per video, e.g. "5x3"; default: one view.
        protocol: Test views as published for this data set.
        windows: Length of a window in seconds, e.g. 2.0 or "2s": a row per window, not per video;
            the clip's frames are spread over it. The rows have `start` and `end` in seconds, and
            the result `segments`.
        every: Seconds from the start of a window to that of the next; default: its length.
            Alone, a window is the model's own clip, frames x stride frames of the video.
        top_k: Classes per video.
        logits: Add each video's logits, the mean of its views'.
        shard: Only a part of the videos: "3/8" is the third of eight.
        root: Where a list's paths start.
        out: Write the rows to this file (.jsonl, .parquet or .csv) as they come.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.
        options: How the model is loaded and run, where, and what becomes of the file: see
            `ModelOptions`, `EngineOptions` and `RowOptions`.

    Raises:
        ValueError: An argument is wrong, or does not fit the model.
        OSError: A file cannot be read or written.
        Interrupted: Ctrl-C; a `KeyboardInterrupt` whose `result` is what was done.
    """
    out = None if out is None else str(out)
    loaded, engine, file = split(options)
    check_out(out, **file)
    if views is not None:
        ViewSpec().with_views(views)  # before the model is loaded
    check_one_method(config, r, method)
    windowed = windows is not None or every is not None
    if windowed and (views is not None or protocol is not None):
        raise ValueError("windows have one view each: leave views and protocol out")
    for value, option in ((windows, "windows"), (every, "every")):
        if value is not None:
            seconds_of(value, option)  # before the model is loaded
    if top_k < 1:
        raise ValueError(f"top_k={top_k}: use 1 or more")
    entries = find_videos(inputs, root)
    if shard is not None:
        entries = entries[part_of(shard)]
    setup = Setup.make(
        model,
        methods=[method or "sta"] if config is None else [],
        r=[r or 0],
        config=config,
        protocol=protocol,
        views=views or (None if protocol else "1x1"),
        **loaded,
    )
    run = setup.run(logits=logits, **engine)
    clips = None if windowed else len(entries) * setup.spec.views
    settings = {**setup.prepare(run.classifier, entries, clips), "top_k": top_k, "logits": logits}

    def rows(video: Scored) -> list[Row]:
        row = prediction_row(video, setup.opened.class_names, top_k, logits=logits)
        return [{"path": row["path"], **window_times(video), **row} if windowed else row]

    score: Score = run.score
    if windowed:
        over = over_windows(run, every, windows)
        score = over.score
        settings["windows"] = [over.spec.every, over.spec.length]
    job = Job(entries, score, rows, None if windowed else 1, settings)
    kind = WindowsResult if windowed else PredictionResult
    return collect_rows(kind, job, out=out, file=out, progress=progress, **file)


def check_one_method(config: Config | str | Path | None, r: int | None, method: str | None) -> None:
    """Refuse settings together with what they already say."""
    if config is not None and (r is not None or method is not None):
        name = type(config).__name__ if isinstance(config, Config) else config
        raise ValueError(f"config {name} has a method and its r: leave method and r out")


def part_of(shard: str) -> slice:
    """Every n-th video from the k-th on, of "k/n"."""
    number, _, count = shard.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return slice(int(number) - 1, None, int(count))
    raise ValueError(f'shard="{shard}": give its number and how many there are, e.g. 3/8')
