"""sta: video transformers about twice as fast, without retraining.

>>> import sta
>>> sta.apply(model, sta.STAConfig(r=64))  # in place
>>> logits = model(pixel_values).logits  # your code does not change
>>> sta.kept(model)  # per step, the grid indices of the tokens that stayed
>>> sta.remove(model)  # the original model again
"""

from sta.config import (
    Config,
    DenseConfig,
    FrameDifferenceConfig,
    RandomConfig,
    STAConfig,
    ToMeConfig,
)
from sta.core.step import prune_step
from sta.flops import gflops
from sta.patch import apply, kept, remove, restore
from sta.version import __version__
from sta.zoo import load

__all__ = [
    "Config",
    "DenseConfig",
    "FrameDifferenceConfig",
    "RandomConfig",
    "STAConfig",
    "ToMeConfig",
    "__version__",
    "apply",
    "gflops",
    "kept",
    "load",
    "prune_step",
    "remove",
    "restore",
]
