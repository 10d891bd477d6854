"""Random dropping: the baseline to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import Choice, Site, check_seed, register
from sta.methods.stepped import SteppedConfig


@register
@dataclass(frozen=True)
class RandomConfig(SteppedConfig):
    """Random dropping with STA's counts per frame and step.

    Attributes:
        r: Tokens dropped per frame at the first step.
        schedule: As STA's, and so are blocks, fill, budget and merge.
        seed: Of the choice.
    """

    method: ClassVar[str] = "random"
    title: ClassVar[str] = "Random"
    colour: ClassVar[str] = "#9aa0a6"
    r_counts: ClassVar[str] = "tokens dropped per frame at the first step"

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)

    def choose(self, site: Site) -> Choice:
        from sta.core.noise import derive
        from sta.core.step import random_step

        batch, rows, _ = site.tokens.shape
        # Over the clip, it is one long frame.
        frames = 1 if self.budget == "clip" else site.grid.frames
        drop = site.drop * site.grid.frames // frames
        seed, device = derive(self.seed, site.step), site.tokens.device
        kept = random_step(batch, frames, rows // frames, drop, seed=seed, device=device)
        return Choice(kept.squeeze(1) if self.budget == "clip" else kept)
