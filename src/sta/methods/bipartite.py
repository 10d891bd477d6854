"""Methods that merge pairs of tokens in every block: how many each block merges away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import Config, Layout, Need, Step, check_count
from sta.methods.stepped import largest


@dataclass(frozen=True)
class BipartiteConfig(Config):
    """Settings of methods that merge even-numbered tokens of the clip into odd-numbered ones."""

    needs: ClassVar[frozenset[Need]] = frozenset({"clip", "merge"})

    r: int = 0
    proportional: bool = True

    def __post_init__(self) -> None:
        check_count("r", self.r)

    @property
    def weighs_attention(self) -> bool:  # type: ignore[override]
        return self.proportional

    def merges(self, r: int, frames: int, blocks: int) -> list[int]:
        """Tokens of the clip that each block merges away, if there are enough."""
        raise NotImplementedError

    def plan(self, layout: Layout) -> Sequence[Step]:
        assert layout.grid is not None
        frames, blocks = layout.grid.frames, layout.blocks
        whole = left = frames * layout.grid.tokens
        wanted = self.merges(self.r, frames, blocks)
        if wanted[0] > whole // 2:
            most = largest(lambda r: self.merges(r, frames, blocks)[0] <= whole // 2, self.r)
            raise ValueError(
                f"r={self.r} is too many: {self.title} would merge {wanted[0]} of the clip's "
                f"{whole} tokens away in block 1, more than half; use r <= {most}"
            )
        steps = []
        for block, drop in enumerate(wanted, start=1):
            steps.append(Step(block, min(drop, left // 2), inside=True))
            left -= steps[-1].drop
        return steps

    def dropped(self, layout: Layout) -> int:
        return sum(step.drop for step in self.plan(layout))
