"""GFLOPs in the paper's convention, which is fvcore's: a multiply-accumulate is one "FLOP"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from sta.backbones.hooks import Hook, StepHook, hooks_in
from sta.backbones.outputs import dtype_of
from sta.runtime.exported import ExportedModel


def gflops(model: nn.Module, input_shape: Sequence[int] | Tensor) -> float:
    """GFLOPs of one forward, counted on the meta device: no weights are read, nothing is computed.

    Every multiply-accumulate of a matrix product, a convolution or a norm's scale and shift counts
    as one, the rest as nothing; the work of choosing tokens is included. (fvcore, which the paper
    used, guesses five for a norm instead: 0.05 % more. Tools that count a multiply-accumulate as
    two report twice as many.)

    Args:
        model: A stock model, or one with a method applied. It may itself be on the meta device.
        input_shape: In the model's own layout, e.g. (1, 16, 3, 224, 224) for VideoMAE and
            (1, 3, 32, 224, 224) for Swin. Where the number of tokens follows the clip (RLT, and
            `budget="auto"`), a shape gives the most that a clip can cost: that of the last bucket,
            or of the whole clip. Pixels instead give what these clips cost; the model is then run.
    """
    if isinstance(model, ExportedModel):
        return model.facts.gflops
    state = dict((*model.named_parameters(), *model.named_buffers()))
    follows_clip = any(step.config.follows_clip for step in hooks_in(model, StepHook))
    if isinstance(input_shape, Tensor) and follows_clip:
        clip = input_shape
    else:
        shape = input_shape.shape if isinstance(input_shape, Tensor) else input_shape
        state = {name: torch.empty_like(value, device="meta") for name, value in state.items()}
        clip = torch.empty(*shape, dtype=dtype_of(model), device="meta")
    counter = _Counter()
    with torch.no_grad(), _as_counted(model), counter:
        functional_call(model, state, (clip,))
    return counter.total / 2 / 1e9


def _norm(x: Tensor, *_: Any, **__: Any) -> int:
    """Scale and shift of a norm, in the counter's unit of half a multiply-accumulate."""
    return 2 * math.prod(x.shape)


class _Counter(TorchDispatchMode):
    """Adds up PyTorch's own formulas over the operations of a forward on the meta device.

    The result of an operation on given shapes is always the same and slow to infer on that device,
    so it is remembered: 2.0 to 2.6 times as fast as `torch.utils.flop_counter.FlopCounterMode` on a
    pruned ViT-B and Swin-T, which a search for r repeats a dozen times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0  # half multiply-accumulates
        from torch.utils.flop_counter import flop_registry  # it imports triton

        self._formulas = {**flop_registry, torch.ops.aten.native_layer_norm: _norm}
        self._known: dict[Any, tuple[int, Callable[[], Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        key = None
        if _makes_new(func):
            key = (
                func,
                _signature(args),
                *((name, _signature(value)) for name, value in kwargs.items()),
            )
            if (known := self._known.get(key)) is not None:
                self.total += known[0]
                return known[1]()
        formula = self._formulas.get(func._overloadpacket)
        if formula is None and func._can_decompose():
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        flops = 0 if formula is None else formula(*args, **kwargs, out_val=out)
        self.total += flops
        if key is not None and (make := _recipe(out)) is not None:
            self._known[key] = (flops, make)
        return out


@cache
def _makes_new(func: Any) -> bool:
    """Whether the results are tensors of their own, neither views of others nor written over."""
    schema = func._schema
    return not any(value.alias_info for value in (*schema.arguments, *schema.returns))


def _signature(value: Any) -> object:
    """All that an operation on the meta device can depend on."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, list | tuple):
        return tuple(map(_signature, value))
    return type(value), value  # 1, 1.0 and True are equal, but make other types


def _recipe(out: Any) -> Callable[[], Any] | None:
    """Makes tensors like these; None for anything but tensors on the meta device."""
    if isinstance(out, tuple):
        parts = [_recipe(part) for part in out]
        if any(part is None for part in parts):
            return None
        return lambda: tuple(part() for part in parts if part is not None)
    if not isinstance(out, Tensor) or not out.is_meta:
        return None
    return partial(torch.empty_strided, out.shape, out.stride(), dtype=out.dtype, device="meta")


@contextmanager
def _as_counted(model: nn.Module) -> Iterator[None]:
    """The model as it is to be counted; afterwards it is as it was.

    In evaluation mode: training may drop work (stochastic depth), and checkpointing counts it
    twice. Attention as plain matrix products, which can be counted for every implementation. What
    the last real forward kept stays: a count has no clip.
    """
    training = {module: module.training for module in model.modules()}
    kept = [(hook, dict(hook.__dict__)) for hook in hooks_in(model, Hook)]
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    attention = {key: getattr(c, "_attn_implementation", None) for key, c in configs.items()}
    attention = {key: name for key, name in attention.items() if name is not None}
    model.eval()
    for key in attention:
        configs[key]._attn_implementation = "eager"
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was
        for hook, state in kept:
            hook.__dict__.update(state)
        for key, name in attention.items():
            configs[key]._attn_implementation = name
