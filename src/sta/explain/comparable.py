"""Methods that can be compared: settings that leave as many tokens as another method's do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from torch import nn

from sta.backbones import find
from sta.backbones.zoo.video_model import VideoModel, describe
from sta.explain.inspect import titled
from sta.measure.matching import cost_counter, match_gflops
from sta.methods import Config, Layout, STAConfig, SteppedConfig, make_config, r_of


def comparable_config(model: nn.Module, name: str, config: Config) -> Config:
    """Another method with settings that leave about as many tokens at the end as `config` does.

    The number r means something else to every method: tokens per frame of the first of three
    steps, of the only step, or of the whole clip in every block, or frames. This translates.
    """
    layout = find(model).layout
    other = make_config(name, r_of(config))
    if "fill" in _fields(other) & _fields(config):
        other = replace(other, fill=config.fill)  # type: ignore[call-arg]
    if not other.drops or name == config.method:
        return other
    if layout.staged:
        # Methods that drop tokens share their counts; to frames, tokens compare by their cost.
        if "frames" not in other.requires ^ config.requires:
            return other
        shape = describe(model).clip.shape()
        return match_gflops(model, shape, cost_counter(model, shape)(config), name)
    target = config.dropped(layout)

    def too_many(r: int) -> bool:
        try:
            return replace(other, r=r).dropped(layout) > target  # type: ignore[call-arg]
        except ValueError:
            return True

    assert layout.grid is not None
    most = layout.grid.frames * layout.grid.tokens
    high = bisect_left(range(most), True, key=too_many)
    choices = [replace(other, r=r) for r in (high - 1, high) if r >= 0]  # type: ignore[call-arg]
    fitting = [one for one in choices if not too_many(one.r) or _fits(one, layout)]  # type: ignore[attr-defined]
    return min(fitting, key=lambda one: abs(one.dropped(layout) - target))


def _fits(config: Config, layout: Layout) -> bool:
    try:
        config.plan(layout)
    except ValueError:
        return False
    return True


def _fields(config: Config) -> set[str]:
    return {field.name for field in fields(config)}


def comparable_configs(
    opened: VideoModel,
    method: str = "sta",
    r: int | None = None,
    compare: Sequence[str | Config] = (),
    config: Config | str | Path | None = None,
) -> dict[str, Config]:
    """A method and others to compare it with, by title.

    Without an r, about a third of the tokens is dropped. Other methods that are given by name get
    to keep as many tokens; configs stay as they are. `config` stands instead of `method` and `r`.
    """
    if config is not None:
        if r is not None or method != "sta":
            raise ValueError("config has a method and its r: leave out method and r")
        main = config if isinstance(config, Config) else Config.from_file(config)
    elif r is not None:
        main = make_config(method, r)
        if isinstance(main, SteppedConfig) and r > (most := opened.largest_r):
            raise ValueError(f"r={r} leaves no tokens at one of the steps; use r <= {most}")
    else:
        main = comparable_config(opened.model, method, STAConfig(r=opened.default_r))
    others = [
        other if isinstance(other, Config) else comparable_config(opened.model, other, main)
        for other in compare
    ]
    return titled([main, *others])
