"""Everything that pictures show of one clip under some methods, as plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import sta
from sta.backbones.copies import shared_copy
from sta.backbones.zoo.video_model import VideoModel
from sta.explain.anatomy import places
from sta.explain.draw import Frames, Map, Mask, Patch
from sta.explain.explain import StepScores, explain
from sta.measure.timing import interleave
from sta.methods import Config, title_of

TITLES = {
    "sta": "STA",
    "random": "Random",
    "tome": "ToMe",
    "frame-difference": "Frame difference",
    "dense": "Dense, our path",
}
TOP = 5


@dataclass(frozen=True)
class StepLook:
    """One pruning step.

    Attributes:
        after: Where it is: "input", "block 5" or "stage 2".
        kept: Which places of the grid have a token left, (T, h, w).
        patch: Frames, height and width of the pixels behind one token.
        scores: "semantic" (F), "accumulation" (A) and "score", each (T, h, w) and NaN where there
            was no token left to score; empty where the method has none.
    """

    after: str
    kept: Mask
    patch: Patch
    scores: Mapping[str, Map] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens left in the clip."""
        return int(self.kept.sum())


@dataclass(frozen=True)
class MethodLook:
    """What one method did to the clip, and what it cost.

    Attributes:
        title: For people, e.g. "STA, r = 64".
        steps: Its steps; none for the unpruned model.
        top: Its best classes, each with its probability, best first.
        gflops: Of one forward.
        seconds: Of one forward, median.
    """

    title: str
    steps: tuple[StepLook, ...]
    top: tuple[tuple[str, float], ...]
    gflops: float
    seconds: float


@dataclass(frozen=True)
class ClipLook:
    """A clip and what the methods did to it.

    Attributes:
        clip: Name of the clip.
        model: Name of the model.
        frames: (F, H, W, 3), for drawing.
        scale: How many pixels of `frames` a pixel of the model's input is wide.
        stock: The model as it is.
        methods: The methods, in the order they were asked for.
    """

    clip: str
    model: str
    frames: Frames
    scale: int
    stock: MethodLook
    methods: tuple[MethodLook, ...]

    def patch(self, step: StepLook) -> Patch:
        """The step's patch in pixels of `frames`."""
        frames, height, width = step.patch
        return frames, height * self.scale, width * self.scale


def look(
    opened: VideoModel,
    clip: NDArray[np.uint8],
    configs: Sequence[Config],
    *,
    clip_name: str = "clip",
    model_name: str = "model",
    frames: Frames | None = None,
    device: str = "cpu",
    rounds: int = 5,
) -> ClipLook:
    """Run a clip through a model, unpruned and under each method.

    The model itself is not changed.

    Args:
        opened: The model.
        clip: What it sees, (F, H, W, 3) uint8 RGB.
        configs: The methods.
        clip_name: For titles.
        model_name: For titles.
        frames: The same clip in more pixels, a whole multiple of `clip`'s, for drawing.
        device: Where to run.
        rounds: How often each method is timed; they take turns.
    """
    shown = clip if frames is None else frames
    scale = _scale(clip, shown)
    opened.model.to(device)
    variants = [sta.remove(shared_copy(opened.model))]
    variants += [sta.apply(shared_copy(opened.model), config) for config in configs]
    pixels = opened.clip.pixels(clip[None], device)
    with torch.inference_mode():
        stock = _probabilities(variants[0](pixels))
        seen = [see_steps(model, pixels) for model in variants[1:]]
    times = interleave(
        {str(i): _forward(model, pixels) for i, model in enumerate(variants)},
        rounds=rounds,
        warmup=1,
        device=torch.device(device),
    )
    looks = []
    for i, model in enumerate(variants):
        steps, given = ((), stock) if i == 0 else seen[i - 1]
        best = given.argsort(descending=True, stable=True)[:TOP].tolist()
        looks.append(
            MethodLook(
                title=title_of(configs[i - 1]) if i else "Unpruned",
                steps=tuple(steps),
                top=tuple((opened.names[k], float(given[k])) for k in best),
                gflops=sta.gflops(model, tuple(pixels.shape)),
                seconds=times[str(i)].median,
            )
        )
    return ClipLook(clip_name, model_name, shown, scale, looks[0], tuple(looks[1:]))


def _scale(clip: Frames, shown: Frames) -> int:
    scale, rest = divmod(shown.shape[1], clip.shape[1])
    if (
        rest
        or scale < 1
        or shown.shape[:1] + shown.shape[2:]
        != (
            clip.shape[0],
            clip.shape[2] * scale,
            3,
        )
    ):
        raise ValueError(
            f"frames {shown.shape} must be the clip {clip.shape} at a whole multiple of its size"
        )
    return scale


def _forward(model: nn.Module, pixels: Tensor) -> Callable[[], object]:
    return lambda: model(pixels)


def _probabilities(output: Any) -> Tensor:
    """Of the classes, (C,)."""
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits[0].double().softmax(-1).cpu()


def see_steps(model: nn.Module, pixels: Tensor) -> tuple[list[StepLook], Tensor]:
    """The steps of a forward on one clip, and the probabilities of the classes, (C,)."""
    output, kept, scores = explain(model, _forward(model, pixels))
    steps = []
    for index, place, found in zip(kept, places(model), scores, strict=True):
        grid = place.grid
        if index.ndim == 3:  # of each frame: into the clip's grid
            offset = torch.arange(grid.frames, device=index.device).view(-1, 1) * grid.tokens
            index = (index + offset).flatten(1)
        mask = np.zeros(grid.frames * grid.tokens, dtype=bool)
        mask[index[0].cpu().numpy()] = True
        steps.append(StepLook(place.after, mask.reshape(grid), place.patch, _maps(found, grid)))
    return steps, _probabilities(output)


def _maps(scores: StepScores | None, grid: tuple[int, int, int]) -> dict[str, Map]:
    if scores is None:
        return {}
    maps = scores._asdict().items()
    return {name: value[0].float().cpu().numpy().reshape(grid) for name, value in maps}
