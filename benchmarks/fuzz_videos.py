"""A thousand damaged videos: no crash, no hang, a row for every file.

    python benchmarks/damaged_files.py [--files 1000] [--seed 0] [--timeout 20] [--json FILE]

Small videos of several containers and codecs are truncated, have bytes flipped or blocks zeroed,
and go through the same decoding stage and rows as ``sta predict``. Prints what became of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sta.inference.local import decode_ahead
from sta.inference.samples import Sample
from sta.video.encode import write_video
from sta.video.lists import Entry
from sta.video.views import ViewSpec

#: File name, encoder, its options, the container's options.
VIDEOS: tuple[tuple[str, str, dict[str, str], dict[str, str]], ...] = (
    ("h264.mp4", "libx264", {}, {}),
    ("faststart.mp4", "libx264", {}, {"movflags": "faststart"}),
    ("h264.mkv", "libx264", {}, {}),
    ("h264.ts", "libx264", {}, {}),
    ("hevc.mov", "libx265", {"x265-params": "log-level=none"}, {}),
    ("mpeg4.avi", "mpeg4", {}, {}),
    ("mpeg4.mp4", "mpeg4", {}, {}),
    ("mjpeg.avi", "mjpeg", {}, {}),
    ("vp9.webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}, {}),
    ("mpeg2.mpg", "mpeg2video", {}, {}),
    ("flv1.flv", "flv", {}, {}),
    ("wmv2.wmv", "wmv2", {}, {}),
    ("frames.gif", "gif", {}, {}),
)
DAMAGES = ("truncated", "flipped bytes", "zeroed blocks")
SPEC = ViewSpec(frames=8, stride=2, size=32, temporal=2, spatial=3)


def originals(folder: Path, seed: int = 0) -> list[Path]:
    """A small moving picture in every container and codec."""
    rng = np.random.default_rng(seed)
    texture = rng.integers(0, 256, (12, 16, 3)).repeat(4, axis=0).repeat(4, axis=1)
    pictures = [np.roll(texture, 3 * i, axis=1).astype(np.uint8) for i in range(24)]
    return [
        write_video(folder / name, pictures, codec=codec, options=options, container_options=muxer)
        for name, codec, options, muxer in VIDEOS
    ]


def damage(data: bytes, kind: str, rng: np.random.Generator) -> bytes:
    """A damaged copy of a file."""
    if kind == "truncated":
        return data[: int(rng.integers(0, len(data)))]
    broken = np.frombuffer(data, np.uint8).copy()
    if kind == "flipped bytes":
        places = rng.integers(0, len(data), size=int(2 ** rng.uniform(0, 8)))
        broken[places] ^= rng.integers(1, 256, size=len(places), dtype=np.uint8)
    else:
        for _ in range(int(rng.integers(1, 4))):
            start = int(rng.integers(0, len(data)))
            broken[start : start + int(2 ** rng.uniform(4, 11))] = 0
    return broken.tobytes()


def damaged_files(folder: Path, count: int, seed: int = 0) -> Iterator[tuple[Path, str]]:
    """`count` damaged files and what was done to each, container by container."""
    sources = [(path, path.read_bytes()) for path in originals(folder, seed)]
    rng = np.random.default_rng(seed)
    for number in range(count):
        source, data = sources[number % len(sources)]
        kind = DAMAGES[number // len(sources) % len(DAMAGES)]
        path = folder / f"{number:05d} {source.name}"
        path.write_bytes(damage(data, kind, rng))
        yield path, kind


def outcome(sample: Sample) -> str:
    """What became of a file, in one word."""
    if sample.error is None:
        return "read"
    if "crashed" in sample.error:
        return "crashed"
    return "given up" if "given up" in sample.error else "refused"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = list(damaged_files(Path(folder), options.files, options.seed))
        entries = [Entry(path.name, str(path)) for path, _ in files]
        start = time.monotonic()
        samples = list(decode_ahead(entries, SPEC, timeout=options.timeout))
        seconds = time.monotonic() - start
    rows = [sample.path for sample in samples]
    assert rows == [entry.path for entry in entries], "every file has its row"
    kinds = [kind for _, kind in files]
    counts = Counter((kind, outcome(s)) for kind, s in zip(kinds, samples, strict=True))
    reasons = Counter(sample.error for sample in samples if sample.error)
    outcomes = ("read", "refused", "crashed", "given up")
    table = Table("damage", *outcomes)
    for kind in DAMAGES:
        table.add_row(kind, *(str(counts[kind, name]) for name in outcomes))
    console = Console()
    console.print(table)
    console.print(f"{len(rows)} files, {len(rows)} rows, {seconds:.1f} s")
    for reason, number in reasons.most_common(8):
        console.print(f"{number:6d}  {reason}", markup=False)
    if options.json:
        report = {f"{kind}: {name}": counts[kind, name] for kind in DAMAGES for name in outcomes}
        options.json.write_text(json.dumps({"files": len(rows), "s": seconds, **report}, indent=1))


if __name__ == "__main__":
    main()
