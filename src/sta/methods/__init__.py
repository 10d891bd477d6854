"""The methods: one file each, with its settings and how it chooses; and their registry.

`base` says what a method may ask of a backbone and what it answers. Every file here that registers
a method is found when the package is imported. docs/adding-a-method.md walks through writing one.
"""

from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from sta.methods.base import (
    METHODS,
    PRESETS,
    Choice,
    Config,
    Fill,
    Layout,
    Pool,
    Similarity,
    Site,
    Step,
    WindowQueries,
    has_r,
    make_config,
    method_names,
    r_of,
    register,
    title_of,
)
from sta.methods.dense import DenseConfig
from sta.methods.frame_difference import FrameDifferenceConfig
from sta.methods.random import RandomConfig
from sta.methods.released import ReleasedConfig
from sta.methods.sta import STAConfig
from sta.methods.stepped import SteppedConfig
from sta.methods.tome import ToMeConfig
from sta.methods.ward import WardConfig

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
for _plugin in entry_points(group="sta.methods"):  # of other installed packages
    _plugin.load()
PRESETS["paper"] = STAConfig.paper
# In the order in which tables list them: ours and the paper's first, then by name.
_first = ("sta", "ward", "released", "random", "dense")
_order = [*_first, *sorted(METHODS.keys() - set(_first))]
METHODS.update({_name: METHODS.pop(_name) for _name in _order})
globals().update({_config.__name__: _config for _config in METHODS.values()})

__all__ = [
    "METHODS",
    "PRESETS",
    "Choice",
    "Config",
    "DenseConfig",
    "Fill",
    "FrameDifferenceConfig",
    "Layout",
    "Pool",
    "RandomConfig",
    "ReleasedConfig",
    "STAConfig",
    "Similarity",
    "Site",
    "Step",
    "SteppedConfig",
    "ToMeConfig",
    "WardConfig",
    "WindowQueries",
    "has_r",
    "make_config",
    "method_names",
    "r_of",
    "register",
    "title_of",
]
