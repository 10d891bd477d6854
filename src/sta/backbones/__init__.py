"""One thin adapter per backbone family, and the list of them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TypeVar

from torch import nn

from sta.backbones.base import Adapter
from sta.core.tokens import Grid

A = TypeVar("A", bound=Adapter)

__all__ = ["Adapter", "Grid", "adapters", "find", "register"]

# Well-known video models, by class name, and why tokens cannot simply be dropped from them.
UNSUPPORTED = {
    "TimesformerModel": (
        "TimeSformer attends along time and inside frames in turn, each place of the grid to the "
        "same place of the other frames, so every frame needs all of its tokens"
    ),
    "VideoPrismVisionModel": (
        "VideoPrism encodes frames one by one and then each place along time, so every frame "
        "needs all of its tokens"
    ),
    "MViT": (
        "MViT pools its keys, values and queries with convolutions over the whole grid, so every "
        "place needs its token"
    ),
}


_registered: list[type[Adapter]] = []


def adapters() -> tuple[type[Adapter], ...]:
    """Adapters of all supported families."""
    return (*_built_in(), *_registered)


def register(adapter: type[A]) -> type[A]:
    """Let `sta.apply` know one more family: a decorator for adapters outside the package."""
    if adapter not in _registered:
        _registered.append(adapter)
    return adapter


#: Our module of each family, and the one that its models are from.
_FAMILIES = {
    "videomae": "transformers.models.videomae.modeling_videomae",
    "swin": "torchvision.models.video.swin_transformer",
    "vjepa2": "transformers.models.vjepa2.modeling_vjepa2",
    "vivit": "transformers.models.vivit.modeling_vivit",
}


def _built_in(imported: bool = False) -> list[type[Adapter]]:
    """Imported here, on first use: the backbones are heavy.

    Args:
        imported: Only those whose models have been imported: there can be no others.
    """
    names = [n for n, theirs in _FAMILIES.items() if not imported or theirs in sys.modules]
    found = (vars(import_module(f"sta.backbones.{name}")).values() for name in names)
    return [
        value
        for values in found
        for value in values
        if isinstance(value, type) and issubclass(value, Adapter) and "family" in vars(value)
    ]


def find(model: nn.Module) -> Adapter:
    """The adapter of the one supported backbone that is, or is inside, the model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}; {_supported()}")
    known = (*_built_in(imported=True), *_registered)
    found = [
        adapter(module)
        for module in model.modules()
        for adapter in known
        if adapter.matches(module)
    ]
    name = type(model).__name__
    if not found:
        kinds = (kind.__name__ for module in model.modules() for kind in type(module).__mro__)
        if why := next((UNSUPPORTED[kind] for kind in kinds if kind in UNSUPPORTED), None):
            raise TypeError(
                f"{name} cannot be pruned: {why}; use a model with joint attention, {_supported()}"
            )
        raise TypeError(f"{name} is not a supported model, nor contains one; {_supported()}")
    if len(found) > 1:
        raise TypeError(f"{name} contains {len(found)} backbones; call this on each of them")
    found[0].model = model
    if (why := found[0].reason_against(model)) is not None:
        raise TypeError(f"{name} cannot be pruned: {why}; {_supported()}")
    return found[0]


def _supported() -> str:
    families = (f"{a.family} ({', '.join(a.classes)})" for a in adapters())
    return f"supported: {'; '.join(families)}, or any module that contains one of these"
