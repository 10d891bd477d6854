"""The clip to look at, and the methods to compare on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeGuard, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sta.backbones import find
from sta.backbones.vit import ViTAdapter
from sta.backbones.zoo.video_model import VideoModel
from sta.core.schedule import STEPS, drops
from sta.explain.draw import Frames, enlarge
from sta.methods import (
    Config,
    FrameDifferenceConfig,
    STAConfig,
    SteppedConfig,
    make_config,
    title_of,
)
from sta.video.digits import FRAMES, NAMES, SIDE, DigitActions
from sta.video.safe import SafeDecoder
from sta.video.views import ViewSpec

SHOWN_SIDE = 224  # a smaller clip is drawn larger, so that people can see it


@dataclass(frozen=True)
class Clip:
    """One clip of a video.

    Attributes:
        name: For titles and file names.
        seen: What the model sees, (F, H, W, 3).
        shown: The same for people, at a whole multiple of its size.
        label: Its class number, where known.
    """

    name: str
    seen: NDArray[np.uint8]
    shown: Frames
    label: int | None = None

    @property
    def scale(self) -> int:
        """How many pixels of `shown` a pixel of `seen` is wide."""
        return self.shown.shape[1] // self.seen.shape[1]


def read_clip(video: str, spec: ViewSpec, *, timeout: float = 60.0) -> Clip:
    """The clip in the middle of a video, or a clip made on the fly.

    Args:
        video: A file, or "digits:5" for clip 5 of the digit actions' test split ("digits-jitter:5"
            with a shaking camera).
        spec: The view to take; if it is several, the first.
        timeout: Seconds without a sign of life after which the video is given up.

    Raises:
        VideoError: The file cannot be read.
    """
    times = -(-SHOWN_SIDE // spec.size)
    name, colon, number = video.partition(":")
    if name in NAMES:
        if colon and not number.isdecimal():
            raise ValueError(f"{video}: {number!r} is no clip's number; use 0 up, e.g. {name}:5")
        return _digits(name, int(number or 0), spec, times)
    seen = _decode(video, spec, timeout)
    if times == 1:
        return Clip(PurePosixPath(video).stem, seen, seen)
    shown = _decode(video, replace(spec, size=spec.size * times), timeout)
    return Clip(PurePosixPath(video).stem, seen, shown)


def _decode(video: str, spec: ViewSpec, timeout: float) -> NDArray[np.uint8]:
    with SafeDecoder(spec, timeout) as decoder:
        return cast("NDArray[np.uint8]", decoder(video).clips()[0])


def _digits(name: str, number: int, spec: ViewSpec, times: int) -> Clip:
    if (spec.frames, spec.size) != (FRAMES, SIDE):
        raise ValueError(
            f"{name}:{number}: digit actions have {FRAMES} frames of {SIDE} pixels, this model "
            f"takes {spec.frames} of {spec.size}; use vit-digits or swin-digits, or a video file"
        )
    data = DigitActions("test", size=number + 1, camera_jitter=name == "digits-jitter")
    seen, label = data[number]
    return Clip(f"{name}-{number}", seen, enlarge(seen, times), label)


def single_view(opened: VideoModel, stride: int | None = None) -> ViewSpec:
    """The model's own view, once: the middle clip, the centre crop."""
    spec = replace(opened.clip.views, temporal=1, spatial=1)
    return spec if stride is None else replace(spec, stride=stride)


def default_r(opened: VideoModel) -> int:
    """A drop that about halves the work: as the paper's 64 of 196 tokens, a third."""
    return find(opened.model).tokens_per_frame(opened.clip.views.size)[0] // 3


def most_r(opened: VideoModel) -> int:
    """The largest r that leaves a token at every step."""
    return find(opened.model).largest_r(STAConfig(), opened.clip.views.size)


def rival(model: nn.Module, name: str, config: Config) -> Config:
    """Another method with settings that leave as many tokens at the end as `config` does.

    The number r means something else to every method: tokens per frame of the first of three
    steps, of the only step, or of the whole clip in every block. This translates.

    Args:
        model: A supported model.
        name: The other method's.
        config: The method to compare with.
    """
    r = int(getattr(config, "r", 0))
    adapter = find(model)
    if not isinstance(adapter, ViTAdapter) or name in ("dense", config.method):
        made = make_config(name, r)  # Swin's methods share their counts
        return replace(made, fill=config.fill) if _fills(made) and _fills(config) else made
    steps = min(STEPS, len(adapter.blocks))
    stepped = ("sta", "random", "released")
    if config.method in stepped:
        dropped: float = sum(drops(r, getattr(config, "schedule", "decreasing"), steps))
    elif config.method == "tome":
        dropped = r * len(adapter.blocks) / adapter.grid.frames
    else:
        dropped = r
    if name in stepped:
        choices = range(adapter.grid.tokens)
        best = min(choices, key=lambda c: abs(sum(drops(c, "decreasing", steps)) - dropped))
        return make_config(name, best)
    if name == "tome":
        return make_config(name, round(dropped * adapter.grid.frames / len(adapter.blocks)))
    return make_config(name, round(dropped))


def _fills(config: Config) -> TypeGuard[SteppedConfig | FrameDifferenceConfig]:
    """Does the method say what stands in for dropped tokens?"""
    return isinstance(config, SteppedConfig | FrameDifferenceConfig)


def rivals(
    opened: VideoModel,
    name: str,
    r: int | None = None,
    others: Sequence[str] = (),
    file: str | None = None,
) -> dict[str, Config]:
    """A method and others to compare it with, by title.

    Args:
        opened: The model.
        name: The method's.
        r: Its r; None drops about a third of the tokens.
        others: Names of other methods, which get to keep as many tokens.
        file: The method and its settings from a file, instead of `name` and `r`.
    """
    if file is not None:
        main = Config.from_file(file)
    elif r is not None:
        main = make_config(name, r)
        if isinstance(main, SteppedConfig) and r > (most := most_r(opened)):
            raise ValueError(f"r={r} leaves no tokens at one of the steps; use r <= {most}")
    else:
        main = rival(opened.model, name, STAConfig(r=default_r(opened)))
    chosen = [main, *(rival(opened.model, other, main) for other in others)]
    return {title_of(config): config for config in chosen}
