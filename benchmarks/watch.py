"""`sta watch` on an endless stream: memory, latency, skipped windows, a stream cut off and back.

    python benchmarks/watch.py [--seconds 600] [--slow 0] [--model vit-digits] [--r 16]

A named pipe is fed with MPEG-TS at 25 frames per second; every minute the feed breaks off for a
moment, and every 20 seconds 10 kB of noise come with it. `--slow` makes each forward so many
seconds longer. Prints the resident memory of both processes every tenth of the run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import sta
from sta.inference.stream import StreamModel
from sta.inference.watch import Watch
from sta.video.digits import DigitActions
from sta.video.encode import write_video
from sta.video.live import live_source

#: Seconds of the recording that is fed again and again.
PIECE = 8


def feed(path: Path, piece: bytes, until: float) -> None:
    """Feed the pipe in real time, with noise and interruptions."""
    noise = np.random.default_rng(0).bytes(10_000)
    cut = noisy = time.monotonic()
    while time.monotonic() < until:
        with path.open("wb", buffering=0) as pipe:
            try:
                while time.monotonic() < until and time.monotonic() - cut < 60:
                    start = time.monotonic()
                    for part in range(PIECE * 10):
                        at = part * len(piece) // (PIECE * 10)
                        pipe.write(piece[at : (part + 1) * len(piece) // (PIECE * 10)])
                        if time.monotonic() - noisy > 20:
                            pipe.write(noise)
                            noisy = time.monotonic()
                        time.sleep(max(0.0, start + part / 10 - time.monotonic()))
            except BrokenPipeError:
                return
        cut = time.monotonic()
        time.sleep(3)


def memory() -> tuple[float, float]:
    """MB of this process, and of those that it started."""
    own = psutil.Process()
    children = sum(child.memory_info().rss for child in own.children(recursive=True))
    return own.memory_info().rss / 2**20, children / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--slow", type=float, default=0)
    parser.add_argument("--every", type=float, default=0.5)
    parser.add_argument("--model", default="vit-digits")
    parser.add_argument("--r", type=int, default=16)
    options = parser.parse_args()
    frames, _ = DigitActions("test").batch(range(-(-PIECE * 25 // 16)))
    model = StreamModel(options.model, sta.STAConfig(r=options.r), every=options.every)
    usual = model.row

    def slower(*window: Any) -> Any:
        time.sleep(options.slow)
        return usual(*window)

    model.row = slower  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        pictures = frames.reshape(-1, *frames.shape[2:])[: PIECE * 25]
        ts = write_video(Path(folder) / "piece.ts", pictures, options={"g": "25", "bf": "0"})
        pipe = Path(folder) / "live"
        os.mkfifo(pipe)
        until = time.monotonic() + options.seconds
        feeder = threading.Thread(target=feed, args=(pipe, ts.read_bytes(), until), daemon=True)
        feeder.start()
        watch = Watch(live_source(str(pipe)), model, duration=options.seconds, report=print)
        said = time.monotonic() - options.seconds
        for _ in watch.rows():
            if time.monotonic() - said > options.seconds / 10:
                said = time.monotonic()
                print("memory: {:.0f} MB, decoding {:.0f} MB".format(*memory()), flush=True)
    done = watch.summary
    print(done)
    print(f"counted exactly: {done.results + done.skipped == done.windows}")


if __name__ == "__main__":
    main()
