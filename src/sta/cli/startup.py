"""Import transformers' models without what running them never uses.

It loads the compiler, flex attention, sharding and the server for language models, and no setting
leaves them out: `sta predict` on one file takes 5.2 s of processor time with them, 2.9 s without
(transformers 5.23). So placeholders stand in `sys.modules` while it is imported; whoever asks for
these modules later gets the real ones.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

EXPORTED = (".onnx", ".xml", ".pt2")
#: Packages that transformers uses where they are installed.
_OPTIONAL = ("accelerate", "kernels", "peft", "scipy", "torchvision", "triton")
#: Modules that it imports whether or not it uses them.
_UNUSED = (
    "torch._dynamo",
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch.nn.attention.flex_attention",
    "transformers.generation.continuous_batching",
    "transformers.generation.continuous_batching.cache",
)


class _AnyClass(type):
    """What a placeholder has for every name: a class of no instances, which may also decorate."""

    def __call__(cls, decorated: Any = None, *args: Any, **kwargs: Any) -> Any:
        return (lambda function: function) if decorated is None else decorated


class _Placeholder(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


@contextmanager
def without_unused() -> Iterator[None]:
    """Inside, transformers' models are imported without what running them does not need."""
    import torch.distributed

    absent: dict[str, Any] = dict.fromkeys(_OPTIONAL)  # None in sys.modules: not installed
    absent |= {name: _Placeholder(name) for name in _UNUSED}
    absent = {name: module for name, module in absent.items() if name not in sys.modules}
    distributed, torch.distributed.is_available = torch.distributed.is_available, lambda: False
    sys.modules.update(absent)
    try:
        yield
    finally:
        torch.distributed.is_available = distributed
        for name in absent:
            del sys.modules[name]


@contextmanager
def without_collecting() -> Iterator[None]:
    """Inside, modules are imported without looking for garbage; later collections pass them over.

    Imports make 370,000 objects that stay. Looking through them again and again, and once more at
    the end of the process, took a fifth of `sta predict` on one file.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def start(
    command: str, model: str, settings: Sequence[str] | None = None, engine: str | None = None
) -> None:
    """Import the module of a command that runs a model, and what it needs, as fast as possible.

    Where an `engine` in this process decodes, another core starts its first decoder meanwhile.
    """
    if engine == "local":
        from sta.video.process import start_early

        start_early()
    with without_collecting():
        import_transformers(model, settings)
        import_module(command)


def import_transformers(model: str, settings: Sequence[str] | None = None) -> None:
    """Import what transformers' models share, unless the model has no use for it."""
    path = Path(model)
    config = path / "config.json"
    text = config.read_text(errors="replace") if config.is_file() else ""
    others = path.suffix in EXPORTED or "swin" in model or '"swin3d"' in text
    # Flex attention is compiled: it needs what is left out here.
    if others or "flex" in f"{text} {settings}" or "transformers" in sys.modules:
        return
    try:
        with without_unused():
            import_module("transformers.modeling_layers")
    except Exception:  # another release of transformers, which does use them: import it whole
        for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
            del sys.modules[name]
