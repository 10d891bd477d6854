"""transformers' video-classification pipeline beside sta on the same files and model, end to end.

    python benchmarks/pipeline.py FOLDER VIDEOS... [--r 64] [--rounds 7] [--videos-per-round 16]
        [--contenders float32:torch float32:openvino bfloat16:openvino int8:openvino] [--json FILE]

FOLDER is a model that `save_pretrained` or `sta train` wrote. Every contender reads, decodes,
resizes and classifies the same files in every round, one clip each, and they take turns; the first
round is for warming up and does not count. Models are loaded and graphs made before that. The
pipeline runs the stock model in float32, and decodes with torchcodec, or with PyAV where that is
not installed. Then it takes the first frames of a video where sta takes the middle ones, as many of
them; videos of less than frames x stride frames, which it cannot batch, are left out. Run it on
cores that nothing else uses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from sta.inference.threads import wait_passively
from sta.measure.memory import keep_memory

wait_passively()  # as the command does, before torch
keep_memory()  # as the command does; for every contender

import av
import torch
import transformers
from rich.console import Console

import sta
from sta.inference.setup import Setup
from sta.measure.peak import processor
from sta.video.lists import Entry, find_videos

PIPELINE = "transformers"


def long_enough(files: Sequence[Entry], frames: int) -> list[Entry]:
    """Videos whose header tells of so many frames."""

    def length(path: str) -> int:
        with av.open(path) as container:
            return int(container.streams.video[0].frames)

    found = [entry for entry in files if length(entry.source) >= frames]
    if not found:
        raise SystemExit(f"none of {len(files)} videos has {frames} frames: give longer ones")
    return found


def stock_pipeline(folder: str, batch_size: int) -> Callable[[Sequence[Entry]], None]:
    """What people use now."""
    transformers.utils.logging.set_verbosity_error()
    views = Setup.make(folder, methods=()).opened.clip.views
    made = transformers.pipeline("video-classification", model=folder, batch_size=batch_size)
    if find_spec("torchcodec") is None:  # its video processor cannot decode without
        made.video_processor = None
        made.image_processor = transformers.AutoImageProcessor.from_pretrained(folder)

    def run(entries: Sequence[Entry]) -> None:
        found = made(
            [entry.source for entry in entries],
            num_frames=views.frames,
            frame_sampling_rate=views.stride,
        )
        assert len(found) == len(entries)

    return run


def pruned(
    folder: str, r: int, precision: str, runtime: str, batch_size: int, entries: Sequence[Entry]
) -> Callable[[Sequence[Entry]], None]:
    """What `sta predict --r --precision --runtime` does, with its model kept between rounds."""
    setup = Setup.make(folder, r=[r], precision=precision, runtime=runtime, views="1x1")
    run = setup.run(batch_size=batch_size)
    setup.prepare(run.classifier, entries)

    def predict(entries: Sequence[Entry]) -> None:
        for video in run.score(entries):
            assert video.error is None, f"{video.path}: {video.error}"

    return predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--r", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--videos-per-round", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument(
        "--contenders",
        nargs="+",
        metavar="PRECISION:RUNTIME",
        default=["float32:torch", "float32:openvino", "bfloat16:openvino", "int8:openvino"],
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    views = Setup.make(options.folder, methods=()).opened.clip.views
    files = long_enough(find_videos(options.videos), views.frames * views.stride)
    entries = [
        Entry(f"{number} {entry.path}", entry.source)
        for number, entry in enumerate(
            itertools.islice(itertools.cycle(files), options.videos_per_round)
        )
    ]
    runs = {PIPELINE: stock_pipeline(options.folder, options.batch_size)}
    for contender in options.contenders:
        precision, _, runtime = contender.partition(":")
        runs[contender] = pruned(
            options.folder, options.r, precision, runtime, options.batch_size, entries
        )
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(options.rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run(entries)
            rate = len(entries) / (time.perf_counter() - start)
            if number:
                rates[name].append(rate)
        console.print(f"round {number} of {options.rounds}", highlight=False)
    console.print(
        f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, sta {sta.__version__}; {options.folder}, "
        f"r={options.r}, {len(entries)} videos a round, batch {options.batch_size}; clips/s, "
        f"medians of {options.rounds} rounds",
        highlight=False,
    )
    rows = []
    for name, own in rates.items():
        ratios = [rate / base for rate, base in zip(own, rates[PIPELINE], strict=True)]
        low, high = min(ratios), max(ratios)
        row = {"name": name, "clips_per_s": statistics.median(own), "rates": own}
        row |= {"ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high}
        rows.append(row)
        console.print(
            f"{name:20} {row['clips_per_s']:8.3f} {row['ratio']:6.2f}x ({low:.2f}x to {high:.2f}x)",
            highlight=False,
        )
    if options.json is not None:
        about = {"processor": processor(), "threads": torch.get_num_threads()}
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
