"""Weights of a method's own: modules that are trained with a model and live in it.

Such a module is a child, by the method's name, of the module that makes tokens of pixels. It is
saved and loaded with the model, which does not run it unless the method is applied.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from sta.backbones import Adapter, find
from sta.methods import METHODS, Config


def add_learned(model: nn.Module, config: Config) -> nn.Module | None:
    """Give a model the untrained weights of a method, unless it has them: for training.

    Gives the module that has them; None for a method without weights of its own. Refuses a method
    that the model cannot run.
    """
    adapter = find(model)
    adapter.check(config)
    if not config.learns:
        return None
    if not hasattr(adapter.home[0], config.method):
        _add(adapter, type(config))
    module: nn.Module = getattr(adapter.home[0], config.method)
    return module


def add_stored(model: nn.Module, names: Iterable[str]) -> None:
    """Make place for the weights of methods that are among a checkpoint's tensors."""
    adapter = find(model)
    home = adapter.home[0]
    prefix = next(f"{name}." for name, module in model.named_modules() if module is home)
    for method, config in METHODS.items():
        if config.learns and any(name.startswith(f"{prefix}{method}.") for name in names):
            _add(adapter, config)


def _add(adapter: Adapter, config: type[Config]) -> None:
    home, width = adapter.home
    like = next(home.parameters())
    module = config.learned(width).to(like).train(home.training)
    home.add_module(config.method, module)
