"""sta: video transformers about twice as fast, without retraining.

>>> import sta
>>> sta.apply(model, sta.STAConfig(r=64))  # in place
>>> logits = model(pixel_values).logits  # your code does not change
>>> sta.kept(model)  # per step, the grid indices of the tokens that stayed
>>> sta.remove(model)  # the original model again

The names below are imported when they are first used, so that `sta --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from sta.version import __version__

if TYPE_CHECKING:
    from sta import runtime
    from sta.backbones.zoo import load
    from sta.core.step import prune_step
    from sta.measure.bench import bench
    from sta.measure.flops import gflops
    from sta.methods import (
        Config,
        DenseConfig,
        FrameDifferenceConfig,
        RandomConfig,
        STAConfig,
        ToMeConfig,
    )
    from sta.patch import apply, kept, remove, restore
    from sta.runtime.export import export
    from sta.tuning.ablation import ablate
    from sta.tuning.tune import tune

__all__ = [
    "Config",
    "DenseConfig",
    "FrameDifferenceConfig",
    "RandomConfig",
    "STAConfig",
    "ToMeConfig",
    "__version__",
    "ablate",
    "apply",
    "bench",
    "export",
    "gflops",
    "kept",
    "load",
    "prune_step",
    "remove",
    "restore",
    "runtime",
    "tune",
]

_HOME = {
    "prune_step": "sta.core.step",
    "ablate": "sta.tuning.ablation",
    "bench": "sta.measure.bench",
    "export": "sta.runtime.export",
    "gflops": "sta.measure.flops",
    "load": "sta.backbones.zoo",
    "tune": "sta.tuning.tune",
    **dict.fromkeys(("apply", "kept", "remove", "restore"), "sta.patch"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sta' has no attribute {name!r}")
    if name == "runtime":  # a package, whose functions are public as they are
        return import_module("sta.runtime")
    value = getattr(import_module(_HOME.get(name, "sta.methods")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
