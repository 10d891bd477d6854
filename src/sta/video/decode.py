"""Decoding with PyAV: only the frames that the views need are converted, each once.

There are two ways to a frame by its number:

* Where the container lists every frame (MP4, Matroska) with codecs that give one frame per packet,
  the packets' times are the index: they are read without decoding, and the decoder starts at the
  key frame before each needed frame. What comes out is checked against the index.
* Everywhere else, and where that check fails, the frames are counted by decoding the whole video.
  Header fields such as "number of frames" are never believed.

Memory is bounded by the frames of the views and one decoded picture (plus `KEEP_BYTES` on the
second way), whatever the video's length.

With torchcodec (`sta.video.gpu_decode`) the index is read here, and the frames are decoded there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from av.container import InputContainer
from av.stream import Discard, Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from sta.video.containers import declared_size
from sta.video.errors import VideoError as VideoError
from sta.video.opening import ByteSource, open_video
from sta.video.resize import Resizer
from sta.video.views import Views, ViewSpec, clip_indices, crop_window, resized

#: Decoded pictures kept while counting, so that a short video is decoded once and not twice.
KEEP_BYTES = 96 * 2**20
#: More pixels per frame than this (8K has half of it) are taken for a damaged header.
MAX_PIXELS = 2**26

_INDEXED_FORMATS = {"mov", "matroska"}
_ONE_FRAME_PER_PACKET = {"h264", "hevc", "vp9", "av1", "libdav1d", "mjpeg", "ffv1", "prores"}

Heartbeat = Callable[[], object]


def read_views(path: str, spec: ViewSpec, heartbeat: Heartbeat = lambda: None) -> Views:
    """Decode the views of one video.

    Args:
        path: A local path or any URL that fsspec opens (``s3://``, ``gs://``, ``memory://`` ...),
            or a ``.npy`` array of frames of a cache (see `sta.video.cache`).
        spec: The frames and crops that are wanted.
        heartbeat: Called after every packet and frame, for whoever watches the time.

    Raises:
        VideoError: If the file cannot be opened, is no video, ends early or does not decode; its
            `kind` says which.
    """
    if path.endswith(".npy"):
        from sta.video.cache import read_frames

        return read_frames(path, spec)
    with open_for_decoding(path) as video:
        if not (video.indexed and video.seekable):
            return _count_and_take(video, spec, heartbeat)
        index = scan(video, heartbeat)
        take = _seek_and_take if spec.decoder == "pyav" else _take_from_torchcodec
        views = None if index is None else take(video, index, spec, heartbeat)
    if views is None and spec.decoder != "pyav":
        return read_views(path, replace(spec, decoder="pyav"), heartbeat)
    if views is None:
        with open_for_decoding(path) as video:  # afresh: nothing of the first try is trusted
            views = _count_and_take(video, spec, heartbeat)
    return views


def frame_rate(path: str) -> float | None:
    """Frames per second of a video, as its file states them; None where it does not."""
    with open_for_decoding(path) as video:
        rate = video.stream.average_rate
        return None if not rate else float(rate)


# Opening


@dataclass
class OpenStream:
    """The video stream of an open file."""

    path: str
    container: InputContainer
    stream: VideoStream
    size: int  # in bytes; 0 if unknown
    declared: int | None  # size in bytes that the container states
    source: ByteSource  # what FFmpeg reads
    seekable: bool
    packets: int = 0  # read so far

    @property
    def indexed(self) -> bool:
        formats = set(self.container.format.name.split(","))
        return bool(formats & _INDEXED_FORMATS) and (
            self.stream.codec_context.name in _ONE_FRAME_PER_PACKET
        )

    def check_end(self, last_is_corrupt: bool) -> None:
        """Raise if the file ended before its time."""
        cut = last_is_corrupt
        if self.container.format.name == "avi":
            # A wrong size alone is common; together with missing frames it is a cut.
            short = self.declared is not None and self.size < self.declared
            cut |= short and self.packets < self.stream.frames
        elif self.declared is not None:
            cut |= 0 < self.size < self.declared
        else:
            cut |= self.indexed and self.packets < len(self.stream.index_entries)
        if cut:
            raise VideoError(f"truncated: the file ends after {self.packets} frames")


@contextmanager
def open_for_decoding(path: str) -> Iterator[OpenStream]:
    """A video whose packets can be read; see `open_video` for what is refused."""
    with open_video(path) as opened:
        container = opened.container
        stream = video_stream(container)
        declared = declared_size(opened.head)
        source, seekable = opened.source, opened.seekable
        yield OpenStream(path, container, stream, opened.size, declared, source, seekable)


def video_stream(container: InputContainer) -> VideoStream:
    """The stream to decode: the first that moves. All others are left unread."""
    moving = [
        stream
        for stream in container.streams.video
        if not stream.disposition & Disposition.attached_pic  # an album's cover
    ]
    if not moving:
        if container.streams.audio:
            raise VideoError("there is no video stream in it (audio only)", "refused")
        raise VideoError("not a video, or damaged: there is no video stream in it")
    chosen = moving[0]
    if chosen.codec_context is None:
        raise VideoError("damaged, or of an unknown codec: there is no decoder for it")
    for stream in container.streams:
        if stream.index != chosen.index:
            stream.discard = Discard.all
    if chosen.width * chosen.height > MAX_PIXELS:
        size = f"{chosen.width} x {chosen.height}"
        raise VideoError(f"damaged: frames of {size} pixels are more than any camera takes")
    context = chosen.codec_context
    context.thread_count = 1  # videos are read side by side; threads inside one only cost
    context.options = {"max_pixels": str(MAX_PIXELS)}
    return chosen


# The first way: an index of times, then seeking


def scan(video: OpenStream, heartbeat: Heartbeat) -> Index | None:
    """Presentation times of all frames without decoding any; None if they do not identify them."""
    times: list[int] = []
    keys: list[int] = []
    corrupt = False
    for packet in video.container.demux(video.stream):
        heartbeat()
        if not packet.size:
            continue
        video.packets += 1
        corrupt = packet.is_corrupt
        if packet.is_discard:  # before the start of an edit list: decoded, never shown
            continue
        if packet.pts is None:
            return None
        times.append(packet.pts)
        if packet.is_keyframe:
            keys.append(packet.pts)
    video.check_end(corrupt)
    ordered = np.unique(np.array(times, dtype=np.int64))
    if not len(ordered) or len(ordered) != len(times):
        return None
    return Index(ordered, np.searchsorted(ordered, np.unique(np.array(keys, dtype=np.int64))))


@dataclass
class Index:
    """When each frame is shown, in the stream's time base, and where the key frames are."""

    times: NDArray[np.int64]  # of frame i
    keys: NDArray[np.intp]  # frame numbers of the key frames

    def number(self, time: int | None) -> int | None:
        """The frame that is shown at a time; None if there is none."""
        at = int(np.searchsorted(self.times, time)) if time is not None else len(self.times)
        return at if at < len(self.times) and self.times[at] == time else None

    def key_before(self, number: int) -> int:
        """The last key frame at or before a frame; 0 if there is none."""
        at = int(np.searchsorted(self.keys, number, side="right"))
        return int(self.keys[at - 1]) if at else 0


def _seek_and_take(
    video: OpenStream, index: Index, spec: ViewSpec, heartbeat: Heartbeat
) -> Views | None:
    """The views by way of the index; None if the decoder's frames contradict it."""
    clips = clip_indices(len(index.times), spec)  # (T, F)
    needed, positions = np.unique(clips, return_inverse=True)
    canvas = Canvas(spec, len(needed))
    wanted = set(index.times[needed].tolist())
    frames: Iterator[VideoFrame] = iter(())
    at = -1  # number of the frame that the running decoder gave last; -1 without one
    for position, number in enumerate(needed.tolist()):
        key = index.key_before(number)
        if at < 0 or key > at + 1:
            video.container.seek(int(index.times[key]), stream=video.stream)
            frames, at = decode_frames(video, heartbeat, wanted), -1
        for frame in frames:
            found = index.number(frame.pts)
            if found is None or not at < found <= number:
                return None
            at = found
            if at == number:
                canvas.put(position, frame)
                break
        if at != number:
            return None
    return canvas.views(positions.reshape(clips.shape))


def _take_from_torchcodec(
    video: OpenStream, index: Index, spec: ViewSpec, heartbeat: Heartbeat
) -> Views | None:
    """The views by way of the index and torchcodec; None where PyAV has to do it."""
    from sta.video.gpu_decode import Disagreement, pictures

    clips = clip_indices(len(index.times), spec)
    needed, positions = np.unique(clips, return_inverse=True)
    canvas = Canvas(spec, len(needed))
    try:
        for position, picture in enumerate(pictures(video, index, needed.tolist(), heartbeat)):
            canvas.put(position, picture)
    except Disagreement:
        return None
    return canvas.views(positions.reshape(clips.shape))


# The second way: decode all, count, take


def _count_and_take(video: OpenStream, spec: ViewSpec, heartbeat: Heartbeat) -> Views:
    """The views of a video whose number of frames only decoding tells."""
    kept: list[VideoFrame] | None = []
    room = KEEP_BYTES
    length = 0
    for frame in decode_frames(video, heartbeat, check_end=True):
        length += 1
        if kept is not None:
            kept.append(frame)
            room -= sum(plane.buffer_size for plane in frame.planes)
            if room < 0:
                kept = None
    if length == 0:
        raise VideoError("there are no frames in it that can be decoded")
    clips = clip_indices(length, spec)
    needed, positions = np.unique(clips, return_inverse=True)
    canvas = Canvas(spec, len(needed))
    if kept is not None:
        for position, number in enumerate(needed.tolist()):
            canvas.put(position, kept[number])
    else:
        with open_for_decoding(video.path) as again:
            _take_in_order(decode_frames(again, heartbeat), needed, canvas)
    return canvas.views(positions.reshape(clips.shape))


def _take_in_order(frames: Iterator[VideoFrame], needed: NDArray[np.int64], canvas: Canvas) -> None:
    places = {number: position for position, number in enumerate(needed.tolist())}
    for number, frame in enumerate(frames):
        if number in places:
            canvas.put(places.pop(number), frame)
            if not places:
                return
    raise VideoError("the file changed while it was read", "unreadable")


def decode_frames(
    video: OpenStream,
    heartbeat: Heartbeat,
    wanted: Container[int] | None = None,
    *,
    check_end: bool = False,
) -> Iterator[VideoFrame]:
    """Decode from where the container is.

    `wanted` are times of the frames that matter. Others that no frame is predicted from are then
    skipped without decoding, a quarter of the work in usual H.264.
    """
    context = video.stream.codec_context
    corrupt = False
    for packet in video.container.demux(video.stream):
        heartbeat()
        if packet.size:
            video.packets += 1
            corrupt = packet.is_corrupt
        if wanted is not None:
            context.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
        for frame in packet.decode():
            heartbeat()
            yield frame
    if check_end:
        video.check_end(corrupt)


# From decoded pictures to resized RGB


class Canvas:
    """Takes decoded frames, converts and resizes the part of them that the crops cover.

    A frame is PyAV's, or RGB and upright already, ``(H, W, 3)``.
    """

    def __init__(self, spec: ViewSpec, count: int) -> None:
        self.spec = spec
        self.count = count
        self.reformatter = VideoReformatter()  # one for all frames: setting it up takes long
        self.frames: NDArray[np.uint8] | None = None
        self.resizer: Resizer | None = None

    def _lay_out(self, height: int, width: int) -> NDArray[np.uint8]:
        """The first picture's size decides how all are resized and cropped."""
        self.size = resized(height, width, self.spec)
        self.window, self.offsets = crop_window(*self.size, self.spec)
        return np.empty((self.count, *self.window[2:], 3), dtype=np.uint8)

    def prepare(self, frame: VideoFrame | NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A frame by itself, ``(H, W, 3)``; for a canvas of one."""
        self.put(0, frame)
        assert self.frames is not None
        return self.frames[0].copy()

    def put(self, position: int, frame: VideoFrame | NDArray[np.uint8]) -> None:
        picture = self._upright(frame) if isinstance(frame, VideoFrame) else frame
        height, width = picture.shape[:2]
        if self.frames is None:
            self.frames = self._lay_out(height, width)
        if self.resizer is None or self.resizer.old != (height, width):  # it may change
            self.resizer = Resizer((height, width), self.size, self.window)
        self.resizer(picture, self.frames[position])

    def _upright(self, frame: VideoFrame) -> NDArray[np.uint8]:
        # One thread: without a word every core has one, and waking them takes longer than the work.
        converted = self.reformatter.reformat(frame, format="rgb24", threads=1)
        picture: NDArray[Any] = converted.to_ndarray()
        turns = round(frame.rotation / 90) % 4  # phones film sideways and say so
        return np.ascontiguousarray(np.rot90(picture, turns)) if turns else picture

    def views(self, index: NDArray[np.int64]) -> Views:
        """What was put here, with how the views use it."""
        assert self.frames is not None
        return Views(self.frames, index, self.offsets, self.spec.size)
