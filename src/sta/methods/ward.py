"""Ward merging: in every block, the pairs whose merging loses least become their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import Choice, Site, register
from sta.methods.bipartite import BipartiteConfig


@register
@dataclass(frozen=True)
class WardConfig(BipartiteConfig):
    """Merging at the least cost: Ward's criterion, weighed by what a token means.

    Merging two tokens loses what they differ by, times the harmonic mean of how many each stands
    for (Ward's criterion), times how far the token that goes deviates from the clip's mean: STA's
    semantic score. Each even-numbered token looks for the odd-numbered one of the whole clip that
    costs least, in every block between attention and MLP; the cheapest go. Earlier blocks merge
    more than later ones: the first twice as many as the last.

    Attributes:
        r: Saves about what STA's r does: all blocks together merge 2.5 r tokens of a frame away,
            wherever in the clip they are; a block at most half of what is left.
        proportional: Let a merged token weigh in attention as the tokens it stands for.
    """

    method: ClassVar[str] = "ward"
    title: ClassVar[str] = "Ward"
    colour: ClassVar[str] = "#2a9d8f"
    r_counts: ClassVar[str] = "2.5 r tokens per frame merged by all blocks; costs what STA's r does"

    def merges(self, r: int, frames: int, blocks: int) -> list[int]:
        line = [2 - block / max(1, blocks - 1) for block in range(blocks)]
        return [round(2.5 * r * frames * share / sum(line)) for share in line]

    def choose(self, site: Site) -> Choice:
        from sta.core.merge import ward_step

        return Choice(*ward_step(site.tokens, site.sizes, site.drop))
