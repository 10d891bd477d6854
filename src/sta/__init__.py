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
from sta.patch import apply, kept, remove, restore
from sta.version import __version__

__all__ = [
    "Config",
    "DenseConfig",
    "FrameDifferenceConfig",
    "RandomConfig",
    "STAConfig",
    "ToMeConfig",
    "__version__",
    "apply",
    "kept",
    "prune_step",
    "remove",
    "restore",
]
