"""Files of rows: JSON Lines, Parquet and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from sta.inference.rows import Row

ENDINGS = (".jsonl", ".parquet", ".csv")
_NESTED = ("predictions", "classes", "factors")
_PARQUET_CHUNK = 4096  # rows


def read_rows(path: str) -> Iterator[Row]:
    """The rows of a finished file, or the whole ones of an unfinished JSON Lines file."""
    kind = PurePosixPath(path).suffix.lower()
    if kind == ".parquet":
        parquet = _parquet()
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_PARQUET_CHUNK):
                yield from batch.to_pylist()
    elif kind == ".csv":
        with Path(path).open(newline="", encoding="utf-8") as text:
            for row in csv.DictReader(text):
                yield {name: _from_csv(name, value) for name, value in row.items()}
    else:
        with Path(path).open("rb") as lines:
            for line in lines:
                parsed = from_line(line)
                if parsed is not None:
                    yield parsed


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
    if name == "seconds":
        return float(value)
    return value or None


def _write_parquet(rows: Iterator[Row], file: BinaryIO) -> None:
    import pyarrow as pa

    parquet = _parquet()
    first = next(rows, None)
    if first is None:
        first = {"path": "", "predictions": [], "error": None}
        chunk: list[Row] = []
    else:
        chunk = [first]
    prediction = pa.struct([("label", pa.string()), ("score", pa.float64())])
    types = {
        "predictions": pa.list_(prediction),
        "classes": pa.list_(pa.int64()),
        "factors": pa.map_(pa.string(), pa.bool_()),
        "label": pa.int64(),
        "r": pa.int64(),
        "views": pa.int64(),
        "seconds": pa.float64(),
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in first])
    with parquet.ParquetWriter(file, schema) as writer:
        for row in rows:
            chunk.append(row)
            if len(chunk) == _PARQUET_CHUNK:
                writer.write_table(pa.Table.from_pylist(_as_utf8(chunk), schema))
                chunk = []
        writer.write_table(pa.Table.from_pylist(_as_utf8(chunk), schema))


def _as_utf8(rows: list[Row]) -> list[Row]:
    """Parquet's text must be UTF-8; a file name that is not gets a replacement character."""
    return [
        {**row, "path": row["path"].encode("utf-8", "surrogateescape").decode("utf-8", "replace")}
        for row in rows
    ]


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError('Parquet files need pyarrow: pip install "sta-video[parquet]"') from None
    return pyarrow.parquet
