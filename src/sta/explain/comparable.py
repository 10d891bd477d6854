"""Methods that can be compared: settings that leave as many tokens as another method's do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from torch import nn

from sta.backbones import find
from sta.backbones.vit import ViTAdapter
from sta.backbones.zoo.video_model import VideoModel
from sta.core.schedule import STEPS, drops
from sta.explain.inspect import titled
from sta.methods import Config, FrameDifferenceConfig, STAConfig, SteppedConfig, make_config


def default_r(opened: VideoModel) -> int:
    """A drop that about halves the work: as the paper's 64 of 196 tokens, a third."""
    return find(opened.model).tokens_per_frame(opened.clip.views.size)[0] // 3


def largest_r(opened: VideoModel) -> int:
    """The largest r that leaves a token at every step."""
    return find(opened.model).largest_r(STAConfig(), opened.clip.views.size)


def comparable_config(model: nn.Module, name: str, config: Config) -> Config:
    """Another method with settings that leave as many tokens at the end as `config` does.

    The number r means something else to every method: tokens per frame of the first of three
    steps, of the only step, or of the whole clip in every block. This translates.

    Args:
        model: A supported model.
        name: The other method's.
        config: The method to compare with.
    """
    r = int(getattr(config, "r", 0))
    adapter = find(model)
    if not isinstance(adapter, ViTAdapter) or name in ("dense", config.method):
        made = make_config(name, r)  # Swin's methods share their counts
        return replace(made, fill=config.fill) if _fills(made) and _fills(config) else made
    steps = min(STEPS, len(adapter.blocks))
    stepped = ("sta", "random", "released")
    if config.method in stepped:
        dropped: float = sum(drops(r, getattr(config, "schedule", "decreasing"), steps))
    elif config.method == "tome":
        dropped = r * len(adapter.blocks) / adapter.grid.frames
    else:
        dropped = r
    if name in stepped:
        choices = range(adapter.grid.tokens)
        best = min(choices, key=lambda c: abs(sum(drops(c, "decreasing", steps)) - dropped))
        return make_config(name, best)
    if name == "tome":
        return make_config(name, round(dropped * adapter.grid.frames / len(adapter.blocks)))
    return make_config(name, round(dropped))


def _fills(config: Config) -> TypeGuard[SteppedConfig | FrameDifferenceConfig]:
    """Does the method say what stands in for dropped tokens?"""
    return isinstance(config, SteppedConfig | FrameDifferenceConfig)


def comparable_configs(
    opened: VideoModel,
    method: str = "sta",
    r: int | None = None,
    compare: Sequence[str | Config] = (),
    config: Config | str | Path | None = None,
) -> dict[str, Config]:
    """A method and others to compare it with, by title.

    Args:
        opened: The model.
        method: The method's name.
        r: Its r; None drops about a third of the tokens.
        compare: Names of other methods, which get to keep as many tokens; or configs, as they are.
        config: A method with its settings, or a file with them, instead of `method` and `r`.
    """
    if config is not None:
        if r is not None or method != "sta":
            raise ValueError("config has a method and its r: leave out method and r")
        main = config if isinstance(config, Config) else Config.from_file(config)
    elif r is not None:
        main = make_config(method, r)
        if isinstance(main, SteppedConfig) and r > (most := largest_r(opened)):
            raise ValueError(f"r={r} leaves no tokens at one of the steps; use r <= {most}")
    else:
        main = comparable_config(opened.model, method, STAConfig(r=default_r(opened)))
    others = [
        other if isinstance(other, Config) else comparable_config(opened.model, other, main)
        for other in compare
    ]
    return titled([main, *others])
