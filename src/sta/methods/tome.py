"""Token merging (ToMe): similar tokens become their mean, in every block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import (
    Choice,
    Config,
    Layout,
    Need,
    Similarity,
    Site,
    Step,
    check_count,
    register,
)


@register
@dataclass(frozen=True)
class ToMeConfig(Config):
    """Token merging: bipartite soft matching over all tokens of the clip, in every block.

    Attributes:
        r: Tokens merged away per block, in the whole clip.
        proportional: Let a merged token weigh in attention as the tokens it stands for.
    """

    method: ClassVar[str] = "tome"
    title: ClassVar[str] = "ToMe"
    colour: ClassVar[str] = "#e0913b"
    r_counts: ClassVar[str] = "tokens merged per block, of the whole clip"
    needs: ClassVar[frozenset[Need]] = frozenset({"clip", "merge"})
    similarity: ClassVar[Similarity] = "key"  # type: ignore[misc]

    r: int = 0
    proportional: bool = False

    def __post_init__(self) -> None:
        check_count("r", self.r)

    @property
    def weighs_attention(self) -> bool:  # type: ignore[override]
        """Whether a merged token weighs in attention as the tokens it stands for."""
        return self.proportional

    def plan(self, layout: Layout) -> Sequence[Step]:
        assert layout.grid is not None
        self._check_room(layout.grid.frames * layout.grid.tokens, layout.blocks)
        return [Step(block, self.r, inside=True) for block in range(1, layout.blocks + 1)]

    def dropped(self, layout: Layout) -> int:
        return sum(step.drop for step in self.plan(layout))

    def choose(self, site: Site) -> Choice:
        from sta.core.merge import match_step

        self._check_room(site.tokens.shape[1] + site.step * site.drop, site.steps)
        return Choice(*match_step(site.features("key"), site.drop))

    def _check_room(self, tokens: int, blocks: int) -> None:
        """Refuse an r over half of what is left in a block, of which it can merge no more."""
        r = self.r
        if r * (blocks + 1) <= tokens:
            return
        block = max(0, tokens // r - 1)  # blocks before it that can merge r
        raise ValueError(
            f"r={r} is over half of the {tokens - block * r} tokens left at block {block + 1}: "
            f"ToMe merges r of the clip's {tokens} away in each of {blocks} blocks; "
            f"use r <= {tokens // (blocks + 1)}"
        )
