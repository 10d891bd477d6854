"""Frame difference: drop the tubelets whose pixels changed least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, get_args

from sta.core.options import Budget, check_option
from sta.methods.base import Choice, Fill, Layout, Need, Site, Step, check_count, register
from sta.methods.budget import BudgetConfig, above, plan_once
from sta.methods.stepped import plan_at_input, plan_staged

if TYPE_CHECKING:
    from torch import Tensor


@register
@dataclass(frozen=True)
class FrameDifferenceConfig(BudgetConfig):
    """Drop the tubelets whose pixels changed least since the frame before, once, at the input.

    Run-length tokenisation with a static shape. The first frame, which has none before it, is
    compared with the second. On Swin, which gathers its tokens into a new grid at every stage, each
    of STA's steps does so, with STA's counts, by the change of the pixels behind its tokens.

    Attributes:
        r: Tokens dropped per frame; on Swin at the first step.
        fill: On Swin, what stands in for a dropped token, as for STA.
        budget: Whether every "frame" keeps as many, or only the "clip" has a number; with "auto"
            all tubelets stay that changed by more than `threshold`, as do those of the first frame.
        threshold: For "auto", in the pixels that the model receives; `sta tune` finds it.
        buckets: For "auto", sizes that clips are filled up to, as RLT's.
        merge: Merge instead of dropping, as for STA; and so is proportional.
    """

    method: ClassVar[str] = "frame-difference"
    title: ClassVar[str] = "Frame difference"
    colour: ClassVar[str] = "#5aa469"
    r_counts: ClassVar[str] = "tokens dropped per frame, once, at the input"
    needs: ClassVar[frozenset[Need]] = frozenset({"pixels"})
    budgets: ClassVar[tuple[Budget, ...]] = ("frame", "clip", "auto")

    r: int = 0
    fill: Fill = field(default="frame", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("r", self.r)
        check_option("fill", self.fill, get_args(Fill))

    def plan(self, layout: Layout) -> Sequence[Step]:
        if layout.staged:
            return plan_staged(self, layout)
        if self.follows_clip:
            return plan_once(self, layout)
        return plan_at_input(self.r, layout)

    def choose(self, site: Site) -> Choice:
        from sta.core.difference import keep_changed, tubelet_change

        if self.threshold is not None:
            return above(self.values(site), self.threshold, self.buckets)
        return Choice(keep_changed(tubelet_change(*site.pixels()), site.drop, self.budget))

    def values(self, site: Site) -> Tensor:
        from sta.core.difference import tubelet_change
        from sta.core.threshold import begin_runs

        return begin_runs(tubelet_change(*site.pixels()))
