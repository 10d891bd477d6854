"""Methods that merge pairs of tokens in every block: how many each block merges away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import Config, Layout, Need, Step, check_count
from sta.methods.stepped import largest


@dataclass(frozen=True)
class BipartiteConfig(Config):
    """Settings of methods that merge even-numbered tokens of the clip into odd-numbered ones.

    Attributes:
        r: Tokens merged away per block, in the whole clip; on average, where blocks differ. A block
            merges at most half of what is left.
        proportional: Let a merged token weigh in attention as the tokens it stands for.
    """

    r_counts: ClassVar[str] = "tokens merged per block, of the whole clip"
    needs: ClassVar[frozenset[Need]] = frozenset({"clip", "merge"})
    #: What the last block merges of what the first does; the blocks between lie on a line.
    falls_to: ClassVar[float] = 1.0

    r: int = 0
    proportional: bool = True

    def __post_init__(self) -> None:
        check_count("r", self.r)

    @property
    def weighs_attention(self) -> bool:  # type: ignore[override]
        """Whether a merged token weighs in attention as the tokens it stands for."""
        return self.proportional

    def plan(self, layout: Layout) -> Sequence[Step]:
        assert layout.grid is not None
        shares = self._shares(layout.blocks)
        wanted = [round(self.r * share) for share in shares]
        whole = left = layout.grid.frames * layout.grid.tokens
        if wanted[0] > whole // 2:
            most = largest(lambda r: round(r * shares[0]) <= whole // 2, self.r)
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

    def _shares(self, blocks: int) -> list[float]:
        """What each block merges, as a multiple of r; one on average."""
        falls = (1 - self.falls_to) / max(1, blocks - 1)
        line = [1 - falls * block for block in range(blocks)]
        return [share * blocks / sum(line) for share in line]
