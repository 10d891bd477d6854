"""One thin adapter per backbone family, and the list of them."""

from __future__ import annotations

from functools import cache

from torch import nn

from sta.adapters.base import Adapter, Grid

__all__ = ["Adapter", "Grid", "adapters", "find"]


@cache
def adapters() -> tuple[type[Adapter], ...]:
    """Adapters of all supported families. Imported here, on first use: the backbones are heavy."""
    from sta.adapters.videomae import VideoMAEAdapter

    return (VideoMAEAdapter,)


def find(model: nn.Module) -> Adapter:
    """The adapter of the one supported backbone that is, or is inside, the model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}; {_supported()}")
    found = [
        adapter(module)
        for module in model.modules()
        for adapter in adapters()
        if adapter.matches(module)
    ]
    name = type(model).__name__
    if not found:
        raise TypeError(f"{name} is not a supported model, nor contains one; {_supported()}")
    if len(found) > 1:
        raise TypeError(f"{name} contains {len(found)} backbones; call this on each of them")
    if (why := found[0].reason_against(model)) is not None:
        raise TypeError(f"{name} cannot be pruned: {why}; {_supported()}")
    return found[0]


def _supported() -> str:
    families = (f"{a.family} ({', '.join(a.classes)})" for a in adapters())
    return f"supported: {'; '.join(families)}, or any module that contains one of these"
