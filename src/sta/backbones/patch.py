"""The plug-in: put a method into a model, take it out, read what it kept.

A method may have weights of its own, in a module that is trained with the model and lives in it: a
child, by the method's name, of the module that makes tokens of pixels. It is saved and loaded with
the model, which does not run it unless the method is applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeVar

from torch import Tensor, nn

from sta.backbones import Adapter, find
from sta.backbones.hooks import RecordedTokens, remove_hooks
from sta.methods import METHODS, Config

M = TypeVar("M", bound=nn.Module)


def apply(model: M, config: Config) -> M:
    """Put a pruning method into a model, in place.

    The model's weights, class and call stay what they are; only tokens are dropped on the way.
    Applying again replaces what was applied before. `r=0` leaves the outputs as they were, bit
    for bit.

    Args:
        model: A supported backbone, or any module that contains one.
        config: The method, e.g. `sta.STAConfig(r=64)`.

    Returns:
        The model.

    Raises:
        TypeError: The model is not supported; the message lists what is.
        ValueError: The settings do not fit the model. The model is left as it was.
    """
    if not isinstance(config, Config):
        raise TypeError(
            f"config must be one of sta's configs, e.g. sta.STAConfig(r=64); "
            f"got {type(config).__name__}"
        )
    adapter = find(model)
    if hasattr(model, "_orig_mod"):
        raise TypeError("the model is already compiled; call sta.apply first, then torch.compile")
    placements = adapter.plan(config)  # what does not fit is said before anything is changed
    remove_hooks(model)
    for placement in placements:
        placement.put()
    return model


def remove(model: M) -> M:
    """Take the method out again: the original model, bit for bit. Does nothing if there is none."""
    find(model)
    remove_hooks(model)
    return model


def kept(model: nn.Module) -> list[Tensor]:
    """Which tokens each step kept in the last forward, of whichever thread.

    Returns:
        A tensor per step, int64, ascending: (B, T, K) indices into that frame's original grid.
        Methods that do not keep the same number in every frame (the released program, ToMe, a
        budget of the clip) give (B, K) indices into the whole clip's grid; where tokens are merged,
        the places that others merged into. Where clips keep different numbers (RLT), K is that of
        the longest, and a clip that keeps fewer repeats its last index.
    """
    return find(model).kept()


def restore(
    model: nn.Module, tokens: Tensor, *, fill: Literal["nearest", "delta"] = "nearest"
) -> Tensor:
    """Put kept tokens back onto the dense grid.

    Args:
        model: A model with a method applied, after a forward.
        tokens: (B, n, D), such as `last_hidden_state` or one of `hidden_states` of that forward.
        fill: What stands at dropped places. "nearest" is a copy of the nearest kept token. "delta"
            is the dropped token's own last value plus the mean change of the nearest kept ones
            since then; it needs `sta.record(model)` before the forward, and tokens that are a
            block's output, before the model's last norm.

    Returns:
        (B, T, N, D).
    """
    if fill == "nearest":
        return find(model).restore(tokens)
    if fill == "delta":
        return find(model).restore_delta(tokens)
    raise ValueError(f"fill={fill!r} is unknown: use nearest or delta")


def record(model: M) -> M:
    """Let a model's steps hold what they receive, for `sta.restore(..., fill="delta")`.

    Each step that drops tokens holds them all until the next forward, and one that merges also what
    it makes of them. `sta.remove`, or applying anew, ends it.

    Args:
        model: A model with a method applied.

    Returns:
        The model.

    Raises:
        ValueError: No method is applied.
    """
    steps = find(model).steps
    if not steps:
        raise ValueError("no method is applied to this model; call sta.apply(model, config) first")
    for step in steps:
        step.observe = RecordedTokens()
    return model


def add_learned(model: nn.Module, config: Config) -> nn.Module | None:
    """Give a model the untrained weights of a method, unless it has them: for training.

    Gives the module that has them; None for a method without weights of its own. Refuses a method
    that the model cannot run.
    """
    adapter = find(model)
    adapter.check(config)
    if not config.learns:
        return None
    if not hasattr(adapter.learned_home[0], config.method):
        _add(adapter, type(config))
    module: nn.Module = getattr(adapter.learned_home[0], config.method)
    return module


def add_stored(model: nn.Module, names: Iterable[str]) -> None:
    """Make place for the weights of methods that are among a checkpoint's tensors."""
    adapter = find(model)
    home = adapter.learned_home[0]
    prefix = next(f"{name}." for name, module in model.named_modules() if module is home)
    for method, config in METHODS.items():
        if config.learns and any(name.startswith(f"{prefix}{method}.") for name in names):
            _add(adapter, config)


def _add(adapter: Adapter, config: type[Config]) -> None:
    home, width = adapter.learned_home
    like = next(home.parameters())
    module = config.learned(width).to(like).train(home.training)
    home.add_module(config.method, module)
