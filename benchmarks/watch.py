"""`sta watch` on an endless stream: memory, latency, skipped windows, a stream cut off and back.

    python benchmarks/watch.py [--seconds 600] [--slowed 60] [--json docs/results/watch.json]

Another process encodes digit actions at 25 frames per second, in real time, into a named pipe. In
the first part, of `--seconds`, 10 kB of noise come with the stream every 20 seconds, and every
minute it breaks off for 3. In the second, of `--slowed` seconds, each forward takes 1.2 seconds
longer than it would, and the stream is clean, so that arithmetic says how many windows there are.

Latency is told twice: as rows have it, from the arrival of a window's last frame to the row; and
end to end, from the moment when that frame was given to the encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import torch

import sta
from sta.inference.stream import StreamModel
from sta.inference.watch import Watch
from sta.measure.peak import processor
from sta.video.digits import DigitActions
from sta.video.live import live_source

FPS = 25
#: Seconds between noise, between breaks, and that a break lasts.
NOISE, CUT, GONE = 20, 60, 3
#: Seconds between two looks at the memory.
LOOK = 5.0


def feed(path: Path, log: Path, seconds: float, clean: bool) -> None:
    """Write a stream in real time; note when each frame was given to the encoder."""
    clips, _ = DigitActions("test").batch(range(13))
    pictures = clips.reshape(-1, *clips.shape[2:])
    noise = np.random.default_rng(0).bytes(10_000)
    connection, until = 0, time.monotonic() + seconds
    with log.open("w") as notes:
        while time.monotonic() < until:
            with path.open("wb", buffering=0) as pipe:
                end = until if clean else min(until, time.monotonic() + CUT)
                try:
                    _feed_once(pipe, pictures, end, b"" if clean else noise, notes, connection)
                except BrokenPipeError:
                    return
            connection += 1
            if clean:
                return
            time.sleep(GONE)


def _feed_once(
    pipe: Any, pictures: Any, end: float, noise: bytes, notes: Any, connection: int
) -> None:
    container = av.open(pipe, "w", format="mpegts", options={"flush_packets": "1"})
    options = {"g": str(FPS), "tune": "zerolatency", "preset": "ultrafast"}
    stream = container.add_stream("libx264", rate=FPS, options=options)
    stream.height, stream.width = pictures.shape[1:3]
    stream.pix_fmt = "yuv420p"
    began, number = time.monotonic(), 0
    while (due := began + number / FPS) < end:
        time.sleep(max(0.0, due - time.monotonic()))
        picture = av.VideoFrame.from_ndarray(pictures[number % len(pictures)], format="rgb24")
        print(connection, number, time.monotonic(), file=notes, flush=True)
        container.mux(stream.encode(picture))
        number += 1
        if noise and number % (NOISE * FPS) == 0:
            pipe.write(noise)
    container.mux(stream.encode(None))
    container.close()


class Memory(threading.Thread):
    """Looks at the resident memory of this process and of the one that decodes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, float, float]] = []  # seconds, MB, MB of the decoder
        self.done = threading.Event()

    def run(self) -> None:
        own, began = psutil.Process(), time.monotonic()
        while not self.done.wait(LOOK):
            decoders = [c for c in own.children() if "sta.video.worker" in " ".join(c.cmdline())]
            decoding = sum(child.memory_info().rss for child in decoders)
            at = time.monotonic() - began
            self.seen.append((at, own.memory_info().rss / 2**20, decoding / 2**20))

    def summary(self) -> dict[str, Any]:
        """After the first tenth: the first, least and most of it, and its growth by the hour."""
        kept = np.array(self.seen[len(self.seen) // 10 :])
        made: dict[str, Any] = {"looks": len(self.seen), "after_seconds": round(kept[0, 0])}
        for column, name in ((1, "process"), (2, "decoder")):
            # While a lost stream is opened again there is no decoder.
            mb = kept[kept[:, column] > 0]
            slope = np.polyfit(mb[:, 0], mb[:, column], 1)[0] * 3600 if len(mb) > 2 else 0.0
            values = mb[:, column]
            made[name] = {
                "first_mb": round(values[0], 1),
                "least_mb": round(values.min(), 1),
                "most_mb": round(values.max(), 1),
                "last_mb": round(values[-1], 1),
                "mb_per_hour": round(slope, 1),
            }
        return made


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = np.quantile(values, [0.5, 0.95, 1.0]).round(3).tolist() if values else [0.0] * 3
    return dict(zip(("p50", "p95", "most"), ordered, strict=True))


def part(options: argparse.Namespace, seconds: float, slow: float) -> dict[str, Any]:
    """Watch one stream; slowed, it is clean and watched to its end."""
    model = StreamModel(options.model, sta.STAConfig(r=options.r), every=options.every)
    usual = model.row

    def slower(*window: Any) -> Any:
        time.sleep(slow)
        return usual(*window)

    model.row = slower  # type: ignore[method-assign]
    rows: list[tuple[int, float, float, float]] = []  # connection, start, latency, when
    given: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        pipe, log = Path(folder) / "live.ts", Path(folder) / "log"
        os.mkfifo(pipe)
        words = [str(pipe), str(log), str(seconds), str(int(slow > 0))]
        feeder = subprocess.Popen([sys.executable, __file__, "--feed", *words])
        while not log.exists() and feeder.poll() is None:
            time.sleep(0.1)  # it takes a while to start, in which the pipe would count as lost
        memory = Memory()
        memory.start()
        watch = Watch(live_source(str(pipe)), model, duration=seconds + 20)

        def lost(line: str) -> None:
            print(line, flush=True)
            if (slow and watch.summary.windows) or feeder.poll() is not None:
                watch.duration = 0  # it is over

        watch.report = lost
        counted = watch._put

        def put(window: Any) -> None:
            given.append(window.start)
            counted(window)

        watch._put = put  # type: ignore[method-assign]
        connection, said = 0, 0.0
        for row in watch.rows():
            if rows and row["start"] <= rows[-1][1]:
                connection += 1
            rows.append((connection, row["start"], row["latency"], time.monotonic()))
            if time.monotonic() - said > seconds / 10 and memory.seen:
                said = time.monotonic()
                print("{:.0f} s: {:.0f} MB, decoder {:.0f} MB".format(*memory.seen[-1]), flush=True)
        memory.done.set()
        memory.join()
        feeder.terminate()  # it may wait for somebody to open the pipe again
        feeder.wait()
        sent: dict[tuple[int, int], float] = {}
        for line in log.read_text().splitlines():
            opened, number, at = line.split()
            sent[int(opened), int(number)] = float(at)
    last = int(model.spec.pattern(FPS)[-1])
    ends = [(when, sent.get((c, round(start * FPS) + last))) for c, start, _, when in rows]
    done = watch.summary
    made = {
        "seconds": round(done.seconds),
        "windows": done.windows,
        "results": done.results,
        "skipped": done.skipped,
        "reopened": done.reopened,
        "frames_sent": len(sent),
        "latency_seconds": quantiles([latency for _, _, latency, _ in rows]),
        "end_to_end_seconds": quantiles([when - at for when, at in ends if at is not None]),
        "counted_exactly": len(given) == done.windows == done.results + done.skipped
        and len(rows) == done.results,
        "memory": memory.summary(),
    }
    if slow:
        first, counts = 0, 0
        while first + last < len(sent):
            counts += 1
            first = model.spec.start(counts, FPS)
        made |= {"slowed_by_seconds": slow, "windows_by_arithmetic": counts}
        made["counted_exactly"] &= counts == done.windows
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--slowed", type=float, default=60)
    parser.add_argument("--every", type=float, default=0.5)
    parser.add_argument("--model", default="vit-digits")
    parser.add_argument("--r", type=int, default=16)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--feed", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.feed:
        pipe, log, seconds, clean = options.feed
        feed(Path(pipe), Path(log), float(seconds), clean == "1")
        return
    made: dict[str, Any] = {
        "model": options.model,
        "r": options.r,
        "every": options.every,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    if options.seconds:
        made["endless"] = part(options, options.seconds, 0.0)
    if options.slowed:
        made["slowed"] = part(options, options.slowed, 1.2)
    print(json.dumps(made, indent=1))
    if options.json:
        options.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
