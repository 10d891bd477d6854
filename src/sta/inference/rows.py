"""Rows of results: what they hold, and their files, JSON Lines, Parquet and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sta.inference.scoring import Scored
from sta.runtime.extras import require
from sta.video.lists import is_remote

Row = dict[str, Any]


def prediction_row(
    scored: Scored, names: Sequence[str], top_k: int, method: int = 0, *, logits: bool = False
) -> Row:
    """The row of one video under one method.

    Returns:
        ``path``, ``predictions`` (best first), ``error``, ``error_kind``, and perhaps ``logits``.
    """
    predictions: list[Row] = []
    values: list[float] | None = None
    if scored.scores is not None:
        scores = scored.scores[method]
        if logits:
            scores, raw = np.split(scores, 2)
            values = [round(float(value), 6) for value in raw]
        predictions = best_classes(scores, names, top_k)
    row: Row = {"path": scored.path, "predictions": predictions}
    row |= {"error": scored.error, "error_kind": scored.error_kind}
    return {**row, "logits": values} if logits else row


def evaluation_rows(
    scored: Scored, names: Sequence[str], methods: Sequence[tuple[str, int]], top_k: int = 5
) -> list[Row]:
    """A prediction row per method, with what metrics need: label, best classes, views, seconds."""
    rows = []
    for number, (method, r) in enumerate(methods):
        row = prediction_row(scored, names, top_k, number)
        classes = [] if scored.scores is None else best(scored.scores[number], top_k)
        seconds = 0.0 if scored.seconds is None else float(scored.seconds[number])
        row |= {"label": scored.label, "method": method, "r": r, "classes": classes}
        row |= {"views": scored.views, "seconds": round(seconds, 6)}
        rows.append(row)
    return rows


def window_times(scored: Scored) -> Row:
    """Where a window lies in its video, in seconds."""
    times = {"start": scored.start, "end": scored.end}
    return {name: None if time is None else round(time, 6) for name, time in times.items()}


def best_classes(scores: NDArray[np.float64], names: Sequence[str], top_k: int) -> list[Row]:
    """What a row has as predictions."""
    return [{"label": names[c], "score": round(float(scores[c]), 6)} for c in best(scores, top_k)]


def best(scores: NDArray[np.float64], count: int) -> list[int]:
    """The classes with the highest scores, best first; ties to the lower class."""
    return np.argsort(-scores, kind="stable")[:count].tolist()


ENDINGS = (".jsonl", ".parquet", ".csv")
_NESTED = ("predictions", "classes", "factors", "logits", "origin", "vector")
_PARQUET_CHUNK = 4096  # rows
_VECTORS_CHUNK = 256  # rows with features: numbers of Python take 32 bytes each


def read_rows(path: str) -> Iterator[Row]:
    """The rows of a finished file, or the whole ones of an unfinished JSON Lines file."""
    kind = PurePosixPath(path).suffix.lower()
    if kind == ".parquet":
        with _open(path) as file, _parquet().ParquetFile(file) as table:
            for batch in table.iter_batches(_chunk(table.schema_arrow.names)):
                for row in batch.to_pylist():  # maps come as lists of pairs
                    yield {**row, "factors": dict(row["factors"])} if row.get("factors") else row
    elif kind == ".csv":
        with _open(path) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
            for row in csv.DictReader(text):
                yield {name: _from_csv(name, value) for name, value in row.items()}
    else:
        with _open(path) as file:
            for line in file:
                parsed = from_line(line)
                if parsed is not None:
                    yield parsed


def check_ending(path: str) -> None:
    """Refuse a file of another format, or of one that needs a package that is not installed."""
    kind = PurePosixPath(path).suffix.lower()
    if kind not in ENDINGS:
        raise ValueError(f"{path}: results are written as {', '.join(ENDINGS)}; use one of them")
    if kind == ".parquet":
        _parquet()


def _open(path: str) -> Any:
    if is_remote(path):
        import fsspec

        return fsspec.open(path, "rb")
    return Path(path).open("rb")


def to_line(row: Row) -> bytes:
    """A row as a line of JSON."""
    return json.dumps(row).encode() + b"\n"


def from_line(line: bytes) -> Row | None:
    """The row in a line; None if the line is torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "path" in row else None


def convert(journal: Path, kind: str, file: BinaryIO) -> None:
    """Write the rows of a JSON Lines file to `file` as `kind`."""
    rows = read_rows(str(journal))
    if kind == ".jsonl":
        file.writelines(to_line(row) for row in rows)
    elif kind == ".csv":
        _write_csv(rows, file)
    else:
        _write_parquet(rows, file)


def _write_csv(rows: Iterator[Row], file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(row))
            writer.writeheader()
        writer.writerow({k: json.dumps(v) if k in _NESTED else v for k, v in row.items()})
    text.flush()
    text.detach()


def _from_csv(name: str, value: str) -> Any:
    if name in _NESTED:
        return json.loads(value) if value else None
    if name in ("label", "r", "views"):
        return int(value) if value else None
    if name in ("seconds", "start", "end", "kl"):
        return float(value) if value else None
    return value or None


def _write_parquet(rows: Iterator[Row], file: BinaryIO) -> None:
    import pyarrow as pa

    parquet = _parquet()
    first = next(rows, None)
    if first is None:
        first = {"path": "", "predictions": [], "error": None, "error_kind": None}
        chunk: list[Row] = []
    else:
        chunk = [first]
    prediction = pa.struct([("label", pa.string()), ("score", pa.float64())])
    types = {
        "predictions": pa.list_(prediction),
        "classes": pa.list_(pa.int64()),
        "logits": pa.list_(pa.float64()),
        "vector": pa.list_(pa.float32()),
        "start": pa.float64(),
        "end": pa.float64(),
        "origin": pa.struct(_origin_fields("rows" in (first.get("origin") or {}))),
        "factors": pa.map_(pa.string(), pa.bool_()),
        "kl": pa.float64(),
        "label": pa.int64(),
        "r": pa.int64(),
        "views": pa.int64(),
        "seconds": pa.float64(),
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in first])
    size = _chunk(first)
    with parquet.ParquetWriter(file, schema) as writer:
        for row in rows:
            chunk.append(row)
            if len(chunk) == size:
                writer.write_table(pa.Table.from_pylist(_as_utf8(chunk), schema))
                chunk = []
        writer.write_table(pa.Table.from_pylist(_as_utf8(chunk), schema))


def _chunk(columns: Iterable[str]) -> int:
    """Rows that are in memory at a time."""
    return _VECTORS_CHUNK if "vector" in columns else _PARQUET_CHUNK


def _origin_fields(counted: bool) -> list[tuple[str, Any]]:
    """What a row was made of; with how many rows its video has, where that differs."""
    import pyarrow as pa

    fields = [("source", pa.string()), ("size", pa.int64()), ("mtime", pa.float64())]
    fields.append(("settings", pa.string()))
    return [*fields, ("rows", pa.int64())] if counted else fields


def _as_utf8(rows: list[Row]) -> list[Row]:
    """Parquet's text must be UTF-8; a file name that is not gets a replacement character."""

    def readable(name: str) -> str:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    made = []
    for row in rows:
        row = {**row, "path": readable(row["path"])}
        if row.get("origin"):
            row["origin"] = {**row["origin"], "source": readable(row["origin"]["source"])}
        made.append(row)
    return made


def _parquet() -> Any:
    return require("pyarrow.parquet", "reading and writing Parquet", "parquet")
