"""Writing small videos, for examples, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

_PIXELS = {"mjpeg": "yuvj420p", "gif": "rgb8", "libx264rgb": "rgb24"}


def write_video(
    path: str | Path,
    frames: Iterable[NDArray[np.uint8]],
    *,
    codec: str = "libx264",
    fps: int = 25,
    times: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Encode `frames`, each ``(H, W, 3)`` uint8 RGB, to `path`; its ending names the container.

    The codec is FFmpeg's name of an encoder. `times` are each frame's presentation time in
    milliseconds, for a variable frame rate. Options are the encoder's, e.g. ``{"g": "12"}``,
    container options the muxer's, e.g. ``{"movflags": "faststart"}``.
    """
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = None
        for number, picture in enumerate(frames):
            if stream is None:
                stream = container.add_stream(codec, rate=fps, options=options or {})
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt = _PIXELS.get(codec, "yuv420p")
                if times is not None:
                    stream.codec_context.time_base = Fraction(1, 1000)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        if stream is None:
            raise ValueError(f"{path}: a video needs at least one frame")
        container.mux(stream.encode(None))
    return Path(path)
