"""A quick start of commands that run a model: transformers without what they never use.

Importing one of transformers' models also imports its parts for serving, sharding and compiling
language models, which take longer than everything else together. Commands that only run a model get
stand-ins for those; whoever asks for the parts later, the compiler say, gets the real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

EXPORTED = (".onnx", ".xml", ".pt2")
#: Packages that transformers uses where they are installed.
_OPTIONAL = ("accelerate", "kernels", "peft", "scipy", "torchvision", "triton")
#: Modules that it imports whether or not it uses them.
_UNUSED = (
    "torch._dynamo",
    "torch.nn.attention.flex_attention",
    "transformers.generation.continuous_batching",
)


class _Name(type):
    """Whatever is imported from a stand-in: a class that nothing is an instance of."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and callable(args[0]) and not isinstance(args[0], type):
            return args[0]  # it decorates
        return object.__new__(cls)  # type: ignore[arg-type]


class _StandIn(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {"__call__": lambda self, decorated, *args, **kwargs: decorated})


class _Finder(MetaPathFinder, Loader):
    """Gives stand-ins to transformers' own modules, and to nobody else."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        _list_models_once()
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in _UNUSED):
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if not str(frame.f_globals.get("__name__")).startswith("transformers"):
            return None
        self.made.append(fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _list_models_once() -> None:
    """transformers reads all its files for lists of models, through a cache too small for them.

    With one that holds them all, its second list is not read again.
    """
    utils: Any = sys.modules.get("transformers.utils.import_utils")
    listing: Any = getattr(utils, "create_import_structure_from_path", None)
    if hasattr(listing, "cache_parameters") and listing.cache_parameters()["maxsize"] is not None:
        utils.create_import_structure_from_path = cache(listing.__wrapped__)


@contextmanager
def without_unused() -> Iterator[list[str]]:
    """Inside, transformers' models are imported without what running them does not need.

    Yields:
        Names of the modules that were stood in for.
    """
    import torch.distributed

    finder = _Finder()
    distributed, torch.distributed.is_available = torch.distributed.is_available, lambda: False
    hidden = [name for name in _OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: not installed
    sys.meta_path.insert(0, finder)
    try:
        yield finder.made
    finally:
        torch.distributed.is_available = distributed
        sys.meta_path.remove(finder)
        for name in hidden:
            if sys.modules[name] is None:
                del sys.modules[name]
        for name in finder.made:
            sys.modules.pop(name, None)
            parent, _, child = name.rpartition(".")
            if isinstance(vars(sys.modules.get(parent, sys)).get(child), _StandIn):
                delattr(sys.modules[parent], child)


def start(model: str, settings: Sequence[str] | None = None) -> None:
    """Import what transformers' models share, unless the model has no use for it.

    Args:
        model: What the command was given.
        settings: Fields of its config that are set.
    """
    path = Path(model)
    config = path / "config.json"
    text = config.read_text(errors="replace") if config.is_file() else ""
    others = path.suffix in EXPORTED or "swin" in model or '"swin3d"' in text
    # Flex attention is compiled: it needs what is left out here.
    if others or "flex" in f"{text} {settings}" or "transformers" in sys.modules:
        return
    with without_unused():
        import_module("transformers.modeling_layers")
