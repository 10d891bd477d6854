"""What the steps of every backbone offer to methods: see `sta.methods.base.Site`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones.hooks import Hook, StepHook, ThreadLocalTensor
from sta.core.tokens import Grid


class StepSite:
    """The tokens that reached a step, (B, n, D), on their grid."""

    staged = False

    def __init__(self, hook: StepHook, tokens: Tensor, grid: Grid) -> None:
        self.step, self.steps, self.drop = hook.number, hook.steps, hook.drop
        self.grid, self.tokens = grid, tokens
        self.sizes: Tensor | None = None
        self.learned: nn.Module | None = None
        self._method = type(hook.config).__name__

    def frames(self, x: Tensor) -> Tensor:
        """(B, n, D) -> (B, T, n / T, D)."""
        return x.reshape(x.shape[0], self.grid.frames, -1, x.shape[-1])

    def positions(self) -> Tensor:
        """Where on the grid each token belongs, (B, n), where all are there."""
        batch, rows, _ = self.tokens.shape
        return torch.arange(rows, device=self.tokens.device).expand(batch, -1)

    def captured(self, place: ThreadLocalTensor | None, what: str) -> Tensor:
        """What a hook of this forward left for methods that list it in `needs`."""
        found = None if place is None else place.get()
        if found is None:
            raise self.not_listed(what)
        return found

    def not_listed(self, what: str) -> TypeError:
        return TypeError(f"{self._method} asks for {what}, which it does not list in `needs`")


class CapturePixels(Hook):
    """A hook before the patch embedding that keeps the clip for the steps of this forward."""

    def __init__(self, frames_first: Callable[[Tensor], Tensor]) -> None:
        self.frames_first = frames_first  # of the embedding's first argument
        self.clip = ThreadLocalTensor()  # (B, F, C, H, W)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        clip: Tensor = args[0] if args else next(iter(kwargs.values()))
        if clip.ndim == 5:  # else the model itself says best what is wrong with it
            self.clip.put(self.frames_first(clip))


def head_mean(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """A projection of `x`, averaged over heads: (..., D) -> (..., head dim).

    The mean over heads is itself one linear map, made anew in every forward so that it follows
    training, `.to(...)` and weight loading. Only a choice of tokens is made of it, so nothing here
    has a gradient. `weight` is of the key, query or value projection, (heads * head dim, D).
    """
    weight = weight.detach().unflatten(0, (heads, -1)).mean(0)
    if bias is not None:
        bias = bias.detach().unflatten(0, (heads, -1)).mean(0)
    return F.linear(x.detach().to(weight.dtype), weight, bias)


def mean_over_heads(projected: Tensor, heads: int) -> Tensor:
    """The same of what was projected already: (..., heads * head dim) -> (..., head dim)."""
    return projected.unflatten(-1, (heads, -1)).mean(-2)
