"""Ward merging: tokens whose merging loses least become their mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import Choice, Layout, Need, Site, Step, register
from sta.methods.bipartite import BipartiteConfig
from sta.methods.stepped import plan_staged


@register
@dataclass(frozen=True)
class WardConfig(BipartiteConfig):
    """Merging at the least cost: Ward's criterion, weighed by what a token means.

    Merging two tokens loses what they differ by, times the harmonic mean of how many each stands
    for (Ward's criterion), times how far the token that goes deviates from the clip's mean: STA's
    semantic score. Each even-numbered token looks for the odd-numbered one of the whole clip that
    costs least, in every block between attention and MLP; the cheapest go. Earlier blocks merge
    more than later ones: the first twice as many as the last.

    On Swin, tokens become regions of neighbours once a stage, after each patch merging. A region's
    mean stands for it in the linear layers and at all its places in the windows, and what it gains
    in the stage is added to each of its tokens.

    Attributes:
        r: Saves about what STA's r does: all blocks together merge 2.5 r tokens of a frame away,
            wherever in the clip they are; a block at most half of what is left. On Swin: tokens
            of a frame merged away at the first patch merging, and the same share at later ones.
        proportional: Let a merged token weigh in attention as the tokens it stands for; on Swin it
            always does.
    """

    method: ClassVar[str] = "ward"
    title: ClassVar[str] = "Ward"
    colour: ClassVar[str] = "#2a9d8f"
    r_counts: ClassVar[str] = (
        "2.5 r tokens per frame merged by all blocks, which costs what STA's r does; on Swin r "
        "at the first patch merging"
    )
    needs: ClassVar[frozenset[Need]] = frozenset({"merge"})
    tuned: ClassVar[bool] = True  # it changed least wherever it was measured at half the GFLOPs

    def merges(self, r: int, frames: int, blocks: int) -> list[int]:
        line = [2 - block / max(1, blocks - 1) for block in range(blocks)]
        return [round(2.5 * r * frames * share / sum(line)) for share in line]

    def plan(self, layout: Layout) -> Sequence[Step]:
        return plan_staged(self, layout, "even") if layout.staged else super().plan(layout)

    def choose(self, site: Site) -> Choice:
        from sta.core.merge import ward_regions, ward_step

        if site.staged:
            keep = site.grid.frames * (site.grid.tokens - site.drop)
            return Choice(*ward_regions(site.tokens, site.grid, keep))
        return Choice(*ward_step(site.tokens, site.sizes, site.drop))
