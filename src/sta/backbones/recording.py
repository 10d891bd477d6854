"""What steps receive and leave, recorded to fill dropped places afterwards."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn

from sta.backbones import find
from sta.backbones.hooks import StepHook
from sta.methods.base import Site

M = TypeVar("M", bound=nn.Module)


class StepValues:
    """An observer of a step that holds its tokens of the last forward, without class token.

    Attributes:
        tokens: What it received, (B, n, D).
        left: What it left, (B, K, D), where it merged.
    """

    def __init__(self) -> None:
        self.tokens: Tensor | None = None
        self.left: Tensor | None = None

    def __call__(self, site: Site) -> None:
        self.tokens = site.tokens

    def __getstate__(self) -> dict[str, Any]:
        return {"tokens": None, "left": None}  # copies and files go without it


def record(model: M) -> M:
    """Let a model's steps hold what they receive, for `sta.restore(..., fill="delta")`.

    Each step that drops tokens holds them all until the next forward, and one that merges also what
    it makes of them. `sta.remove`, or applying anew, ends it.

    Args:
        model: A model with a method applied.

    Returns:
        The model.

    Raises:
        ValueError: No method is applied.
    """
    steps = find(model).steps
    if not steps:
        raise ValueError("no method is applied to this model; call sta.apply(model, config) first")
    for step in steps:
        step.observe = StepValues()
    return model


def received(step: StepHook) -> Tensor:
    """The tokens that a step received in the last forward.

    Raises:
        RuntimeError: They were not recorded.
    """
    if not isinstance(step.observe, StepValues) or step.observe.tokens is None:
        raise RuntimeError(
            'fill="delta" needs what dropped tokens were before: call sta.record(model) after '
            "sta.apply, and run the forward after that"
        )
    return step.observe.tokens


def left_by(step: StepHook) -> Tensor:
    """The tokens that a step that merges left in the last forward; see `received`."""
    values = step.observe
    assert isinstance(values, StepValues)
    assert values.left is not None
    return values.left
