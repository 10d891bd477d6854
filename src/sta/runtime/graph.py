"""A model as one graph: pixels in, logits and kept tokens out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.attention import SDPBackend, sdpa_kernel

import sta
from sta.backbones.hooks import StepHook, hooks_in
from sta.backbones.outputs import logits_of

INPUT = "pixels"
LOGITS = "logits"
#: The name of what a file says of itself, in its metadata.
FACTS = "sta"
#: In one batch, of a graph for any number of them.
MOST_CLIPS = 4096


def output_names(model: nn.Module) -> list[str]:
    """The outputs of a model's graph: `logits`, then `kept_1`, `kept_2` ... of its steps."""
    steps = sum(1 for _ in hooks_in(model, StepHook))
    return [LOGITS, *(f"kept_{number}" for number in range(1, steps + 1))]


class Graph(nn.Module):
    """The model, returning a tuple: its logits, then what `sta.kept` returns after the forward."""

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

    Kernels differ in the strides of their results, which decide whether what follows may be a view.
    An exporter goes over a graph several times; if one pass has another kernel than the pass
    before, it meets views that cannot be. PyTorch caches the results of operations whichever kernel
    was asked for then, so the cache is cleared before and after.
    """
    clear_fake_tensors()
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        clear_fake_tensors()


def clear_fake_tensors() -> None:
    """Clear the cache of fake tensors' results. PyTorch has no public name for it."""
    try:
        clear = import_module("torch._subclasses.fake_tensor").FakeTensorMode.cache_clear
    except (ImportError, AttributeError):
        raise RuntimeError(
            f"torch {torch.__version__} has no FakeTensorMode.cache_clear, which exports need: "
            f"use a release from 2.9 on that has it"
        ) from None
    clear()


class FixedBatch(ValueError):
    """A graph that would be another one for another number of clips."""


def trace(model: nn.Module, clip: Tensor, *, any_batch: bool = False) -> ExportedProgram:
    """The graph of a model for clips of this shape; with `any_batch`, for any number of them.

    Raises `FixedBatch` where something in the model or its method is made for one number.
    """
    if not any_batch:
        with torch.no_grad(), plain_attention():
            return torch.export.export(Graph(model).eval(), (clip,), strict=False)
    # Tracers take a batch of one for a constant.
    several = clip[:1].expand(2, *clip.shape[1:]).contiguous()
    batch = {INPUT: {0: torch.export.Dim("batch", max=MOST_CLIPS)}}
    with torch.no_grad(), plain_attention():
        try:
            return torch.export.export(
                Graph(model).eval(), (several,), dynamic_shapes=batch, strict=False
            )
        except Exception as error:  # of the tracer, which has many kinds
            raise FixedBatch(
                f"the model cannot be exported for any number of clips "
                f"({str(error).splitlines()[0]}); give the batch size"
            ) from error
