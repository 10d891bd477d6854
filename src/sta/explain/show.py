"""`sta.show`: one clip under some methods. What the command of the same name does, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sta.backbones.zoo.video_model import VideoModel, model_name
from sta.explain.clips import Clip, enlargement, read_clip, single_view
from sta.explain.comparable import comparable_configs
from sta.explain.draw import enlarge
from sta.explain.inspect import Inspection, inspect_clip
from sta.methods import Config
from sta.progress import ProgressArg, reporting
from sta.runtime.devices import choose_device
from sta.runtime.exported import ExportedModel, open_model


def show(
    video: str | Path | NDArray[np.uint8],
    model: str | nn.Module | VideoModel = "vit-digits",
    *,
    method: str = "sta",
    r: int | None = None,
    compare: Sequence[str | Config] = (),
    config: Config | str | Path | None = None,
    stride: int | None = None,
    rounds: int = 5,
    device: str = "auto",
    timeout: float = 60.0,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    progress: ProgressArg = True,
) -> Inspection:
    """Show which tokens of a clip each pruning step keeps.

    The clip in the middle of the video is run through the model as it is and under each method.
    The model is not changed.

    >>> shown = sta.show("clip.mp4", "vit-b-k400", r=64, compare=["random"])
    >>> print(shown)  # tokens, GFLOPs, time and prediction of each method
    >>> shown.save("clip.html")  # or .png, .pdf, .mp4, .gif, .webp
    >>> shown.methods[0].steps[-1].kept  # (T, h, w), bool

    Args:
        video: A file, "digits:5" for a generated clip, or the clip itself, (F, H, W, 3) uint8 RGB.
        model: What `sta.load` takes, or a loaded model.
        method: How tokens are chosen.
        r: Tokens to drop, as the method counts them; None drops about a third.
        compare: Names of other methods, which are given the r that leaves as many tokens; or
            configs, which are taken as they are.
        config: A method with its settings, or a file with them, instead of `method` and `r`.
        stride: Distance between the frames of the clip; None is the model's own.
        rounds: How often each method is timed; 0 leaves the timing out.
        device: Where to run; "auto" is where a loaded model is, else a GPU if there is one.
        timeout: Seconds without a sign of life after which the video is given up.
        name: Of the clip, for titles; the file's name unless given.
        overrides: Passed on to `sta.load`.
        random_weights: Do not load weights: to measure speed only.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.

    Raises:
        sta.video.VideoError: The file cannot be read.
    """
    opened = open_model(model, overrides=overrides, random_weights=random_weights)
    methods = _methods(opened, method, r, compare, config)
    if isinstance(video, np.ndarray):
        clip = _given(video, opened)
    else:
        clip = read_clip(str(video), single_view(opened, stride), timeout=timeout)
    with reporting(progress, "timed rounds") as report:
        return inspect_clip(
            opened,
            clip.frames,
            methods,
            clip_name=name or clip.name,
            model_name=Path(model_name(model)).name,
            frames=clip.display,
            device=choose_device(device, model),
            rounds=rounds,
            after_round=lambda done, total: report(done=done, total=total),
        )


def _methods(
    opened: VideoModel,
    method: str,
    r: int | None,
    compare: Sequence[str | Config],
    config: Config | str | Path | None,
) -> dict[str, Config]:
    """What to show: of an exported file the method that is in it."""
    file = opened.model
    if not isinstance(file, ExportedModel):
        return comparable_configs(opened, method, r, compare, config)
    if r is not None or compare or config is not None or method != "sta":
        raise ValueError(f"{file.path}: has its method in it: leave method, r and compare out")
    if file.facts.config is None:
        raise ValueError(f"{file.path}: was exported without a method, so that it drops no tokens")
    return {}


def _given(frames: NDArray[np.uint8], model: VideoModel) -> Clip:
    """A clip from memory, checked."""
    views = model.clip.views
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8:
        raise ValueError(
            f"the clip is {frames.dtype} of shape {frames.shape}; give (F, H, W, 3) uint8 RGB, "
            f"here ({views.frames}, {views.size}, {views.size}, 3)"
        )
    return Clip("clip", frames, enlarge(frames, enlargement(min(frames.shape[1:3]))))
