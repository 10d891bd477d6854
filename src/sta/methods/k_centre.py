"""K-centre sampling: patches that are far from each other, in pixels and in position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import (
    Choice,
    Layout,
    MergingConfig,
    Need,
    Site,
    Step,
    check_count,
    check_seed,
    register,
)
from sta.methods.stepped import plan_at_input


@register
@dataclass(frozen=True)
class KCentreConfig(MergingConfig):
    """K-centre patch sampling at the input.

    Each patch is its pixels with its weighted place appended. The first is drawn at random; then,
    again and again, the patch is taken whose nearest chosen one is farthest.

    Attributes:
        r: Tokens dropped per frame, on average over the clip.
        time: Weight of a patch's frame beside its pixels.
        space: Weight of its row and column.
        seed: Of the first patch.
        merge: Merge instead of dropping, as for STA; and so is proportional.
    """

    method: ClassVar[str] = "k-centre"
    title: ClassVar[str] = "K-centre"
    colour: ClassVar[str] = "#64b5cd"
    r_counts: ClassVar[str] = "tokens dropped per frame on average, once, at the input"
    needs: ClassVar[frozenset[Need]] = frozenset({"clip", "pixels"})

    r: int = 0
    time: float = 1.0
    space: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("r", self.r)
        check_seed(self.seed)
        for name in ("time", "space"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(f"{name}={value!r} must be a number, 0 or more")

    def plan(self, layout: Layout) -> Sequence[Step]:
        return plan_at_input(self.r, layout)

    def choose(self, site: Site) -> Choice:
        from sta.core.k_centre import k_centres, position_patches

        grid = site.grid
        patches = position_patches(*site.pixels(), grid=grid, time=self.time, space=self.space)
        count = grid.frames * (grid.tokens - site.drop)
        return Choice(k_centres(patches, count, seed=self.seed).sort(-1).values)
