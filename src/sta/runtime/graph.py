"""A model as one graph of static shape: pixels in, logits and kept tokens out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

import sta
from sta.backbones.hooks import StepHook, hooks_in
from sta.backbones.outputs import logits_of

INPUT = "pixels"
LOGITS = "logits"


def output_names(model: nn.Module) -> list[str]:
    """What the graph of a model gives out: `logits`, then `kept_1`, `kept_2` ... of its steps."""
    steps = sum(1 for _ in hooks_in(model, StepHook))
    return [LOGITS, *(f"kept_{number}" for number in range(1, steps + 1))]


class Graph(nn.Module):
    """The model, returning a tuple: its logits, then what `sta.kept` says of the forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.pruned = any(True for _ in hooks_in(model, StepHook))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        logits = logits_of(self.model(pixels))
        return (logits, *sta.kept(self.model)) if self.pruned else (logits,)


@contextmanager
def plain_attention() -> Iterator[None]:
    """Graphs are made inside as if attention had one kernel.

    Kernels differ in the strides they leave, which tell whether what follows may be a view. An
    exporter goes over a graph several times; if one pass sees another kernel than the pass before,
    it meets views that cannot be. PyTorch remembers what operations give out, whichever kernel was
    asked for then, so its memory must go, too, before and after.
    """
    FakeTensorMode.cache_clear()
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        FakeTensorMode.cache_clear()


def trace(model: nn.Module, clip: Tensor) -> ExportedProgram:
    """The graph of a model for clips of this shape, batch included.

    Args:
        model: A classifier, pruned or not.
        clip: Pixels; only their shape matters.
    """
    with torch.no_grad(), plain_attention():
        return torch.export.export(Graph(model).eval(), (clip,), strict=False)
