"""GFLOPs in the paper's convention, which is fvcore's: a multiply-accumulate is one "FLOP"."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from sta.adapters.plug import Plug, plugs


def gflops(model: nn.Module, input_shape: Sequence[int]) -> float:
    """GFLOPs of one forward, counted on the meta device: no weights are read, nothing is computed.

    Every multiply-accumulate of a matrix product, a convolution or a norm's scale and shift counts
    as one, the rest as nothing; the work of choosing tokens is included. (fvcore, which the paper
    used, guesses five for a norm instead: 0.05 % more. Tools that count a multiply-accumulate as
    two report twice as many.)

    Args:
        model: A stock model, or one with a method applied. It may itself be on the meta device.
        input_shape: In the model's own layout, e.g. (1, 16, 3, 224, 224) for VideoMAE and
            (1, 3, 32, 224, 224) for Swin.
    """
    state = {
        name: torch.empty_like(value, device="meta")
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    clip = torch.empty(*input_shape, dtype=dtype, device="meta")
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.native_layer_norm: _norm}
    )
    with torch.no_grad(), _evaluating(model), _eager_attention(model), _remembering(model), counter:
        functional_call(model, state, (clip,))
    return counter.get_total_flops() / 2 / 1e9


def _norm(shape: Sequence[int], *_: Any, **__: Any) -> int:
    """Scale and shift of a norm, in the counter's unit of half a multiply-accumulate."""
    return 2 * math.prod(shape)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode: training may drop work (stochastic depth, checkpointing counts it twice)."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was


@contextmanager
def _remembering(model: nn.Module) -> Iterator[None]:
    """What the last real forward kept: a count has seen no clip."""
    before = [(plug, dict(plug.__dict__)) for plug in plugs(model, Plug)]
    try:
        yield
    finally:
        for plug, state in before:
            plug.__dict__.update(state)


@contextmanager
def _eager_attention(model: nn.Module) -> Iterator[None]:
    """Attention as plain matrix products, which can be counted for every implementation."""
    configs: list[tuple[Any, str]] = []
    for module in model.modules():
        config = getattr(module, "config", None)
        attention = getattr(config, "_attn_implementation", None)
        if attention is not None and all(config is not seen for seen, _ in configs):
            configs.append((config, attention))
    for config, _ in configs:
        config._attn_implementation = "eager"
    try:
        yield
    finally:
        for config, attention in configs:
            config._attn_implementation = attention
