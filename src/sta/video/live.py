"""Live video: a camera, an RTSP address, a pipe or a file that is still being written.

For `sta watch`, and nothing else, FFmpeg opens a device or an address: the one that its user named.
Bytes of pipes and files go the way of every other video (see `sta.video.opening`), so
playlists are refused here, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import av
from av.container import InputContainer
from av.video.frame import VideoFrame

from sta.video.containers import not_a_video
from sta.video.decode import Canvas, video_stream
from sta.video.errors import VideoError
from sta.video.opening import ByteSource, errors_named, open_container, open_live
from sta.video.sources import RATES, LiveSource
from sta.video.windows import DEFAULT_RATE, Cutter, Event, WindowSpec

#: Seconds between two looks at a file that has not grown.
_LOOK_SECONDS = 0.05


def live_events(
    source: LiveSource, spec: WindowSpec, heartbeat: Callable[[], object] = lambda: None
) -> Iterator[Event]:
    """Frames and windows of a live source, until it ends or is lost.

    Files and pipes are played in real time, as if they were cameras. `heartbeat` is called now and
    then while there is nothing to wait for in vain.
    """
    with _open(source, heartbeat) as (container, began):
        stream = video_stream(container)
        rate = source.rate or float(stream.average_rate or stream.guessed_rate or DEFAULT_RATE)
        cutter = Cutter(spec, rate if RATES[0] <= rate <= RATES[1] else DEFAULT_RATE)
        canvas = Canvas(spec.view, 1)
        clock = _Clock(began if source.kind in ("pipe", "fifo", "file") else None, heartbeat)
        for number, frame in enumerate(_frames(container, heartbeat)):
            at = frame.time if frame.time is not None else number / cutter.rate
            clock.wait(at)
            yield from cutter.push(at, lambda frame=frame: canvas.prepare(frame))  # type: ignore[misc]


def _frames(container: InputContainer, heartbeat: Callable[[], object]) -> Iterator[VideoFrame]:
    """All frames that can be decoded; what cannot is passed over."""
    for packet in container.demux(video_stream(container)):
        heartbeat()
        try:
            frames = packet.decode()
        except av.FFmpegError:
            continue  # garbage in the stream
        yield from frames


class _Clock:
    """Holds frames back until their time has come, counted from the first.

    `began` is when the first bytes were there: FFmpeg looks at a second of a stream before it gives
    the first frame; counted from that one, all others would stay so far behind. None holds nothing
    back.
    """

    def __init__(self, began: float | None, heartbeat: Callable[[], object]) -> None:
        self.began, self.heartbeat = began, heartbeat
        self.offset: float | None = None  # from times of frames to the machine's

    def wait(self, at: float) -> None:
        if self.began is None:
            return
        now = time.monotonic()
        if self.offset is None:
            self.offset = self.began - at
        # A time far from the last one is another recording, not a pause.
        if abs(at + self.offset - now) > 5.0:
            self.offset = now - at
        while (left := at + self.offset - time.monotonic()) > 0:
            self.heartbeat()
            time.sleep(min(left, 0.1))


@contextmanager
def _open(
    source: LiveSource, heartbeat: Callable[[], object]
) -> Iterator[tuple[InputContainer, float]]:
    """The source, and when its first bytes were there."""
    with errors_named(source.address):
        if source.kind == "camera" or source.kind == "rtsp":
            with open_live(source.address, source.kind) as container:
                yield container, time.monotonic()
            return
        with _bytes(source, heartbeat) as file:
            read = ByteSource(file, Path(source.address).suffix)
            began = time.monotonic()
            if not read.head:
                raise VideoError("the stream ended before it began", "unreadable")
            refusal = not_a_video(read.head, Path(source.address).suffix)
            if refusal is not None:
                raise VideoError(refusal, "refused")
            try:
                container = open_container(read)
            except av.FFmpegError:
                if not _is_mp4(read.head):
                    raise
                raise VideoError(
                    "an MP4 whose index is not there yet, or comes last; watch MPEG-TS, Matroska "
                    "or fragmented MP4",
                    "refused",
                ) from None
            try:
                yield container, began
            finally:
                container.close()


@contextmanager
def _bytes(source: LiveSource, heartbeat: Callable[[], object]) -> Iterator[IO[bytes]]:
    if source.kind == "pipe":
        with os.fdopen(os.dup(0), "rb", buffering=0) as piped:
            yield piped
    elif source.kind == "fifo":
        with Path(source.address).open("rb", buffering=0) as fifo:
            yield fifo
    else:
        with Path(source.address).open("rb", buffering=0) as file:
            yield cast("IO[bytes]", _GrowingFile(file, source.idle, heartbeat))


def _is_mp4(head: bytes) -> bool:
    return head[4:8] == b"ftyp"


class _GrowingFile:
    """A file that is read from its start; its end is where it has not grown for a while.

    MP4 alone is read out of order: its index may be at its end. FFmpeg would look at the end of
    other files, too, and wait there for them to grow.
    """

    def __init__(self, file: IO[bytes], idle: float, heartbeat: Callable[[], object]) -> None:
        self.file, self.idle, self.heartbeat = file, idle, heartbeat
        self.in_order = not _is_mp4(file.read(8))
        file.seek(0)

    def read(self, count: int) -> bytes:
        until = time.monotonic() + self.idle
        while not (data := self.file.read(count)) and time.monotonic() < until:
            self.heartbeat()
            time.sleep(_LOOK_SECONDS)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        if self.in_order:
            raise OSError("a file that grows is read in order")
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()
