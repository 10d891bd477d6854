"""A model's classifier: how many classes it has, and another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

_HEADS = ("classifier", "head")  # transformers', torchvision's


def _head(model: nn.Module) -> tuple[str, nn.Linear]:
    for name in _HEADS:
        module = getattr(model, name, None)
        if isinstance(module, nn.Linear):
            return name, module
    raise TypeError(
        f"{type(model).__name__} has no linear classifier called {' or '.join(_HEADS)}: "
        f"expected a video classifier of transformers or torchvision"
    )


def classes_of(model: nn.Module) -> int:
    """Number of classes that a model tells apart."""
    return _head(model)[1].out_features


def replace_head(model: nn.Module, classes: int | Sequence[str]) -> None:
    """Give a classifier an untrained head, in place: of so many classes, or of these names."""
    names = () if isinstance(classes, int) else tuple(classes)
    count = classes if isinstance(classes, int) else len(names)
    if count < 1:
        raise ValueError(f"classes={classes}: a classifier needs at least one")
    name, old = _head(model)
    new = nn.Linear(old.in_features, count, device=old.weight.device, dtype=old.weight.dtype)
    nn.init.trunc_normal_(new.weight, std=0.02)
    nn.init.zeros_(new.bias)
    setattr(model, name, new)
    config: Any = getattr(model, "config", None)
    if config is not None:
        config.num_labels = count
        model.num_labels = count  # type: ignore[assignment]
        if names:
            config.id2label = dict(enumerate(names))
            config.label2id = {name: number for number, name in enumerate(names)}


def fresh(model: nn.Module) -> nn.Module:
    """The same backbone, untrained."""
    config = getattr(model, "config", None)
    if config is not None:
        untrained: nn.Module = type(model)(config)
        return untrained
    for module in model.modules():
        for name in ("reset_parameters", "define_relative_position_bias_table"):
            reset = getattr(module, name, None)
            if callable(reset):
                reset()
    return model
