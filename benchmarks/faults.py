"""A run that everything happens to: after resumes, every video has its right row.

    python benchmarks/faults.py [--videos 2000] [--seed 0] [--folder FOLDER]

Small videos are made, and `sta predict` runs over them twice: once undisturbed, and once with
faults. Decoding processes are killed at random, a tenth of the files is missing for a while, the
disk is full once (by a limit on the size of files), and the process itself is killed twice. Then
the rows are compared: the same videos, in the same order, with the same predictions.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil

from sta.inference.rows import read_rows
from sta.video.digits import DigitActions, write_videos

SECONDS = 3600  # after which a run is given up


@dataclass
class Faults:
    """What happened."""

    videos: int
    runs: int = 0
    decoders_killed: int = 0
    runs_killed: int = 0
    disk_full: int = 0
    missing_for_a_while: int = 0
    failed_in_between: dict[str, int] = field(default_factory=dict)
    wrong_rows: int = 0


def command(videos: Path, out: Path, *more: str) -> list[str]:
    words = ["predict", str(videos), "--out", str(out), "--r", "24", "--batch-size", "1", *more]
    return [sys.executable, "-m", "sta", *words]


def rows_in(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def decoders(run: psutil.Process) -> list[psutil.Process]:
    try:
        return run.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def limit_files(size: int) -> Callable[[], None]:
    """Makes writing beyond a size fail, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def disturbed(
    words: list[str], out: Path, faults: Faults, rng: random.Random, *, die_at: int | None
) -> int:
    """Run, kill decoders now and then, and the run itself when it has so many rows."""
    faults.runs += 1
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    run = psutil.Process(process.pid)
    next_kill = rows_in(out) + 2
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
        rows = rows_in(out)
        if die_at is not None and rows >= die_at:
            process.send_signal(signal.SIGKILL)
            faults.runs_killed += 1
            break
        if rows >= next_kill:
            next_kill = rows + rng.randint(10, 60)
            for decoder in decoders(run)[:1]:
                try:
                    decoder.kill()
                    faults.decoders_killed += 1
                except psutil.NoSuchProcess:
                    continue
    return process.wait()


def inject(folder: Path, count: int, seed: int = 0) -> Faults:
    """Make the videos, run both ways, and compare."""
    rng = random.Random(seed)
    faults = Faults(count)
    videos, whole, out = folder / "videos", folder / "whole.jsonl", folder / "rows.jsonl"
    if not videos.exists():
        for _ in write_videos(DigitActions("test", size=count), videos):
            pass
    files = sorted(videos.glob("**/*.mp4"))
    assert len(files) == count
    subprocess.run(command(videos, whole), check=True, stderr=subprocess.DEVNULL)

    names = folder / "list.txt"
    names.write_text("".join(f"{file}\n" for file in files))
    words = command(names, out)
    away = rng.sample(files, max(1, count // 10))
    for file in away:
        file.rename(file.with_suffix(".away"))
    faults.missing_for_a_while = len(away)
    disturbed(words, out, faults, rng, die_at=count // 4)

    kept = out.stat().st_size
    faults.runs += 1
    full = subprocess.run(
        [*words, "--resume"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit_files(kept + kept // 4),
    )
    assert full.returncode == 3, full.stderr
    assert f"{out}: cannot be written" in full.stderr
    faults.disk_full += 1

    disturbed([*words, "--resume"], out, faults, rng, die_at=count // 2)
    disturbed([*words, "--resume"], out, faults, rng, die_at=None)
    kinds = Counter(row["error_kind"] for row in read_rows(str(out)) if row["error"])
    faults.failed_in_between = dict(kinds)
    for file in away:
        file.with_suffix(".away").rename(file)
    code = disturbed([*words, "--resume"], out, faults, rng, die_at=None)
    for _ in range(3):  # a decoder that was killed twice is tried again by the next run
        if code == 0:
            break
        faults.runs += 1
        code = subprocess.run([*words, "--resume"], stderr=subprocess.DEVNULL).returncode
    assert code == 0, f"exit code {code}"

    expected, found = list(read_rows(str(whole))), list(read_rows(str(out)))
    assert [row["path"] for row in found] == [row["path"] for row in expected]
    faults.wrong_rows = sum(not same(*pair) for pair in zip(expected, found, strict=True))
    left = {file.name for file in folder.iterdir()} - {"videos", "whole.jsonl", "list.txt"}
    assert left == {"rows.jsonl"}, left
    return faults


def same(one: dict[str, object], other: dict[str, object]) -> bool:
    """Whether two rows say the same; scores to the last digit that is written."""
    labels, scores = [], []
    for row in (one, other):
        predictions: list[dict[str, float]] = row["predictions"]  # type: ignore[assignment]
        labels.append([p["label"] for p in predictions])
        scores.append([p["score"] for p in predictions])
    return (
        one["error"] is None
        and other["error"] is None
        and labels[0] == labels[1]
        and bool(np.allclose(*scores, atol=2e-6))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--videos", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep the files here")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        faults = inject(folder, options.videos, options.seed)
    print(json.dumps({**asdict(faults), "seconds": round(time.monotonic() - start)}, indent=1))
    if faults.wrong_rows:
        sys.exit(1)


if __name__ == "__main__":
    main()
