"""The authors' published program, which differs from the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sta.core.schedule import STEPS, spread_blocks
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
from sta.methods.stepped import largest


@register
@dataclass(frozen=True)
class ReleasedConfig(Config):
    """The authors' published program for VideoMAE, to the last digit.

    It regroups frames: 8 groups of tokens, then 4, then 2, and drops r of each, so the same totals
    as r, r/2, r/4 per frame. Its semantic score is by the L1 norm.

    Attributes:
        r: Tokens dropped per group.
    """

    method: ClassVar[str] = "released"
    title: ClassVar[str] = "Released program"
    colour: ClassVar[str] = "#b07aa1"
    r_counts: ClassVar[str] = "tokens dropped per group of frames at each step"
    needs: ClassVar[frozenset[Need]] = frozenset({"clip"})
    eager_attention: ClassVar[bool] = True
    embeds_patches: ClassVar[bool] = False  # it stays the authors', to the last digit
    similarity: ClassVar[Similarity] = "key"  # type: ignore[misc]

    r: int = 0

    def __post_init__(self) -> None:
        check_count("r", self.r)

    def plan(self, layout: Layout) -> Sequence[Step]:
        assert layout.grid is not None
        frames, depth = layout.grid.frames, layout.blocks
        if frames % 4 or depth < STEPS:
            raise ValueError(
                f"the released program regroups frames by 4 and prunes after 3 blocks; "
                f"this model has {frames} frames of tokens and {depth} blocks"
            )
        tokens = layout.grid.tokens
        for number, size in enumerate(_group_sizes(self.r, tokens), start=1):
            if not _within_half(self.r, size):
                raise ValueError(
                    f"r={self.r} is over half of a group of {size} tokens, more than the released "
                    f"program can drop at step {number}; use r <= {largest(_fits(tokens), self.r)}"
                )
        return [Step(block, self.r) for block in spread_blocks(depth, STEPS)]

    def dropped(self, layout: Layout) -> int:
        assert layout.grid is not None
        frames = layout.grid.frames
        return sum(self.r * (frames >> number) for number in range(STEPS))

    def choose(self, site: Site) -> Choice:
        from sta.core.released import released_step

        if site.grid.frames % 4:
            raise ValueError(
                f"the released program regroups frames by 4; this clip has {site.grid.frames} "
                f"frames of tokens"
            )
        return Choice(
            released_step(
                site.tokens,
                site.features("key"),
                site.drop,
                groups=site.grid.frames >> site.step,
                backward=site.step % 2 == 1,
            )
        )


def _group_sizes(r: int, tokens: int) -> list[int]:
    """Tokens of a group before each step; groups pair up in between."""
    sizes = [tokens]
    while len(sizes) < STEPS:
        sizes.append(2 * (sizes[-1] - r))
    return sizes


def _fits(tokens: int) -> Callable[[int], bool]:
    return lambda r: all(_within_half(r, size) for size in _group_sizes(r, tokens))


def _within_half(r: int, size: int) -> bool:
    """A step drops even-numbered tokens of its first group, so no more than half of it."""
    return r <= (size + 1) // 2
