"""Hours of video: flat memory, every window once, frames shared by overlapping windows.

    python benchmarks/hours.py [--only memory killed sharing] [--minutes 1 30 120] [--kills 3]

Writes docs/results/hours.json; parts that are not run stay as they are.

memory: the most resident memory of `sta features` and of its decoding process over generated videos
of one minute to two hours (4 frames per second, 64 x 64 pixels), vectors to Parquet and dense
features to an array. killed: over the longest of them and a short one, the command is ended by
SIGKILL at random moments and gone on with by --resume; every window must be there once, as in a
run that nobody ended. sharing: decoding and preparing windows that overlap four times, three
ways, in turns: each frame prepared once; prepared anew for every window; each window a file. Time
is told as it passed, and as the processor's, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from sta.inference.rows import read_rows
from sta.measure.peak import processor
from sta.video.decode import Canvas, decode_frames, open_for_decoding, read_views
from sta.video.encode import write_video
from sta.video.views import ViewSpec
from sta.video.windows import Cut, Cutter, WindowSpec, read_windows

OUT = Path(__file__).resolve().parents[1] / "docs/results/hours.json"
FPS, SIZE = 4, 64
#: Seconds of a window, and from one to the next.
WINDOW, EVERY = 16, 12
OVERLAP = 4
#: Windows that are cut out as files; the others cost as much.
FILES = 6


def generate(path: Path, minutes: float) -> Path:
    """A video of noise that moves, so that no two windows are alike."""
    ground = np.random.default_rng(0).integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)

    def pictures() -> Iterator[NDArray[np.uint8]]:
        for number in range(round(60 * minutes * FPS)):
            yield np.roll(ground, (number // SIZE, number % SIZE), (0, 1))

    return write_video(path, pictures(), fps=FPS, options={"preset": "ultrafast", "g": "50"})


def windows_of(minutes: float) -> int:
    """By arithmetic."""
    return 1 + int((60 * minutes - WINDOW) // EVERY)


def command(videos: list[Path], out: Path, *more: str) -> list[str]:
    words = [sys.executable, "-m", "sta", "features", *map(str, videos), "--model", "vit-digits"]
    words += ["--r", "25", "--windows", f"{WINDOW}s", "--every", f"{EVERY}s", "--out", str(out)]
    return [*words, "--runtime", "torch", "--workers", "1", *more]


def peaks(words: list[str]) -> tuple[float, float, float]:
    """MB of a command and of the processes that it started, and seconds."""
    began = time.monotonic()
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    watched, decoding = psutil.Process(process.pid), 0
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            break
        for child in watched.children(recursive=True):
            try:
                decoding = max(decoding, child.memory_info().rss)
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.1)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(words)}")
    return usage.ru_maxrss / 1024, decoding / 2**20, time.monotonic() - began


def memory(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for minutes in options.minutes:
        video = generate(folder / f"{minutes:g}.mp4", minutes)
        for dense in (False, True):
            out = folder / (f"{minutes:g}-dense" if dense else f"{minutes:g}.parquet")
            most, decoding, seconds = peaks(command([video], out, *(["--dense"] if dense else [])))
            if dense:
                array = np.load(out / f"{minutes:g}.npy", mmap_mode="r")
                count, written = len(array), (out / f"{minutes:g}.npy").stat().st_size
            else:
                starts = [row["start"] for row in read_rows(str(out))]
                count, written = len(set(starts)), out.stat().st_size
                assert len(starts) == count
            assert count == windows_of(minutes), (count, windows_of(minutes))
            row = {
                "minutes": minutes,
                "dense": dense,
                "windows": count,
                "most_mb": round(most, 1),
                "decoder_most_mb": round(decoding, 1),
                "written_mb": round(written / 2**20, 1),
                "seconds": round(seconds, 1),
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def killed(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """End the command at random moments, go on with it, and compare what it made."""
    short = generate(folder / "short.mp4", 1)
    long = folder / f"{options.minutes[-1]:g}.mp4"
    if not long.exists():
        generate(long, options.minutes[-1])
    whole, out = folder / "whole.jsonl", folder / "killed.jsonl"
    seconds = peaks(command([short, long], whole))[2]
    rng = np.random.default_rng(options.seed)
    kills: list[dict[str, float]] = []
    while len(kills) < options.kills:
        process = subprocess.Popen(command([short, long], out, "--resume"), stderr=subprocess.PIPE)
        after = rng.uniform(0.2, 1.0) * seconds
        try:
            _, told = process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            rows = out.read_bytes().count(b"\n") if out.exists() else 0
            kills.append({"after_seconds": round(after, 1), "rows_in_file": rows})
            print(kills[-1], flush=True)
            continue
        if process.returncode:
            raise SystemExit(told.decode())
        out.unlink()  # it was done before that moment; from the start again
    peaks(command([short, long], out, "--resume"))
    expected, found = (list(read_rows(str(file))) for file in (whole, out))
    keys = [(row["path"], row["start"]) for row in found]
    vectors = all(a["vector"] == b["vector"] for a, b in zip(expected, found, strict=True))
    counts = windows_of(1) + windows_of(options.minutes[-1])
    return {
        "minutes": options.minutes[-1],
        "kills": kills,
        "windows": len(keys),
        "windows_by_arithmetic": counts,
        "each_once": len(set(keys)) == len(keys) == counts,
        "as_in_a_run_to_the_end": keys == [(r["path"], r["start"]) for r in expected] and vectors,
    }


def prepared_anew(path: str, spec: WindowSpec) -> Iterator[NDArray[np.uint8]]:
    """The windows of `read_windows`, decoded once, but every window prepares its own frames."""
    with open_for_decoding(path) as video:
        cutter, canvas = Cutter(spec, float(video.stream.average_rate or 25)), Canvas(spec.view, 1)
        held: dict[int, Any] = {}
        for frame in decode_frames(video, lambda: None, check_end=True):
            for event in cutter.push(frame.time, lambda frame=frame: frame):  # type: ignore[misc]
                if not isinstance(event, Cut):
                    held[event[0]] = event[1]
                    continue
                yield np.stack([canvas.prepare(held[number]) for number in event.frames])
                held = {number: kept for number, kept in held.items() if number >= event.keep}


def sharing(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    view = ViewSpec(16, 4, 224)  # what a ViT of Kinetics takes
    found = []
    for height, width in ((240, 320), (720, 1280)):
        ground = np.random.default_rng(0).integers(0, 255, (height // 8, width // 8, 3), np.uint8)
        ground = ground.repeat(8, 0).repeat(8, 1)
        span = view.frames * view.stride
        spec = WindowSpec(view, every=span / 25 / OVERLAP)

        def pictures(first: int, count: int, ground: Any = ground) -> Iterator[NDArray[np.uint8]]:
            return (np.roll(ground, first + number, 1) for number in range(count))

        quick = {"preset": "ultrafast"}
        moving = pictures(0, 25 * options.seconds)
        long = str(write_video(folder / f"{height}.mp4", moving, options=quick))
        clips = [window.clip for window in read_windows(long, spec)]
        pairs = zip(clips, prepared_anew(long, spec), strict=True)
        assert all((one == other).all() for one, other in pairs)
        cut = []
        for number in range(0, len(clips), -(-len(clips) // FILES)):
            part = pictures(spec.start(number, 25), span)
            cut.append(str(write_video(folder / f"{height}-{number}.mp4", part, options=quick)))
        ways = {
            "shared": lambda long=long, spec=spec: sum(1 for _ in read_windows(long, spec)),
            "anew": lambda long=long, spec=spec: sum(1 for _ in prepared_anew(long, spec)),
            "files": lambda cut=cut, spec=spec: len(
                [read_views(f, spec.view).clips() for f in cut]
            ),
        }
        clocks = {"ms": time.perf_counter, "cpu_ms": time.process_time}
        times: dict[tuple[str, str], list[float]] = {(w, c): [] for w in ways for c in clocks}
        for _ in range(options.rounds):
            for name, way in ways.items():
                began = {clock: now() for clock, now in clocks.items()}
                count = way()
                for clock, now in clocks.items():
                    times[name, clock].append(1000 * (now() - began[clock]) / count)
        row: dict[str, Any] = {"height": height, "width": width, "windows": len(clips)}
        for (name, clock), values in times.items():
            low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
            of_shared = zip(values, times["shared", clock], strict=True)
            row.setdefault(name, {})[clock] = {
                "median": round(middle, 2),
                "quartiles": [round(low, 2), round(high, 2)],
                "against_shared": round(statistics.median(a / b for a, b in of_shared), 2),
            }
        print(row, flush=True)
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = {"memory": memory, "killed": killed, "sharing": sharing}
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 30, 120])
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--seconds", type=int, default=24, help="of the video with shared frames")
    parser.add_argument("--rounds", type=int, default=5, help="of timing")
    parser.add_argument("--json", type=Path, default=OUT)
    options = parser.parse_args()
    made = json.loads(options.json.read_text()) if options.json.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            made[name] = {
                "processor": processor(),
                "load_before": round(os.getloadavg()[0], 2),
                "found": parts[name](Path(folder), options),
            }
            options.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
