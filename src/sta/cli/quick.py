"""A quick start of commands that run a model: transformers without what they never use.

Importing a model of transformers also imports its parts for serving, sharding and compiling
language models. They are asked for by statements at the top of its modules, so that nothing but
another module in their place keeps them out. Of 4.6 s of processor time until VideoMAE is imported,
1.6 s are torch and 1.8 s are these parts; without them `sta predict` on one file stays under 4 s.
Whoever asks for them later, the compiler say, gets the real ones.
"""

from __future__ import annotations

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
#: Modules that it imports without using them here, and the names that it takes from them.
_UNUSED = {
    "torch._dynamo": (),
    "torch._dynamo._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",),
    "transformers.generation.continuous_batching": ("PagedAttentionCache", "ContinuousMixin"),
    "transformers.generation.continuous_batching.cache": ("PagedAttentionCache",),
}
#: Of `torch._dynamo`, for what is compiled.
_DECORATORS = ("allow_in_graph", "assume_constant_result", "disable", "disallow_in_graph")


def _unchanged(function: Any = None, *_: object, **__: object) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return function or (lambda decorated: decorated)


@contextmanager
def without_unused() -> Iterator[None]:
    """Inside, transformers' models are imported without what running them does not need."""
    import torch.distributed

    others: dict[str, ModuleType | None] = dict.fromkeys(_OPTIONAL)  # None: not installed
    for module, names in _UNUSED.items():
        others[module] = stand_in = ModuleType(module)
        vars(stand_in).update({name: type(name, (), {}) for name in names})
    vars(others["torch._dynamo"]).update(dict.fromkeys(_DECORATORS, _unchanged))
    others = {name: other for name, other in others.items() if name not in sys.modules}
    sys.modules.update(others)  # type: ignore[arg-type]
    utils: Any = import_module("transformers.utils")
    distributed, flex = torch.distributed.is_available, utils.is_torch_flex_attn_available
    torch.distributed.is_available = utils.is_torch_flex_attn_available = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_available, utils.is_torch_flex_attn_available = distributed, flex
        for name, other in others.items():
            if sys.modules.get(name) is other:
                del sys.modules[name]


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
