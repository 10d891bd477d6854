"""Windows of videos through a model: `sta.inference.run` for videos of any length.

Each window comes out by itself, as soon as its batch is done, so memory does not grow with a video.
Batches mix the windows of several videos.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sta.inference.run import EngineSettings, Run
from sta.inference.scoring import NOT_NUMBERS, Scored, run_clips
from sta.inference.uploads import upload_ahead
from sta.video.errors import VideoError
from sta.video.lists import Entry
from sta.video.prefetch import decoding_threads, default_workers
from sta.video.safe import SafeWindows
from sta.video.windows import Window, WindowSpec, seconds_of

#: Windows of one video that are decoded ahead of the model.
AHEAD = 4

#: Clips ``(B, T, H, W, 3)`` to results ``(methods, B, ...)`` and seconds ``(methods,)``.
RunClips = Callable[[Any], tuple[NDArray[Any], NDArray[np.float64]]]


@dataclass
class WindowRun(EngineSettings):
    """How windows of videos are decoded and put through a model."""

    model: Any  # what gives results of clips; a `Classifier`, say
    spec: WindowSpec  # the windows of each video
    device: str = "cpu"  # where the model runs

    def score(self, entries: Iterable[Entry], *, alone: bool = False) -> Iterator[Scored]:
        """The windows of every video, video by video; the last of a video says so.

        A video that cannot be read, or not to its end, ends with its error, after the windows that
        could be.
        """
        if self.engine == "ray":
            from sta.inference.ray_engine import score_windows_on_ray

            return score_windows_on_ray(entries, self)
        windows = decode_windows(
            entries,
            self.spec,
            workers=1 if alone else self.workers or default_workers(self.device),
            timeout=self.timeout,
            # As in `sta.inference.run`.
            niceness=10 if self.device == "cpu" else 0,
        )
        return score_windows(windows, self.model, self.batch_size)


def over_windows(run: Run, every: float | str | None, length: float | str | None) -> WindowRun:
    """The same run, over windows instead of views."""
    spec = WindowSpec(
        run.spec,
        None if every is None else seconds_of(every, "every"),
        None if length is None else seconds_of(length, "windows"),
    )
    options = {field.name: getattr(run, field.name) for field in fields(EngineSettings)}
    return WindowRun(run.classifier, spec, run.classifier.device, **options)


@dataclass
class _Decoded:
    """A window of a video, or its end: then without a window, and perhaps with an error."""

    entry: Entry
    window: Window | None = None
    error: VideoError | None = None


def decode_windows(
    entries: Iterable[Entry],
    spec: WindowSpec,
    *,
    workers: int = 1,
    timeout: float = 60.0,
    niceness: int = 0,
) -> Iterator[_Decoded]:
    """`prefetch_clips` for windows: they come one by one, and then the end of their video."""
    stopped = threading.Event()

    def decode(decoder: SafeWindows, entry: Entry, out: queue.Queue[_Decoded | Exception]) -> None:
        try:
            with closing(decoder(entry.source)) as windows:  # type: ignore[type-var]
                for window in windows:
                    if not _put(out, _Decoded(entry, window), stopped):
                        return
            _put(out, _Decoded(entry), stopped)
        except VideoError as error:
            _put(out, _Decoded(entry, error=error), stopped)
        except Exception as error:  # a bug of ours: whoever waits for windows must hear of it
            _put(out, error, stopped)

    under_way: deque[queue.Queue[_Decoded | Exception]] = deque()
    left = iter(entries)
    decoders = [SafeWindows(spec, timeout, niceness) for _ in range(workers)]
    with ExitStack() as within:
        submit = within.enter_context(decoding_threads(decoders))
        within.callback(stopped.set)  # first of all when this ends
        while True:
            while len(under_way) <= workers and (entry := next(left, None)) is not None:
                under_way.append(queue.Queue(AHEAD))
                submit(decode, entry, under_way[-1])
            if not under_way:
                return
            out = under_way.popleft()
            while True:
                step = out.get()
                if isinstance(step, Exception):
                    raise step
                yield step
                if step.window is None:
                    break


def _put(
    out: queue.Queue[_Decoded | Exception], step: _Decoded | Exception, stopped: threading.Event
) -> bool:
    """Wait for room; False once nobody takes anything any more."""
    while not stopped.is_set():
        try:
            out.put(step, timeout=0.2)
        except queue.Full:
            continue
        return True
    return False


def score_windows(steps: Iterable[_Decoded], model: RunClips, batch_size: int) -> Iterator[Scored]:
    """Put windows through a model in full batches, in order.

    The last result of a video is held back until the video has ended, to be marked as the last.
    """
    held: Scored | None = None
    for some, clips in upload_ahead(_batches(steps, batch_size), model):
        for step, result in _run(some, clips, model):
            before, held = held, result
            ended = step.window is None and step.error is None
            if before is not None:
                yield replace(before, last=True) if ended else before
            if (error := step.error) is not None:
                path, label = step.entry.path, step.entry.label
                yield Scored(path, None, label, str(error), error_kind=error.kind)


def _batches(
    steps: Iterable[_Decoded], size: int
) -> Iterator[tuple[list[_Decoded], NDArray[np.uint8] | None]]:
    """Steps with the clips of the windows among them; the last may have none."""
    some: list[_Decoded] = []
    clips: list[NDArray[np.uint8]] = []
    for step in steps:
        some.append(step)
        if step.window is not None:
            clips.append(step.window.clip)
        if len(clips) == size:
            yield some, np.stack(clips)
            some, clips = [], []
    yield some, np.stack(clips) if clips else None


def _run(
    steps: list[_Decoded], clips: NDArray[np.uint8] | Tensor | None, model: RunClips
) -> Iterator[tuple[_Decoded, Scored | None]]:
    """Results of the windows among some steps."""
    if clips is not None:
        results, seconds = run_clips(model, clips)
        seconds = seconds / len(clips)
    number = 0
    for step in steps:
        if step.window is None:
            yield step, None
            continue
        own = results[:, number]  # (methods, ...)
        number += 1
        error = None if np.isfinite(own).all() else NOT_NUMBERS
        yield (
            step,
            Scored(
                step.entry.path,
                own if error is None else None,
                step.entry.label,
                error,
                1,
                seconds,
                None if error is None else "scores",
                step.window.start,
                step.window.end,
                last=False,
            ),
        )
