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
        schedule: As STA's, and so are blocks and fill.
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
        frames = site.grid.frames
        seed = derive(self.seed, site.step)
        return Choice(
            random_step(
                batch, frames, rows // frames, site.drop, seed=seed, device=site.tokens.device
            )
        )
