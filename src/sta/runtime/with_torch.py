"""PyTorch itself, as it is and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sta.backbones.copies import shared_copy
from sta.backbones.outputs import logits_of

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def run_eager(
    model: nn.Module, clip: Tensor, precision: str, threads: int | None
) -> Callable[[Tensor], Tensor]:
    """The model itself, whatever is applied to it when it is called."""
    return _runner(model, clip, precision, threads)


def run_compiled(
    model: nn.Module, clip: Tensor, precision: str, threads: int | None
) -> Callable[[Tensor], Tensor]:
    """`torch.compile` without graph breaks, compiled for clips of this shape."""
    compiled: Any = torch.compile(shared_copy(model), fullgraph=True, dynamic=False)
    run = _runner(compiled, clip, precision, threads)
    run(clip)  # the compiler runs now, so that what goes wrong goes wrong here
    return run


def _runner(
    model: nn.Module, clip: Tensor, precision: str, threads: int | None
) -> Callable[[Tensor], Tensor]:
    device = clip.device.type

    def run(pixels: Tensor) -> Tensor:
        cast = (
            nullcontext() if precision == "float32" else torch.autocast(device, _DTYPES[precision])
        )
        # Always the same mode, whatever the caller's: a compiled graph is made for one of them.
        with torch.inference_mode(False), torch.no_grad(), cast, limited(threads):
            return logits_of(model(pixels)).float()

    return run


@contextmanager
def limited(count: int | None) -> Iterator[None]:
    """A number of threads inside; PyTorch has one for the process."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
