"""Is decoding hidden behind the model, and does memory stay flat?

    python benchmarks/end_to_end.py VIDEOS... [--model vit-s] [--r 64] [--views 1x1] [--rounds 11]
        [--runtime openvino] [--precision bfloat16]
    python benchmarks/end_to_end.py VIDEOS... --memory 500

The first compares the clips/s of a run over real videos (reading, decoding, resizing, batching,
rows) with the clips/s of the model alone on the same batch size. Both take turns in one run, the
decoders being stopped while the model runs alone. The second sends a number of videos through a
small model and watches the memory of the process and its decoders. Weights are random: neither
depends on them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sta.inference.threads import wait_passively
from sta.measure.memory import keep_memory

wait_passively()  # as the command does, before torch
keep_memory()

import psutil
import torch
from rich.console import Console

from sta.inference.clip_model import ClipModel
from sta.inference.journal import MemoryJournal
from sta.inference.rows import prediction_row
from sta.inference.scoring import Scored
from sta.inference.setup import Setup
from sta.video.lists import Entry, find_videos

MEGABYTE = 2**20
SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
}


def repeated(entries: Sequence[Entry], count: int) -> list[Entry]:
    """`count` videos, the same ones over and over under different names."""
    cycle = itertools.islice(itertools.cycle(entries), count)
    return [Entry(f"{number} {entry.path}", entry.source) for number, entry in enumerate(cycle)]


def cpu_seconds() -> float:
    """CPU time of this process and its decoders so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def model_alone(model: ClipModel, batch_size: int, batches: int) -> float:
    """Clips per second of the forward on pixels that are there already; decoders stand still."""
    pixels = torch.randn(model.clip.shape(batch_size))
    decoders = psutil.Process().children(recursive=True)
    for decoder in decoders:
        decoder.suspend()
    start = time.perf_counter()
    for _ in range(batches):
        model.forward(pixels)
    seconds = time.perf_counter() - start
    for decoder in decoders:
        decoder.resume()
    return batch_size * batches / seconds


def whole_run(setup: Setup, videos: Iterator[Scored], clips: int) -> float:
    """Clips per second of the next videos of a run, as `sta predict` does it."""
    journal = MemoryJournal()
    start = time.perf_counter()
    done = 0
    while done < clips:
        video = next(videos)
        assert video.error is None, f"{video.path}: {video.error}"
        journal.append([prediction_row(video, setup.opened.class_names, 5)])
        done += video.views
    return done / (time.perf_counter() - start)


def speed(options: argparse.Namespace, console: Console) -> dict[str, object]:
    setup = Setup.make(
        options.model,
        r=[options.r],
        random_weights=not Path(options.model).is_dir(),  # which time does not depend on
        views=options.views,
        runtime=options.runtime,
        precision=options.precision,
    )
    clips = -(-options.clips // setup.spec.views) * setup.spec.views  # per round, whole videos
    batches = -(-clips // options.batch_size)
    count = (options.rounds + 2) * clips // setup.spec.views
    entries = repeated(find_videos(options.videos), count)
    run = setup.run(batch_size=options.batch_size, workers=options.workers)
    setup.prepare(run.classifier, entries)
    videos = run.score(entries)
    whole_run(setup, videos, clips)  # warm up, start the decoders and fill what they keep ready
    rates: dict[str, list[float]] = {"model": [], "end to end": []}
    cpu: dict[str, list[float]] = {"model": [], "end to end": []}
    for _ in range(options.rounds):
        before = cpu_seconds()
        rates["model"].append(model_alone(run.classifier, options.batch_size, batches))
        between = cpu_seconds()
        rates["end to end"].append(whole_run(setup, videos, clips))
        cpu["model"].append((between - before) / (batches * options.batch_size))
        cpu["end to end"].append((cpu_seconds() - between) / clips)
        alone, whole = rates["model"][-1], rates["end to end"][-1]
        console.print(f"model {alone:.3f}, end to end {whole:.3f} clips/s: {whole / alone:.1%}")
    ratios = [w / m for m, w in zip(rates["model"], rates["end to end"], strict=True)]
    ratio = statistics.median(ratios)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratio] * 3
    console.print(
        f"{options.model} r={options.r}, {options.rounds} rounds of {clips} clips, "
        f"{setup.spec.views} views per video, batch {options.batch_size}: [bold]{ratio:.1%}[/bold] "
        f"of the model alone (median; quartiles {quartiles[0]:.1%} to {quartiles[2]:.1%})"
    )
    work = {name: statistics.median(seconds) for name, seconds in cpu.items()}
    console.print(
        f"CPU seconds per clip: model {work['model']:.3f}, end to end {work['end to end']:.3f} "
        f"({work['end to end'] / work['model'] - 1:+.1%})"
    )
    return {"ratio": ratio, "ratios": ratios, **rates, "cpu_s": work}


def memory_used() -> int:
    """Resident bytes of this process and its decoders."""
    total = 0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def memory(options: argparse.Namespace, console: Console) -> dict[str, object]:
    setup = Setup.make(
        "vit-s", r=[options.r], random_weights=True, views=options.views, overrides=SMALL
    )
    entries = repeated(find_videos(options.videos), options.memory)
    used: list[int] = []
    for video in setup.run(batch_size=options.batch_size).score(entries):
        assert video.error is None
        used.append(memory_used() // MEGABYTE)
    tenths = list(_tenths(used))
    for number, (peak, last) in enumerate(tenths, start=1):
        console.print(f"{number * len(used) // 10:5d} videos: {last} MB, peak {peak} MB")
    half = len(used) // 2
    first, second = max(used[:half]), max(used[half:])
    console.print(
        f"peak of the first half {first} MB, of the second {second} MB: "
        f"[bold]{second / first - 1:+.1%}[/bold]"
    )
    return {"videos": len(used), "peak_mb": [peak for peak, _ in tenths]}


def _tenths(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    for part in range(10):
        piece = values[part * len(values) // 10 : (part + 1) * len(values) // 10]
        if piece:
            yield max(piece), piece[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", nargs="+", help="files, folders or lists")
    parser.add_argument("--model", default="vit-s", help="name of the zoo, or folder")
    parser.add_argument("--r", type=int, default=64)
    parser.add_argument("--views", default="1x1")
    parser.add_argument("--runtime", default="torch")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, help="decoding processes")
    parser.add_argument("--clips", type=int, default=12, help="per round")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--memory", type=int, metavar="VIDEOS", help="watch the memory instead")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    report = (memory if options.memory else speed)(options, console)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
