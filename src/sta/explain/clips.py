"""One clip of a video: what the model is given, and the same for people to look at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sta.backbones.zoo.video_model import VideoModel
from sta.explain.draw import Frames, enlarge
from sta.video.clips import digit_clip, digit_entries, is_digits
from sta.video.safe import SafeDecoder
from sta.video.views import ViewSpec

DISPLAY_SIDE = 224  # a smaller clip is drawn larger, so that people can see it


@dataclass(frozen=True)
class Clip:
    """One clip of a video."""

    name: str  # for titles and file names
    frames: NDArray[np.uint8]  # what the model is given, (F, H, W, 3)
    display: Frames  # the same for people, at a whole multiple of its size
    label: int | None = None  # its class number, where known

    @property
    def scale(self) -> int:
        """How many pixels of `display` a pixel of `frames` is wide."""
        return self.display.shape[1] // self.frames.shape[1]


def read_clip(video: str, spec: ViewSpec, *, timeout: float = 60.0) -> Clip:
    """The clip in the middle of a video, or a generated one; of several views, the first.

    "digits:5" is clip 5 of the digit actions' test split, "digits-jitter:5" with a shaking camera.
    """
    times = enlargement(spec.size)
    if is_digits(video):
        frames = digit_clip(video, spec)
        (entry,) = digit_entries(video, 1)
        return Clip(entry.path, frames, enlarge(frames, times), entry.label)
    frames = _decode(video, spec, timeout)
    if times == 1:
        return Clip(PurePosixPath(video).stem, frames, frames)
    display = _decode(video, spec.enlarged(times), timeout)
    return Clip(PurePosixPath(video).stem, frames, display)


def enlargement(side: int) -> int:
    """How many times larger a clip of this side is drawn."""
    return -(-DISPLAY_SIDE // side)


def single_view(model: VideoModel, stride: int | None = None) -> ViewSpec:
    """The model's own view, once: the middle clip, the centre crop."""
    spec = replace(model.clip.views, temporal=1, spatial=1)
    return spec if stride is None else replace(spec, stride=stride)


def _decode(video: str, spec: ViewSpec, timeout: float) -> NDArray[np.uint8]:
    with SafeDecoder(spec, timeout) as decoder:
        return cast("NDArray[np.uint8]", decoder(video).clips()[0])
