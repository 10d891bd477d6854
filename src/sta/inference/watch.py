"""Watching live video: the newest window goes through the model, those in between are counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from sta.inference.rows import Row
from sta.inference.stream import StreamModel
from sta.video.errors import VideoError
from sta.video.safe import SafeWindows
from sta.video.sources import LiveSource
from sta.video.windows import Window

#: Seconds until a lost source is opened again: the first time, and the most.
BACK_OFF = (0.5, 30.0)
#: Latencies that are kept, the newest: a run of days must not grow.
KEPT_LATENCIES = 10_000


@dataclass
class WatchSummary:
    """What a watch has done so far."""

    windows: int = 0  # that the source gave
    results: int = 0  # rows that were made
    failed: int = 0  # of these, rows with an error: the model's results were not numbers
    skipped: int = 0  # windows that were replaced by newer ones before the model was free
    reopened: int = 0  # how often the source was opened again
    errors: list[str] = field(default_factory=list)  # why, the newest last, a few
    # Seconds from the arrival of a window's last frame to its row, the newest ones.
    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0  # how long it took

    def latency(self, share: float) -> float | None:
        """A quantile of the latencies, e.g. 0.5 or 0.95; None before the first row."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    def __str__(self) -> str:
        text = f"{self.results} results of {self.windows} windows in {self.seconds:.0f} s, "
        text += f"{self.skipped} skipped, reopened {self.reopened} times"
        if self.failed:
            text += f", {self.failed} failed"
        if self.latencies:
            text += f"; latency p50 {self.latency(0.5):.3f} s, p95 {self.latency(0.95):.3f} s"
        return text


class Watch:
    """Rows of a live source.

    A thread takes windows from the decoding process as they come and keeps the newest; the model
    takes that one when it is free. So nothing queues up, however slow the model is. After `timeout`
    seconds without a sign of life the source counts as lost; `report` is called with a line when it
    is lost or back. Without a `duration` it goes on until the source ends, or for ever.
    """

    def __init__(
        self,
        source: LiveSource,
        model: StreamModel,
        *,
        timeout: float = 20.0,
        duration: float | None = None,
        report: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.source, self.model, self.report = source, model, report
        self.duration = duration
        self.summary = WatchSummary()
        self._decoder = SafeWindows(model.spec, timeout)
        self._changed = threading.Condition()
        self._newest: tuple[Window, float] | None = None
        self._ended = False
        self._stopped = threading.Event()
        self._failure: BaseException | None = None

    def rows(self) -> Generator[Row, None, None]:
        """A row per window: as `StreamModel.row` has it, and `latency` in seconds.

        A `VideoError` where the source could not be opened at all, or a stream that is not opened
        again was lost.
        """
        self.model.warm_up()
        began = time.monotonic()
        reader = threading.Thread(target=self._read, name="watch", daemon=True)
        reader.start()
        try:
            while (taken := self._next(began)) is not None:
                window, arrived = taken
                row = self.model.row(window.clip, window.start, window.end)
                latency = time.monotonic() - arrived
                self.summary.results += 1
                self.summary.failed += row["error"] is not None
                self.summary.latencies.append(latency)
                del self.summary.latencies[:-KEPT_LATENCIES]
                yield {**row, "latency": round(latency, 6)}
        finally:
            self._stopped.set()
            self._decoder.close()
            reader.join(timeout=5)
            if self._newest is not None:  # nobody will take it
                self._newest = None
                self.summary.skipped += 1
            self.summary.seconds = time.monotonic() - began
        if self._failure is not None:
            raise self._failure

    def _next(self, began: float) -> tuple[Window, float] | None:
        """The newest window; None at the end."""
        with self._changed:
            while self._newest is None and not self._ended:
                left = None if self.duration is None else began + self.duration - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(0.5 if left is None else min(left, 0.5))
            if self.duration is not None and time.monotonic() - began >= self.duration:
                return None
            taken, self._newest = self._newest, None
            return taken

    # In the thread

    def _read(self) -> None:
        try:
            self._read_until_end()
        except BaseException as error:  # whoever asks for rows is told
            self._failure = error
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _read_until_end(self) -> None:
        wait = BACK_OFF[0]
        while not self._stopped.is_set():
            before = self.summary.windows
            try:
                for window in self._decoder(self.source):
                    self._put(window)
                    if self._stopped.is_set():
                        return
                why = "it ended"
            except VideoError as error:
                never = not self.summary.windows and not self.source.endless
                if error.kind == "refused" or never or self._stopped.is_set():
                    if self._stopped.is_set():
                        return
                    raise
                why = str(error)
            if not self.source.endless:
                if why != "it ended":
                    raise VideoError(f"lost: {why}", "unreadable")
                return
            wait = BACK_OFF[0] if self.summary.windows > before else min(2 * wait, BACK_OFF[1])
            self.summary.errors = [*self.summary.errors[-9:], why]
            self.report(f"lost: {why}; opening it again in {wait:g} s")
            if self._stopped.wait(wait):
                return
            self.summary.reopened += 1

    def _put(self, window: Window) -> None:
        with self._changed:
            self.summary.windows += 1
            self.summary.skipped += self._newest is not None
            self._newest = (window, time.monotonic())
            self._changed.notify()
