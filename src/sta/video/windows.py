"""Windows over a video of any length: clips of the model's frames, at a fixed interval.

One pass decodes the video. A frame is converted and resized once, however many windows share it,
and let go of when the last of them is made: memory depends on the window, not on the video.

A window is `clip_indices` of the frames that it spans, so it equals the clip of a file that holds
those frames alone. Windows that the video cannot fill are left out; a video that is shorter than
one window gives one, filled up as every other short clip is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sta.video.errors import ErrorKind, VideoError
from sta.video.views import ViewSpec, clip_indices

if TYPE_CHECKING:
    from sta.video.decode import Heartbeat, OpenStream

#: Frames per second of a video that does not say.
DEFAULT_RATE = 25.0
#: The most frames that a window may span; those it may need are held in memory.
MAX_SPAN = 2**14
#: What a decoding process says after the last window.
END = "end"

Picture = NDArray[np.uint8]  # (size, size, 3)


class WindowError(VideoError, ValueError):
    """Windows that are too long for a video's frame rate."""

    # The kind is an argument because that is how an error comes back from a decoder's process.
    def __init__(self, message: str, kind: ErrorKind = "refused") -> None:
        super().__init__(message, kind)


def seconds_of(value: float | str, name: str) -> float:
    """A length of time above 0: a number, or text such as "2s", "1.5" or "500ms"."""
    text = str(value).strip().lower()
    number, factor = (text[:-2], 1e-3) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        seconds = float(number) * factor
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} {value}: give seconds above 0, e.g. 2s or 0.5")
    return seconds


@dataclass(frozen=True)
class WindowSpec:
    """Which windows are cut out of a video."""

    # Frames, stride and size of a window; its number of clips and crops is not looked at.
    view: ViewSpec
    # Seconds from the start of a window to that of the next; None is the window's length.
    every: float | None = None
    # Seconds that a window spans, its frames evenly spread; None takes the model's own clip,
    # `view.frames` frames that are `view.stride` apart.
    length: float | None = None

    def __post_init__(self) -> None:
        sampling = self.view.sampling if self.length is None else "uniform"
        view = replace(self.view, temporal=1, spatial=1, place=None, sampling=sampling)
        object.__setattr__(self, "view", view)
        for name in ("every", "length"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value}: give seconds above 0")

    def span(self, rate: float) -> int:
        """Frames from the start of a window to its end, at a frame rate."""
        if self.length is None:
            return self.view.frames * self.view.stride
        frames = max(1, round(self.length * rate))
        if frames > MAX_SPAN:
            raise WindowError(
                f"windows of {self.length:g} s are {frames} frames at {rate:g} per second: "
                f"{MAX_SPAN} at most; use shorter windows"
            )
        return frames

    def pattern(self, rate: float) -> NDArray[np.int64]:
        """The frames of a window, counted from its start, ``(frames,)``."""
        if self.length is None:
            return np.arange(self.view.frames, dtype=np.int64) * self.view.stride
        return clip_indices(self.span(rate), self.view)[0]

    def start(self, number: int, rate: float) -> int:
        if self.every is None:
            return number * self.span(rate)
        return round(number * max(1.0, self.every * rate))


class Cut(NamedTuple):
    """Where a window is."""

    start: float  # seconds from the start of the video
    end: float  # seconds from the start of the video
    frames: tuple[int, ...]  # numbers of its frames
    keep: int  # no later window needs frames before this one


@dataclass
class Window:
    """A window of a video."""

    start: float  # seconds from the start of the video
    end: float  # seconds from the start of the video
    clip: NDArray[np.uint8]  # ``(T, size, size, 3)`` uint8 RGB


#: What a video is made into: a prepared frame with its number, or a window of such frames.
Event = tuple[int, Picture] | Cut


class Cutter:
    """Says of frames that come one by one which are needed, and when a window is whole."""

    def __init__(self, spec: WindowSpec, rate: float) -> None:
        self.spec, self.rate = spec, rate
        self.pattern = tuple(spec.pattern(rate).tolist())
        self.length = spec.span(rate) / rate
        self._offsets = frozenset(self.pattern)
        self._open: deque[tuple[int, float]] = deque()  # first frame and its time
        self._next = 0  # window
        self._seen = 0  # frames
        self._first = 0.0  # time of the video's first frame
        self._last = 0.0  # of the last one, counted from the first
        self.made = 0

    def push(self, time: float | None, picture: Callable[[], Picture]) -> Iterator[Event]:
        """The next frame: when it is shown, in seconds (None counts frames), and what prepares it,
        which is called where it is needed, at once."""
        number = self._seen
        self._seen += 1
        if time is None:
            time = self._first + number / self.rate
        if number == 0:
            self._first = time
        self._last = time - self._first
        if self.spec.start(self._next, self.rate) <= number:
            self._open.append((number, self._last))
            self._next += 1
        # Until there is a window, the video may end before it: then any frame may be needed.
        if self.made == 0 or any(number - start in self._offsets for start, _ in self._open):
            yield number, picture()
        while self._open and number - self._open[0][0] >= self.pattern[-1]:
            start, at = self._open.popleft()
            following = self._open[0][0] if self._open else self.spec.start(self._next, self.rate)
            frames = tuple(start + offset for offset in self.pattern)
            self.made += 1
            yield Cut(at, self._end(at), frames, following)

    def _end(self, start: float) -> float:
        """When a window ends whose last frame this is; frames need not be equally far apart."""
        end = self._last + self.length - self.pattern[-1] / self.rate
        return end if end > start else start + self.length  # the clock was set back meanwhile

    def finish(self) -> Iterator[Cut]:
        """The end of the video: one that was too short for a window gives one after all."""
        if self._seen and not self.made:
            frames = clip_indices(self._seen, self.spec.view)[0]
            self.made += 1
            end = max(self._last, 0.0) + 1 / self.rate
            yield Cut(0.0, end, tuple(frames.tolist()), self._seen)


def assemble(events: Iterable[Event]) -> Iterator[Window]:
    """Windows of prepared frames; a frame is held as long as a window may need it."""
    held: dict[int, Picture] = {}
    for event in events:
        if not isinstance(event, Cut):
            held[event[0]] = event[1]
            continue
        yield Window(event.start, event.end, np.stack([held[number] for number in event.frames]))
        for number in [number for number in held if number < event.keep]:
            del held[number]


def window_events(
    path: str, spec: WindowSpec, heartbeat: Callable[[], object] = lambda: None
) -> Iterator[Event]:
    """Decode a video (but no array of a cache) once, from its first frame to its last.

    A `VideoError` comes after what was decoded before it.
    """
    if path.endswith(".npy"):
        raise VideoError("frames of a cache have no times; give the video itself", "refused")
    if spec.view.decoder != "pyav" and (yield from _events_from_torchcodec(path, spec, heartbeat)):
        return
    from sta.video.decode import Canvas, decode_frames, open_for_decoding  # FFmpeg, for these alone

    with open_for_decoding(path) as video:
        cutter = Cutter(spec, _rate(video))
        canvas = Canvas(spec.view, 1)
        for frame in decode_frames(video, heartbeat, check_end=True):
            yield from cutter.push(frame.time, lambda frame=frame: canvas.prepare(frame))  # type: ignore[misc]
        if not cutter.made:
            yield from cutter.finish()
        if not cutter.made:
            raise VideoError("there are no frames in it that can be decoded")


def _events_from_torchcodec(
    path: str, spec: WindowSpec, heartbeat: Heartbeat
) -> Generator[Event, None, bool]:
    """The same; False, before anything was given, where PyAV has to do it.

    That the file was cut off is known, and raised, before the first window.
    """
    from sta.video.decode import Canvas, open_for_decoding, scan
    from sta.video.gpu_decode import Disagreement, pictures

    with open_for_decoding(path) as video:
        index = scan(video, heartbeat) if video.indexed and video.seekable else None
        if index is None:
            return False
        cutter, canvas, given = Cutter(spec, _rate(video)), Canvas(spec.view, 1), 0
        base = video.stream.time_base
        assert base is not None  # of a stream that is open
        try:
            for picture in pictures(video, index, range(len(index.times)), heartbeat):
                time = float(int(index.times[given]) * base)
                given += 1
                yield from cutter.push(time, lambda picture=picture: canvas.prepare(picture))  # type: ignore[misc]
        except Disagreement:
            if given:
                again = "decoder pyav may read it"
                raise VideoError(f"torchcodec fails after {given} frames; {again}") from None
            return False
        if not cutter.made:
            yield from cutter.finish()
    return True


def _rate(video: OpenStream) -> float:
    stream = video.stream
    return float(stream.average_rate or stream.guessed_rate or DEFAULT_RATE)


def read_windows(path: str, spec: WindowSpec) -> Iterator[Window]:
    """The windows of one video, decoded in this process."""
    return assemble(window_events(path, spec))
