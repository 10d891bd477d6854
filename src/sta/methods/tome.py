"""Token merging (ToMe): similar tokens become their mean, in every block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import Choice, Similarity, Site, register
from sta.methods.bipartite import BipartiteConfig


@register
@dataclass(frozen=True)
class ToMeConfig(BipartiteConfig):
    """Token merging: bipartite soft matching over all tokens of the clip, in every block.

    Attributes:
        r: Tokens merged away per block, in the whole clip; at most half of what is left.
        proportional: Let a merged token weigh in attention as the tokens it stands for.
    """

    method: ClassVar[str] = "tome"
    title: ClassVar[str] = "ToMe"
    colour: ClassVar[str] = "#e0913b"
    r_counts: ClassVar[str] = "tokens merged per block, of the whole clip"
    similarity: ClassVar[Similarity] = "key"  # type: ignore[misc]

    def merges(self, r: int, frames: int, blocks: int) -> list[int]:
        return [r] * blocks

    def choose(self, site: Site) -> Choice:
        from sta.core.merge import match_step

        return Choice(*match_step(site.features("key"), site.drop))
