"""Patch change by group: keep the tokens whose patch embedding moved most, at the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from sta.core.options import Budget
from sta.methods.base import Choice, Layout, Need, Site, Step, check_count, register
from sta.methods.budget import BudgetConfig, above, plan_once
from sta.methods.stepped import plan_at_input

if TYPE_CHECKING:
    from torch import Tensor


@register
@dataclass(frozen=True)
class PatchChangeConfig(BudgetConfig):
    """Keep what moved most since the frame before, by the patch embeddings, in groups of frames.

    FluxViT's selector: the clip is cut into up to four groups of frames, and each keeps the tokens
    with the largest change `||x_t - x_(t-1)||_2`, whichever of its frames they are in. The first
    frame, which has none before it, is compared with the second.

    Attributes:
        r: Tokens dropped per frame, on average over a group.
        groups: Groups of frames, of the budget "frame"; fewer where there are fewer frames.
        budget: With "frame" every group of frames has a number, with "clip" only the clip; with
            "auto" all tokens stay that moved by more than `threshold`, as do those of the first
            frame.
        threshold: For "auto", in the distances of the model's own patch embeddings.
        buckets: For "auto", sizes that clips are filled up to, as RLT's.
        merge: Merge instead of dropping, as for STA; and so is proportional.
    """

    method: ClassVar[str] = "patch-change"
    title: ClassVar[str] = "Patch change"
    colour: ClassVar[str] = "#7a9a01"
    r_counts: ClassVar[str] = "tokens dropped per frame on average, once, at the input"
    needs: ClassVar[frozenset[Need]] = frozenset({"clip", "embeddings"})
    budgets: ClassVar[tuple[Budget, ...]] = ("frame", "clip", "auto")

    r: int = 0
    groups: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("r", self.r)
        check_count("groups", self.groups)
        if self.groups == 0:
            raise ValueError("groups=0 is not possible; use 1 or more groups of frames")

    def plan(self, layout: Layout) -> Sequence[Step]:
        return plan_once(self, layout) if self.follows_clip else plan_at_input(self.r, layout)

    def choose(self, site: Site) -> Choice:
        import torch

        from sta.core.difference import keep_changed

        if self.threshold is not None:
            return above(self.values(site), self.threshold, self.buckets)
        change = _change(site)
        _, frames, tokens = change.shape
        groups = 1 if self.budget == "clip" else min(self.groups, frames)
        starts = [group * frames // groups for group in range(groups + 1)]
        kept = [
            keep_changed(change[:, start:end], site.drop, "clip") + start * tokens
            for start, end in pairwise(starts)
        ]
        return Choice(torch.cat(kept, 1))

    def values(self, site: Site) -> Tensor:
        from sta.core.threshold import begin_runs

        return begin_runs(_change(site))


def _change(site: Site) -> Tensor:
    """How far each patch embedding moved, (B, T, N)."""
    from sta.core.difference import embedding_change

    return embedding_change(site.frames(site.embeddings().detach().float()))
