"""What some methods do to one clip, as plain arrays: everything that the pictures show."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import RenderableType
from torch import Tensor, nn

from sta.backbones import find
from sta.backbones.copies import copy_on, shared_copy
from sta.backbones.outputs import logits_of
from sta.backbones.patch import apply, remove
from sta.backbones.zoo.video_model import VideoModel
from sta.core.tokens import Grid, clip_indices
from sta.explain.draw import Frames, Map, Mask, Patch
from sta.explain.scores import StepScores, recompute_scores
from sta.measure.flops import gflops
from sta.measure.timing import interleave
from sta.methods import Config, title_of
from sta.results import Result, table
from sta.runtime.exported import ExportedModel
from sta.runtime.with_torch import in_precision

UNPRUNED = title_of(None)
TOP = 5

PICTURES, PAGES = (".png", ".pdf"), (".html",)
FILMS = (".mp4", ".gif", ".webp", ".webm", ".mkv", ".mov")


@dataclass(frozen=True)
class StepResult:
    """One pruning step.

    Attributes:
        after: Where it is: "input", "block 5" or "stage 2".
        kept: Which positions of the grid have a token left, (T, h, w).
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
        return int(self.kept.sum())


@dataclass(frozen=True)
class MethodResult:
    """What one method did to the clip, and what it cost.

    Attributes:
        title: For people, e.g. "STA, r = 64".
        config: Its settings; None for the unpruned model.
        steps: Its steps; none for the unpruned model.
        predictions: Its best classes, each with its probability, best first.
        gflops: Of one forward.
        seconds: Of one forward, median; None if it was not timed.
    """

    title: str
    config: Config | None
    steps: tuple[StepResult, ...]
    predictions: tuple[tuple[str, float], ...]
    gflops: float
    seconds: float | None


@dataclass(frozen=True)
class Inspection(Result):
    """A clip and what the methods did to it: what `sta.show` returns.

    A notebook shows it as the picture strip; `print` gives a table, a line per method.

    Attributes:
        clip: Name of the clip.
        model: Name of the model.
        frames: (F, H, W, 3), for drawing.
        scale: How many pixels of `frames` a pixel of the model's input is wide.
        stock: The unpruned model; of an exported file, which has none in it, the file itself.
        methods: The methods, in the order they were asked for.
    """

    clip: str
    model: str
    frames: Frames = field(repr=False)
    scale: int
    stock: MethodResult = field(repr=False)
    methods: tuple[MethodResult, ...] = field(repr=False)

    @property
    def compared(self) -> bool:
        """Whether there is an unpruned model to compare with."""
        return self.stock.title == UNPRUNED

    @property
    def results(self) -> tuple[MethodResult, ...]:
        """All that there is to tell, the unpruned model first."""
        return (self.stock, *self.methods) if self.compared else self.methods

    def patch(self, step: StepResult) -> Patch:
        """The step's patch in pixels of `frames`."""
        frames, height, width = step.patch
        return frames, height * self.scale, width * self.scale

    def save(
        self, path: str | Path, *, columns: int = 8, dots: int = 144, fps: int | None = None
    ) -> Path:
        """Draw it; the ending of the path says as what.

        Args:
            path: A strip (.png, .pdf), a film (.webp, .gif, .mp4, .webm, .mkv, .mov) or a page with
                sliders (.html). Folders on the way are made.
            columns: Frames on the strip, at most.
            dots: Of the strip's PNG per inch; a frame is an inch wide.
            fps: Frames per second of the film and the page; 8 unless given.
        """
        from sta.explain import animation, page, strip

        path = check_ending(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fps = animation.FPS if fps is None else fps
        if path.suffix in PICTURES:
            return strip.save(strip.strip(self, columns), path, dots)
        if path.suffix in FILMS:
            return animation.save(self, path, fps)
        return page.save(self, path, fps)

    def _repr_png_(self) -> bytes:
        """The strip, which is how a notebook shows the result."""
        from sta.explain import strip

        file = io.BytesIO()
        strip.write_png(strip.strip(self), file)
        return file.getvalue()

    def records(self) -> list[dict[str, Any]]:
        """A row per method, the unpruned model first: cost, prediction, tokens after each step."""
        return [
            {
                "method": method.title,
                "tokens": [step.tokens for step in method.steps],
                "gflops": method.gflops,
                "seconds": method.seconds,
                "prediction": method.predictions[0][0],
                "score": method.predictions[0][1],
            }
            for method in self.results
        ]

    def tables(self) -> Iterator[RenderableType]:
        """A line per method: tokens, cost and prediction."""
        from sta.explain import captions

        timed = self.stock.seconds is not None
        yield table(
            ("method", "tokens left", "GFLOPs", *(["time"] if timed else []), "prediction"),
            [
                (
                    method.title,
                    f"{method.steps[-1].tokens:,}" if method.steps else "all",
                    captions.amount(method.gflops),
                    *([captions.duration(method.seconds)] if timed else []),
                    captions.prediction(method),
                )
                for method in self.results
            ],
            title=f"{self.model} · {self.clip}",
            text=("prediction",),
        )


def check_ending(path: str | Path) -> Path:
    """The path, if its ending names something that can be drawn."""
    path, known = Path(path), (*PICTURES, *FILMS, *PAGES)
    if path.suffix not in known:
        raise ValueError(f"{path}: unknown ending {path.suffix!r}; use one of {' '.join(known)}")
    return path


def inspect_clip(
    model: VideoModel,
    clip: NDArray[np.uint8],
    configs: Mapping[str, Config] | Sequence[Config],
    *,
    clip_name: str = "clip",
    model_name: str = "model",
    frames: Frames | None = None,
    device: str = "cpu",
    precision: str = "float32",
    rounds: int = 5,
    after_round: Callable[[int, int], object] | None = None,
) -> Inspection:
    """Run a clip through a model, unpruned and under each method.

    The model itself is not changed.

    Args:
        model: The model.
        clip: What it is given, (F, H, W, 3) uint8 RGB.
        configs: The methods, or the methods by title.
        clip_name: For titles.
        model_name: For titles.
        frames: The same clip in more pixels, a whole multiple of `clip`'s, for drawing.
        device: Where to run.
        precision: What to compute in: "float32", "float16" or "bfloat16"; an exported file has its
            own.
        rounds: How often each method is timed; they take turns. 0 leaves the timing out.
        after_round: Called with the number of timed rounds that are done, and of all of them.
    """
    named = configs if isinstance(configs, Mapping) else titled(configs)
    shown = clip if frames is None else frames
    scale = _scale(clip, shown)
    if isinstance(model.model, ExportedModel):
        own = _of_file(model.model, model.pixels(clip[None]), model.class_names, rounds)
        return Inspection(clip_name, model_name, shown, scale, replace(own, steps=()), (own,))
    variants = variants_of(model.model, named, device)
    pixels = model.pixels(clip[None], device)
    with torch.inference_mode(), in_precision(precision, device):
        outcomes = {
            name: ([], _probabilities(variant(pixels)))
            if name == UNPRUNED
            else inspect_steps(variant, pixels)
            for name, variant in variants.items()
        }
    done = iter(range(rounds + 1))  # the first round is for warming up
    times = (
        interleave(
            {name: _forward(variant, pixels, precision) for name, variant in variants.items()},
            rounds=rounds,
            warmup=1,
            device=torch.device(device),
            after_round=None if after_round is None else lambda: after_round(next(done), rounds),
        )
        if rounds
        else {}
    )
    results = []
    for name, variant in variants.items():
        steps, probabilities = outcomes[name]
        results.append(
            MethodResult(
                title=name,
                config=named.get(name),
                steps=tuple(steps),
                predictions=_best(probabilities, model.class_names),
                gflops=gflops(variant, tuple(pixels.shape)),
                seconds=times[name].median if times else None,
            )
        )
    return Inspection(clip_name, model_name, shown, scale, results[0], tuple(results[1:]))


def _of_file(
    file: ExportedModel, pixels: Tensor, class_names: Sequence[str], rounds: int
) -> MethodResult:
    """An exported file on one clip: its one method."""
    probabilities = _probabilities(file(pixels))
    steps = tuple(
        StepResult(layout.after, _mask(index, layout.grid), layout.patch)
        for index, layout in zip(file.kept, file.facts.steps, strict=True)
    )
    times = interleave({"file": _forward(file, pixels)}, rounds=rounds, warmup=1) if rounds else {}
    return MethodResult(
        title=title_of(file.facts.config),
        config=file.facts.config,
        steps=steps,
        predictions=_best(probabilities, class_names),
        gflops=file.facts.gflops,
        seconds=times["file"].median if times else None,
    )


def _best(probabilities: Tensor, class_names: Sequence[str]) -> tuple[tuple[str, float], ...]:
    best = probabilities.argsort(descending=True, stable=True)[:TOP].tolist()
    return tuple((class_names[k], float(probabilities[k])) for k in best)


def variants_of(
    model: nn.Module, configs: Mapping[str, Config], device: str
) -> dict[str, nn.Module]:
    """Copies of a model by title: unpruned first, then under each method. The model is not changed.

    They share its weights where it is on the device already.
    """
    base = remove(copy_on(model, device)).eval()
    return {UNPRUNED: base} | {
        name: apply(shared_copy(base), config) for name, config in configs.items()
    }


def titled(configs: Sequence[Config]) -> dict[str, Config]:
    """Different configs by different titles: what two of one title differ in is added to it."""
    unique = [config for i, config in enumerate(configs) if config not in configs[:i]]
    found = {}
    for config in unique:
        same = [asdict(other) for other in unique if title_of(other) == title_of(config)]
        extra = [
            f", {name} {value}"
            for name, value in asdict(config).items()
            if any(other.get(name) != value for other in same)
        ]
        found[title_of(config) + "".join(extra)] = config
    return found


def _scale(clip: Frames, shown: Frames) -> int:
    """How many times larger the frames that are shown are than the clip."""
    scale = shown.shape[1] // clip.shape[1]
    frames, height, width, channels = clip.shape
    if scale < 1 or shown.shape != (frames, height * scale, width * scale, channels):
        raise ValueError(
            f"frames {shown.shape} must be the clip {clip.shape} at a whole multiple of its size"
        )
    return scale


def _forward(model: nn.Module, pixels: Tensor, precision: str = "float32") -> Callable[[], Any]:
    def run() -> Any:
        with in_precision(precision, pixels.device.type):
            return model(pixels)

    return run


def _probabilities(output: Any) -> Tensor:
    """Of the classes, (C,)."""
    return logits_of(output)[0].double().softmax(-1).cpu()


def inspect_steps(model: nn.Module, pixels: Tensor) -> tuple[list[StepResult], Tensor]:
    """The steps of a forward on one clip, and the probabilities of the classes, (C,)."""
    output, kept, scores = recompute_scores(model, lambda: model(pixels))
    steps = []
    for index, layout, found in zip(kept, find(model).step_layouts(), scores, strict=True):
        maps = _maps(found, layout.grid)
        steps.append(StepResult(layout.after, _mask(index, layout.grid), layout.patch, maps))
    return steps, _probabilities(output)


def _mask(index: Tensor, grid: Grid) -> Mask:
    """Which places of the grid a step kept of the first clip, (T, h, w)."""
    mask = np.zeros(grid.frames * grid.tokens, dtype=bool)
    mask[clip_indices(index, grid.tokens)[0].cpu().numpy()] = True
    return mask.reshape(grid)


def _maps(scores: StepScores | None, grid: tuple[int, int, int]) -> dict[str, Map]:
    if scores is None:
        return {}
    maps = scores._asdict().items()
    return {name: value[0].float().cpu().numpy().reshape(grid) for name, value in maps}
