"""Comparing methods at the same cost: the setting whose GFLOPs come closest to a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from torch import nn

from sta.backbones.copies import meta_copy
from sta.backbones.patch import apply
from sta.measure.flops import gflops
from sta.methods import Config, make_config


def match_gflops(
    model: nn.Module | Callable[[], nn.Module],
    input_shape: Sequence[int],
    target_gflops: float,
    method: str | Callable[[int], Config],
) -> Config:
    """The settings of a method whose GFLOPs come closest to a target.

    Counted on the meta device by bisection, so it takes no weights and about a dozen counts. The
    method's r is a whole number: `sta.gflops` of the result tells how close it came.

    Args:
        model: The model, which is left as it is, or a function that builds it.
        input_shape: Of a clip, as `sta.gflops` takes it.
        target_gflops: What to come close to, e.g. the GFLOPs of the model with STA.
        method: Its name, e.g. "tome", or a function from r to a config; GFLOPs must fall with r.

    Returns:
        The config. r is 0 where the target is the unpruned model's cost or more, and the largest
        that fits the model where the method cannot get as low as the target.

    Raises:
        ValueError: The method cannot be applied to this model at all.
    """
    make = partial(make_config, method) if isinstance(method, str) else method
    skeleton = meta_copy(model if isinstance(model, nn.Module) else model())

    def count(r: int) -> float:
        return gflops(apply(skeleton, make(r)), input_shape)

    count(0)  # a method that the model refuses altogether says why
    if make(1) == make(0):  # it has no r, as dense has none
        return make(0)

    @cache
    def cost(r: int) -> float | None:
        """GFLOPs at r, None where so many tokens cannot be dropped."""
        try:
            return count(r)
        except ValueError:
            return None

    def too_much(r: int) -> bool:
        found = cost(r)
        return found is None or found < target_gflops

    high = 1
    while not too_much(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if too_much(middle) else (middle, high)
    costs = {r: found for r in (low, high) if (found := cost(r)) is not None}
    return make(min(costs, key=lambda r: abs(costs[r] - target_gflops)))
