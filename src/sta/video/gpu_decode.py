"""Decoding with torchcodec, on a GPU where there is one: an option, for videos that are trusted.

PyAV still opens the file and reads its packets: what is refused, where a file was cut off and when
each frame is shown are known from there. torchcodec gets the same bytes and this index, and every
frame that it gives must be shown when the index says. Where there is no index, where torchcodec
fails, and where it gives another frame, PyAV decodes.

torchcodec turns pictures upright by itself. They are resized as all others are, by the CPU.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sta.video.errors import VideoError

if TYPE_CHECKING:
    from sta.video.decode import Heartbeat, Index, OpenStream
    from sta.video.opening import ByteSource

#: Decoded pictures on the device at a time.
CHUNK_BYTES = 2**28
_INSTALL = (
    "decoder torchcodec needs torchcodec 0.11 or newer, made for the PyTorch that is here, and "
    "FFmpeg's shared libraries: pip install torchcodec, and FFmpeg by the system's packages"
)


class Disagreement(Exception):
    """torchcodec fails at a video, or gives other frames than its packets tell of."""


def device() -> str:
    """Where torchcodec decodes: on the first GPU, if there is one."""
    import torch  # not on top: processes that decode with PyAV do without it

    return "cuda" if torch.cuda.is_available() else "cpu"


def import_torchcodec() -> str:
    """Import what decodes, which takes some seconds; gives the device."""
    with suppress(ImportError, RuntimeError, OSError):  # `pictures` says what is missing
        importlib.import_module("torchcodec.decoders")
    return device()


def check_torchcodec() -> None:
    """Decode a drawn frame, so that what would fail at every video is found out before the first.

    Raises:
        ImportError: torchcodec, or what it needs, is missing, too old, or does not work here.
    """
    from sta.video.encode import write_video  # FFmpeg, which a run without this does not load

    with tempfile.TemporaryDirectory() as folder:
        grey = np.full((256, 256, 3), 128, np.uint8)
        data = write_video(Path(folder) / "grey.mp4", [grey], codec="mpeg4").read_bytes()
    try:
        decoder = _open(data)
        decoder.get_frames_at([0])
        decoder.metadata.rotation  # noqa: B018  # those without it leave phones' videos lying
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ImportError(f"{_INSTALL} ({reason})") from None


def pictures(
    video: OpenStream, index: Index, numbers: Sequence[int], heartbeat: Heartbeat
) -> Iterator[NDArray[np.uint8]]:
    """Frames ``(H, W, 3)`` uint8, RGB, upright, by their ascending numbers.

    Raises:
        Disagreement: PyAV has to do it. What was given until then is right.
    """
    import torch

    video.source.seek(0)  # PyAV has read it, and is done with it
    stream, base = video.stream, video.stream.time_base
    assert base is not None  # of a stream that is open
    step = max(1, CHUNK_BYTES // max(1, 3 * stream.width * stream.height))
    try:
        decoder = _open(
            _Bytes(video.source, heartbeat),
            stream_index=stream.index,
            custom_frame_mappings=_mappings(index),
        )
        for start in range(0, len(numbers), step):
            some = list(numbers[start : start + step])
            heartbeat()
            batch = decoder.get_frames_at(some)
            late = batch.pts_seconds.cpu().numpy() / float(base) - index.times[some]
            if np.abs(late).max() > 0.5:
                raise Disagreement
            yield from batch.data.cpu().numpy()
    except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
        # The video is not to blame: after "killed", a run tries it again with the GPU for itself.
        reason = str(error).partition("\n")[0]
        raise VideoError(f"decoding on the GPU ended: {reason}", "killed") from None
    except ImportError as error:
        raise VideoError(f"{_INSTALL} ({error})", "unreadable") from None
    except (RuntimeError, ValueError, IndexError, AssertionError) as error:
        raise Disagreement from error


class _Bytes:
    """What torchcodec reads: the bytes that PyAV had, and a sign of life with each."""

    def __init__(self, source: ByteSource, heartbeat: Heartbeat) -> None:
        self.source, self.heartbeat = source, heartbeat

    def read(self, count: int) -> bytes:
        self.heartbeat()
        return self.source.read(count)

    def seek(self, offset: int, whence: int) -> int:
        return self.source.seek(offset, whence)


def _open(source: Any, **options: Any) -> Any:
    decoders = importlib.import_module("torchcodec.decoders")
    return decoders.VideoDecoder(source, dimension_order="NHWC", device=device(), **options)


def _mappings(index: Index) -> str:
    """The index as torchcodec takes it, so that it does not read the file once more for its own."""
    times = index.times.tolist()
    keys = set(index.keys.tolist())
    lasting = [after - time for time, after in pairwise(times)] + [1]
    frames = [
        {"pts": time, "duration": duration, "key_frame": int(number in keys)}
        for number, (time, duration) in enumerate(zip(times, lasting, strict=True))
    ]
    return json.dumps({"frames": frames})
