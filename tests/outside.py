"""A method that the package does not know, registered from outside; the suite runs it, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sta.methods import Choice, Site, SteppedConfig, register


@register
@dataclass(frozen=True)
class LargestConfig(SteppedConfig):
    """Keep the tokens of each frame with the largest norm."""

    method: ClassVar[str] = "largest"
    title: ClassVar[str] = "Largest norm"

    def choose(self, site: Site) -> Choice:
        norms = site.frames(site.tokens.detach()).norm(dim=-1)  # (B, T, N)
        order = norms.argsort(dim=-1, descending=True, stable=True)
        return Choice(order[..., : norms.shape[-1] - site.drop].sort(-1).values)
