"""The local engine: processes decode ahead of the model, a bounded number of videos."""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from sta.inference.samples import Sample
from sta.video.decode import VideoError
from sta.video.lists import Entry
from sta.video.safe import SafeDecoder
from sta.video.views import ViewSpec


def default_workers(device: str = "cpu") -> int:
    """Decoding processes: half the cores where the model needs them, too."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, cores // 2 if device == "cpu" else cores)


def decode_entry(decoder: SafeDecoder, entry: Entry) -> Sample:
    """The decoding stage of every engine: one listed video to its clips, or its error."""
    try:
        return Sample(entry.path, decoder(entry.source).clips(), entry.label)
    except VideoError as error:
        kind = getattr(error, "kind", "damaged")
        return Sample(entry.path, None, entry.label, str(error), kind)


def decode_ahead(
    entries: Iterable[Entry],
    spec: ViewSpec,
    *,
    workers: int | None = None,
    timeout: float = 60.0,
    ahead: int | None = None,
    niceness: int = 0,
) -> Iterator[Sample]:
    """Decode videos in other processes while the caller works; yields them in order.

    Args:
        entries: The videos.
        spec: Their views.
        workers: Decoding processes.
        timeout: Seconds without a sign of life after which a video is given up.
        ahead: Videos that may be under way or waiting at a time; memory is bounded by it.
        niceness: See `SafeDecoder`.
    """
    workers = workers or default_workers()
    ahead = ahead or workers + 2
    decoders: queue.SimpleQueue[SafeDecoder] = queue.SimpleQueue()
    everyone = [SafeDecoder(spec, timeout, niceness) for _ in range(workers)]
    for decoder in everyone:
        decoders.put(decoder)

    def decode(entry: Entry) -> Sample:
        decoder = decoders.get()
        try:
            return decode_entry(decoder, entry)
        finally:
            decoders.put(decoder)

    under_way: deque[Future[Sample]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        for entry in entries:
            under_way.append(pool.submit(decode, entry))
            if len(under_way) >= ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for decoder in everyone:
            decoder.close()
        pool.shutdown(wait=True)
        for decoder in everyone:  # one that a thread started meanwhile
            decoder.close()
