"""The scores behind the choice of each step, recomputed beside a forward.

The forward itself runs as it always does and keeps nothing but indices. For this one call, the
method computes the scores again from what each of its steps was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sta.backbones import Adapter, find
from sta.backbones.hooks import StepHook
from sta.core.score import ScoredStep
from sta.methods.base import Site


class StepScores(NamedTuple):
    """The scores of one step of STA on the grid it chose from; NaN where no token was left."""

    semantic: Tensor  # F of Eq. 4, (B, T, N)
    accumulation: Tensor  # A of Eq. 3, (B, T, N)
    # Eq. 5, (B, T, N); the lowest of each frame stay, but for the chain's first frame.
    score: Tensor


def recompute_scores(
    model: nn.Module, run: Callable[[], Any]
) -> tuple[Any, list[Tensor], list[StepScores | None]]:
    """Run a forward and recompute the scores that its steps of STA chose by.

    Gives what `run` returned, what `sta.kept` says of it, and the scores of each step: None where
    the method has no such scores or drops nothing.
    """
    adapter = find(model)
    with _recording(adapter) as recorded:
        output = run()
    kept = adapter.kept()
    scores: list[StepScores | None] = []
    for number, (step, layout) in enumerate(
        zip(adapter.steps, adapter.step_layouts(), strict=True)
    ):
        found = recorded.get(step)
        if found is None:
            scores.append(None)
            continue
        # On a columnar backbone a step scores what the one before it left; on Swin, a full grid.
        partial = found.semantic.shape[-1] < layout.grid.tokens
        scores.append(_on_grid(found, kept[number - 1] if partial else None, layout.grid.tokens))
    return output, kept, scores


@contextmanager
def _recording(adapter: Adapter) -> Iterator[dict[StepHook, ScoredStep]]:
    """Collects the explanation of every step in a forward inside, where its method has one."""
    recorded: dict[StepHook, ScoredStep] = {}
    steps = [step for step in adapter.steps if step.drop > 0 and hasattr(step.config, "explain")]

    def observer(step: StepHook) -> Callable[[Site], None]:
        def observe(site: Site) -> None:
            recorded[step] = step.config.explain(site)  # type: ignore[attr-defined]

        return observe

    for step in steps:
        step.observe = observer(step)
    try:
        yield recorded
    finally:
        for step in steps:
            step.observe = None


def _on_grid(step: ScoredStep, left: Tensor | None, tokens: int) -> StepScores:
    """The scores of the tokens that were left, at their positions: (B, T, K) -> (B, T, N)."""
    values = (step.semantic, step.accumulation, step.score)
    if left is None:
        return StepScores(*values)
    empty = torch.full((*left.shape[:2], tokens), torch.nan, device=left.device)
    return StepScores(*(empty.scatter(-1, left, value.float()) for value in values))
