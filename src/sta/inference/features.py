"""`sta.features`: what a model knows of videos, window by window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.text import Text
from torch import nn

from sta.backbones.encode import Fill
from sta.backbones.zoo.video_model import VideoModel
from sta.inference.arrays import FORMATS, INDEX, ArrayFolder, ArrayFormat, file_names
from sta.inference.clip_model import Encoder
from sta.inference.collect import Job, RowsResult, collect_rows
from sta.inference.journal import check_out
from sta.inference.options import RunOptions, split
from sta.inference.predict import check_one_method, part_of
from sta.inference.rows import ENDINGS, Row, window_times
from sta.inference.scoring import Scored
from sta.inference.setup import Setup
from sta.inference.windows import WindowRun
from sta.methods import Config
from sta.progress import ProgressArg
from sta.results import table
from sta.video.lists import find_videos, is_remote
from sta.video.windows import WindowSpec, seconds_of


class FeaturesResult(RowsResult):
    """Features of videos, a row per window, in the order of the videos.

    It iterates over the rows: `path`, `start` and `end` in seconds, `vector` (D,) or dense
    (T, N, D), `error` and `error_kind`. Rows of a folder of arrays are one per video: `path`,
    `file`, `windows`, `error`, `error_kind`.
    """

    def __iter__(self) -> Iterator[Row]:
        for row in super().__iter__():
            if self._file is not None and row.get("vector") is not None:
                row["vector"] = np.array(row["vector"], dtype=np.float32)
            yield row

    def vectors(self) -> NDArray[np.float32]:
        """The features of all windows in one array, (windows, ...), without failed ones."""
        found = [row["vector"] for row in self if row.get("vector") is not None]
        return np.stack(found) if found else np.empty((0, 0), dtype=np.float32)

    def records(self) -> list[Row]:
        """The rows as a list, vectors as lists of numbers."""
        return [
            {**row, "vector": row["vector"].tolist()} if row.get("vector") is not None else row
            for row in self
        ]

    def tables(self) -> Iterator[RenderableType]:
        """A line per video."""
        windows: dict[str, int] = {}
        shapes: dict[str, str] = {}
        for row in self:
            made = row.get("windows", int(row.get("vector") is not None))
            windows[row["path"]] = windows.get(row["path"], 0) + made
            if row.get("vector") is not None:
                shapes[row["path"]] = " x ".join(map(str, row["vector"].shape))
            elif row.get("file"):
                shapes[row["path"]] = row["file"]
        errors = {failure.path: failure.error for failure in self.failures}
        rows: list[Sequence[str | Text]] = [
            (path, str(count), shapes.get(path, ""), Text(errors.get(path, ""), style="red"))
            for path, count in windows.items()
        ]
        yield table(("video", "windows", "features", ""), rows, text=("features", ""))


def features(
    inputs: str | Path | Sequence[str | Path],
    model: str | Path | nn.Module | VideoModel = "vit-digits",
    *,
    every: float | str | None = None,
    windows: float | str | None = None,
    block: int | None = None,
    dense: bool = False,
    fill: Fill = "nearest",
    r: int | None = None,
    method: str | None = None,
    config: Config | str | Path | None = None,
    shard: str | None = None,
    root: str | Path | None = None,
    out: str | Path | None = None,
    array_format: ArrayFormat | None = None,
    progress: ProgressArg = True,
    **options: Unpack[RunOptions],
) -> FeaturesResult:
    """Features of videos of any length, window by window; what `sta features` does.

    >>> made = sta.features("videos/", model="facebook/vjepa2-vitl-fpc64-256", r=64, every=1.0)
    >>> made.vectors()  # (windows, D)

    A window is one clip of the model. Features are what the model's own pooling makes, or dense:
    all tokens on their grid. A video that cannot be read has a row with its error.

    Args:
        inputs: Video files, folders of them, and lists; one or several.
        model: What `sta.load` takes, or a bare encoder by folder or hub id; a model; or a
            `VideoModel`. A model is left as it is.
        every: Seconds from the start of a window to that of the next, e.g. 1.0 or "1s"; default:
            the length of a window.
        windows: Seconds that a window spans, the clip's frames evenly spread. Default: the
            model's own clip, frames x stride frames of the video.
        block: Take the output of this block, counted from 1, before the model's last norm.
        dense: Give the whole grid of tokens, (T, N, D) per window, instead of one vector.
        fill: With dense: what stands at dropped places; see `sta.restore`.
        r: Tokens to drop per frame; default: 0.
        method: How they are chosen; default: "sta".
        config: A method's settings, or a file of them, instead of `method` and `r`.
        shard: Only a part of the videos: "3/8" is the third of eight.
        root: Where a list's paths start.
        out: Write a row per window to this file (.jsonl, .parquet or .csv); or a folder, for one
            array per video.
        array_format: Of the arrays in a folder: "npy" (features alone; the default) or "npz"
            (features, start and end).
        progress: True for a bar, False for none, or a function that is called with a `Progress`.
        options: How the model is loaded and run, where, and what becomes of the file: see
            `ModelOptions`, `EngineOptions` and `RowOptions`.

    Raises:
        ValueError: An argument is wrong, or does not fit the model.
        OSError: A file cannot be read or written.
        Interrupted: Ctrl-C; a `KeyboardInterrupt` whose `result` is what was done.
    """
    file, folder = _outputs(out, array_format, dense)
    loaded, engine, rows = split(options)
    fresh = [] if folder is None else [one for one in (folder, *folder.parents) if not one.exists()]
    check_out(file, **rows)
    for one in fresh:  # made to see whether it can be: a call that is refused leaves nothing
        one.rmdir()
    check_one_method(config, r, method)
    if fill not in ("nearest", "delta"):
        raise ValueError(f"fill={fill!r} is unknown: use nearest or delta")
    if fill != "nearest" and not dense:
        raise ValueError(
            f'fill="{fill}" is about the dropped places of a grid: give dense=True as well, or '
            f"leave it out"
        )
    between = None if every is None else seconds_of(every, "every")
    length = None if windows is None else seconds_of(windows, "windows")
    everything = find_videos(inputs, root)
    entries = everything if shard is None else everything[part_of(shard)]
    setup = Setup.make(
        model,
        methods=[method or "sta"] if config is None else [],
        r=[r or 0],
        config=config,
        bare=True,
        **loaded,
    )
    spec = WindowSpec(setup.spec, between, length)
    encoder = setup.network(Encoder, block=block, dense=dense, fill=fill)
    run = WindowRun(encoder, spec, setup.device, **engine)
    settings = {
        **setup.prepare(encoder, entries),
        "windows": [between, length],
        "features": [block, dense, fill if dense else None, array_format],
    }
    arrays = None
    if folder is not None:
        arrays = ArrayFolder(
            folder, array_format or "npy", file_names(entry.path for entry in everything)
        )
    job = Job(
        entries,
        run.score,
        arrays.rows if arrays is not None else (lambda v: [_row(v, file is not None)]),
        None if arrays is None else 1,
        settings,
    )
    where = None if out is None else str(out)
    with nullcontext() if arrays is None else closing(arrays):
        return collect_rows(FeaturesResult, job, out=where, file=file, progress=progress, **rows)


def _row(window: Scored, in_file: bool) -> Row:
    """The row of a window, or of a video's error."""
    vector = None if window.scores is None else window.scores[0]
    return {
        "path": window.path,
        **window_times(window),
        "vector": vector.tolist() if in_file and vector is not None else vector,
        "error": window.error,
        "error_kind": window.error_kind,
    }


def _outputs(
    out: str | Path | None, array_format: ArrayFormat | None, dense: bool
) -> tuple[str | None, Path | None]:
    """The file of rows, and the folder of arrays where there is one."""
    if array_format is not None and array_format not in FORMATS:
        raise ValueError(f"array_format={array_format!r} is unknown: use {' or '.join(FORMATS)}")
    name = None if out is None else str(out)
    if name is not None and not name.lower().endswith(ENDINGS):
        if is_remote(name):
            raise ValueError(f"{name}: arrays are written to a local folder; give one")
        # "v1.2" is a folder, "features.npy" was meant for a file.
        if Path(name).is_file() or (
            Path(name).suffix[1:].isalpha() and not name.endswith("/") and not Path(name).is_dir()
        ):
            raise ValueError(
                f"{name}: rows go to a file {', '.join(ENDINGS)}; arrays, one per video, to a "
                f"folder, e.g. features/"
            )
        return str(Path(name) / INDEX), Path(name)
    if array_format is not None:
        raise ValueError(f'{array_format} arrays need a folder to go to: give out="FOLDER"')
    if dense and name is not None:
        raise ValueError(f"{name}: dense features are arrays; give a folder, e.g. features/")
    return name, None
