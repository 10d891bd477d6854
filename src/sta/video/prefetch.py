"""Videos decoded in other processes, ahead of whoever takes them, a bounded number at a time."""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sta.video.errors import VideoError
from sta.video.lists import Entry
from sta.video.safe import SafeDecoder, SafeWindows
from sta.video.views import ViewSpec

T = TypeVar("T")


@dataclass
class Sample:
    """One video, ready for the model; or why it is not."""

    path: str  # its name in results
    # ``(V, T, H, W, 3)`` uint8 RGB, its views; None if it could not be read.
    clips: NDArray[np.uint8] | None
    label: int | None = None  # its class number, where known
    error: str | None = None  # why there are no clips
    error_kind: str | None = None  # one of `sta.video.errors.ErrorKind`, with an error


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


def prefetch_clips(
    entries: Iterable[Entry],
    spec: ViewSpec,
    *,
    workers: int | None = None,
    timeout: float = 60.0,
    ahead: int | None = None,
    niceness: int = 0,
) -> Iterator[Sample]:
    """Decode videos in other processes while the caller works; yields them in order.

    `ahead` videos may be under way or waiting at a time; memory is bounded by it.
    """
    workers = workers or default_workers()
    decoders = [SafeDecoder(spec, timeout, niceness) for _ in range(workers)]
    return prefetch_map(entries, decoders, decode_entry, ahead or workers + 2)


def prefetch_map(
    entries: Iterable[Entry],
    decoders: Sequence[SafeDecoder],
    work: Callable[[SafeDecoder, Entry], T],
    ahead: int,
) -> Iterator[T]:
    """What `work` makes of each video, in order; see `prefetch_clips`. The decoders end with it."""
    under_way: deque[Future[T]] = deque()
    with decoding_threads(decoders) as submit:
        for entry in entries:
            under_way.append(submit(work, entry))
            if len(under_way) >= ahead:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


@contextmanager
def decoding_threads(
    decoders: Sequence[SafeDecoder | SafeWindows],
) -> Iterator[Callable[..., Future[Any]]]:
    """What has `work(decoder, *args)` done in a thread, by the next decoder that is free.

    The decoders end with it.
    """
    free: queue.SimpleQueue[SafeDecoder | SafeWindows] = queue.SimpleQueue()
    for decoder in decoders:
        free.put(decoder)

    def run(work: Callable[..., Any], *args: Any) -> Any:
        decoder = free.get()
        try:
            return work(decoder, *args)
        finally:
            free.put(decoder)

    pool = ThreadPoolExecutor(len(decoders), thread_name_prefix="decode")
    try:
        yield lambda work, *args: pool.submit(run, work, *args)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for decoder in decoders:
            decoder.close()
        pool.shutdown(wait=True)
        for decoder in decoders:  # one that a thread started meanwhile
            decoder.close()
