"""Features of clips: what a model knows of them before it names a class.

Pooled features are what the model's own pooling makes: what a classifier's last layer receives, and
of a bare encoder the class token, or the mean of its tokens where it has none. Dense features are
the tokens on their whole grid, dropped places filled.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

from torch import Tensor, nn

from sta.backbones import find
from sta.backbones.base import Adapter
from sta.backbones.hooks import captured
from sta.backbones.patch import record

Fill = Literal["nearest", "delta"]
#: What transformers and torchvision call a classifier's last layer.
_HEADS = ("classifier", "head")
_NORMS = ("layernorm", "norm")


def encode(
    model: nn.Module,
    pixels: Tensor,
    *,
    block: int | None = None,
    dense: bool = False,
    fill: Fill = "nearest",
) -> Tensor:
    """Features of clips.

    Args:
        model: A supported classifier or bare encoder, with or without a method applied.
        pixels: Clips as the model takes them.
        block: Of the output of this block, counted from 1, before the model's last norm; None is
            what the whole model puts out.
        dense: The tokens on their grid instead of one vector.
        fill: What stands at dropped places of dense features: see `sta.restore`.

    Returns:
        (B, D), or dense (B, T, N, D), the frames of tokens and the places in each.
    """
    adapter = find(model)
    blocks = adapter.all_blocks()
    check_block(adapter, block)
    module, merged = blocks[-1 if block is None else block - 1]
    head = _module(model, _HEADS)
    if not dense and block is None and head is not None:
        with captured([head], before=True) as seen:
            _run(model, pixels)
        return seen[0].flatten(1)
    if not dense:
        with captured([module if block else _last(adapter)]) as seen:
            _run(model, pixels)
        return _pooled(adapter, seen[0])
    delta = fill == "delta" and bool(adapter.steps)
    if delta:
        record(model)
    with captured([module if block or delta else _last(adapter)]) as seen:
        _run(model, pixels)
    tokens = _on_grid(adapter, seen[0], merged, pixels, delta)
    norm = _final_norm(adapter) if delta and block is None else None
    return tokens if norm is None else norm(tokens)


def check_block(adapter: Adapter, block: int | None) -> None:
    """Refuse the number of a block that the model does not have."""
    count = len(adapter.all_blocks())
    if block is not None and not 1 <= block <= count:
        raise ValueError(f"block={block}: this model has blocks 1 to {count}")


def _run(model: nn.Module, pixels: Tensor) -> None:
    """One forward; a V-JEPA 2 encoder goes without its predictor."""
    bare = "skip_predictor" in inspect.signature(model.forward).parameters
    model(pixels, **({"skip_predictor": True} if bare else {}))


def _last(adapter: Adapter) -> nn.Module:
    """What puts out the model's last tokens."""
    module: nn.Module = adapter.backbone.norm if adapter.layout.staged else adapter.backbone
    return module


def _final_norm(adapter: Adapter) -> nn.Module | None:
    """What a backbone does to the tokens of its last block; None if nothing."""
    for owner in (adapter.backbone, getattr(adapter.backbone, "encoder", None)):
        if (norm := _module(owner, _NORMS)) is not None:
            return norm
    return None


def _module(owner: Any, names: tuple[str, ...]) -> nn.Module | None:
    found = (getattr(owner, name, None) for name in names)
    return next((module for module in found if isinstance(module, nn.Module)), None)


def _tokens(output: Any) -> Any:
    return getattr(output, "last_hidden_state", output)


def _pooled(adapter: Adapter, output: Any) -> Tensor:
    """The class token, or the mean of all tokens: (B, D)."""
    output = _tokens(output)
    prefix = getattr(adapter, "prefix", 0)
    if prefix:
        first: Tensor = output[0] if isinstance(output, tuple) else output
        return first[:, 0]
    return adapter.average(adapter.tokens_of(output))


def _on_grid(adapter: Adapter, output: Any, merged: int, pixels: Tensor, delta: bool) -> Tensor:
    """Tokens of a block, or of the model, on their whole grid: (B, T, N, D)."""
    rows = adapter.tokens_of(_tokens(output))  # (B, n, D)
    staged = adapter.layout.staged
    # A stage without a step of its own has all tokens, unless whole frames went at the input.
    if any(not staged or step.after in (0, merged) for step in adapter.steps):
        return adapter.restore_delta(rows) if delta else adapter.restore(rows)
    frames = pixels.shape[2 if staged else 1]
    return rows.unflatten(1, (-(-frames // adapter.token_pixels(merged)[0]), -1))
