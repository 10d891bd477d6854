"""The scores behind the choice of each step, recomputed beside a forward.

The forward itself runs as it always does and keeps nothing but indices. Hooks that are there for
this one call capture what each step of STA receives, and compute `explain_step` from it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sta.backbones import Adapter, find
from sta.backbones.hooks import StepPlug
from sta.backbones.swin_steps import STAStageStep, features
from sta.backbones.vit_steps import STAStep
from sta.core.score import Step
from sta.core.step import explain_step
from sta.explain.layout import sites, step_layouts


class StepScores(NamedTuple):
    """The scores of one step of STA on the grid it chose from; NaN where no token was left.

    Attributes:
        semantic: F of Eq. 4, (B, T, N).
        accumulation: A of Eq. 3, (B, T, N).
        score: Eq. 5, (B, T, N); the lowest of each frame stay, but for the chain's first frame.
    """

    semantic: Tensor
    accumulation: Tensor
    score: Tensor


def recompute_scores(
    model: nn.Module, run: Callable[[], Any]
) -> tuple[Any, list[Tensor], list[StepScores | None]]:
    """Run a forward and recompute the scores that its steps of STA chose by.

    Args:
        model: A model with a method applied.
        run: The forward, e.g. `lambda: model(pixels)`.

    Returns:
        What `run` returned; what `sta.kept` says of it; and the scores of each step, None where the
        method has no such scores or drops nothing.
    """
    adapter = find(model)
    with _recording(adapter) as recorded:
        output = run()
    kept = adapter.kept()
    scores: list[StepScores | None] = []
    for number, (step, layout) in enumerate(zip(adapter.steps, step_layouts(model), strict=True)):
        found = recorded.get(step)
        if found is None:
            scores.append(None)
            continue
        # On a columnar backbone a step scores what the one before it left; on Swin, a full grid.
        partial = found.semantic.shape[-1] < layout.grid.tokens
        scores.append(_on_grid(found, kept[number - 1] if partial else None, layout.grid.tokens))
    return output, kept, scores


@contextmanager
def _recording(adapter: Adapter) -> Iterator[dict[StepPlug, Step]]:
    """Collects the explanation of every step of STA in a forward inside."""
    recorded: dict[StepPlug, Step] = {}
    handles = []
    for site in sites(adapter):
        step = site.step
        if isinstance(step, STAStep) and step.drop > 0:
            hook = _after_block(step, recorded)
            handles.append(site.module.register_forward_hook(hook, prepend=True))
        elif isinstance(step, STAStageStep) and step.drop > 0:
            handles.append(site.module.register_forward_pre_hook(_before_stage(step, recorded)))
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _after_block(step: STAStep, recorded: dict[StepPlug, Step]) -> Callable[..., None]:
    """A hook ahead of the step's own, which receives what that one is about to receive."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = (output[0] if isinstance(output, tuple) else output)[:, step.family.prefix :]
        metric = step.metric(module, args, x)
        grid = step.grid.frame if step.tokens == step.grid.tokens else None
        recorded[step] = _explain(step, step.framed(x), step.framed(metric), grid)

    return hook


def _before_stage(step: STAStageStep, recorded: dict[StepPlug, Step]) -> Callable[..., None]:
    """A hook before the stage whose companion the step is."""

    def hook(module: Any, args: tuple[Any, ...]) -> None:
        height, width = args[0].shape[2:4]
        x: Tensor = args[0].flatten(2, 3)  # (B, T, N, C)
        similarity = step.config.similarity
        metric = x if similarity == "ffn" else features(module[0], x, similarity)
        recorded[step] = _explain(step, x, metric, (height, width))

    return hook


def _explain(
    step: STAStep | STAStageStep, x: Tensor, metric: Tensor, grid: tuple[int, int] | None
) -> Step:
    config = step.config
    return explain_step(
        x,
        metric,
        step.drop,
        order=step.order,
        score=config.score,
        semantic=config.semantic,
        first_frame=config.first_frame,
        temperature=config.temperature,
        grid=grid,
        seed=step.seed,
    )


def _on_grid(step: Step, left: Tensor | None, tokens: int) -> StepScores:
    """The scores of the tokens that were left, at their positions: (B, T, K) -> (B, T, N)."""
    values = (step.semantic, step.accumulation, step.score)
    if left is None:
        return StepScores(*values)
    empty = torch.full((*left.shape[:2], tokens), torch.nan, device=left.device)
    return StepScores(*(empty.scatter(-1, left, value.float()) for value in values))
