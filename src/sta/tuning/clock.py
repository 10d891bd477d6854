"""Speed-ups on this machine, each contender in turn with the unpruned model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

import sta
from sta.backbones.copies import shared_copy
from sta.backbones.zoo.video_model import VideoModel
from sta.measure.timing import interleave, speedup
from sta.methods import Config
from sta.tuning.search import Clock


def make_clock(opened: VideoModel, clip: Tensor, rounds: int = 9) -> Clock:
    """A clock for a model, which must have no method applied.

    Args:
        opened: The model.
        clip: Pixels in its layout, as many as one forward takes.
        rounds: How often each contender is timed.
    """

    def clock(configs: Sequence[Config]) -> list[float]:
        runs: dict[Config | None, Callable[[], object]] = {None: partial(opened.model, clip)}
        for config in configs:
            runs[config] = partial(sta.apply(shared_copy(opened.model), config), clip)
        timings = interleave(runs, rounds=rounds, device=clip.device)
        return [speedup(timings, config, None) for config in configs]

    return clock
