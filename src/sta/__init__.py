"""sta: video transformers about twice as fast, without retraining.

>>> import sta
>>> sta.apply(model, sta.STAConfig(r=64))  # in place
>>> logits = model(pixel_values).logits  # your code does not change
>>> sta.kept(model)  # per step, the grid indices of the tokens that stayed
>>> sta.remove(model)  # the original model again

The names below are imported when they are first used, so that `sta --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sta.version import __version__

if TYPE_CHECKING:
    from sta import runtime
    from sta.backbones.patch import apply, kept, record, remove, restore
    from sta.backbones.zoo import load
    from sta.core.step import prune_step
    from sta.explain.analysis import analyze
    from sta.explain.show import show
    from sta.explain.timeline import timeline
    from sta.inference.evaluate import evaluate
    from sta.inference.features import features
    from sta.inference.predict import predict
    from sta.inference.segments import segments
    from sta.inference.stream import Stream
    from sta.measure.bench import bench
    from sta.measure.flops import gflops
    from sta.methods import (
        Config,
        DenseConfig,
        FrameDifferenceConfig,
        RandomConfig,
        ReleasedConfig,
        STAConfig,
        ToMeConfig,
        WardConfig,
    )
    from sta.runtime.export import export
    from sta.tuning.ablation import ablate
    from sta.tuning.compare import compare
    from sta.tuning.fit import fit
    from sta.tuning.tune import tune

__all__ = [
    "Config",
    "DenseConfig",
    "FrameDifferenceConfig",
    "RandomConfig",
    "ReleasedConfig",
    "STAConfig",
    "Stream",
    "ToMeConfig",
    "WardConfig",
    "__version__",
    "ablate",
    "analyze",
    "apply",
    "bench",
    "compare",
    "evaluate",
    "export",
    "features",
    "fit",
    "gflops",
    "kept",
    "load",
    "predict",
    "prune_step",
    "record",
    "remove",
    "restore",
    "runtime",
    "segments",
    "show",
    "timeline",
    "tune",
]

_HOME = {
    "analyze": "sta.explain.analysis",
    "show": "sta.explain.show",
    "timeline": "sta.explain.timeline",
    "prune_step": "sta.core.step",
    "ablate": "sta.tuning.ablation",
    "bench": "sta.measure.bench",
    "compare": "sta.tuning.compare",
    "fit": "sta.tuning.fit",
    "export": "sta.runtime.export",
    "gflops": "sta.measure.flops",
    "evaluate": "sta.inference.evaluate",
    "features": "sta.inference.features",
    "predict": "sta.inference.predict",
    "segments": "sta.inference.segments",
    "Stream": "sta.inference.stream",
    "load": "sta.backbones.zoo",
    "tune": "sta.tuning.tune",
    **dict.fromkeys(("apply", "kept", "record", "remove", "restore"), "sta.backbones.patch"),
}


def __getattr__(name: str) -> Any:
    if name == "runtime":  # a package, whose functions are public as they are
        return import_module("sta.runtime")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name == "Config" or name in __all__ or name.endswith("Config"):
        methods = import_module("sta.methods")
        if not hasattr(methods, name):
            raise AttributeError(f"module 'sta' has no attribute {name!r}")
        value = getattr(methods, name)  # a method's config, also of methods that come later
    else:
        raise AttributeError(f"module 'sta' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
