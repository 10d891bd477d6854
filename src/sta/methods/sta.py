"""Semantic-aware Temporal Accumulation: drop what earlier frames showed and what means little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sta.core.options import Budget, Combine, FirstFrame, Score, Semantic, Temporal, check_literals
from sta.core.schedule import check_order
from sta.methods.base import (
    Choice,
    Layout,
    Need,
    Pool,
    Similarity,
    Site,
    Step,
    WindowQueries,
    check_seed,
    register,
)
from sta.methods.stepped import SteppedConfig

if TYPE_CHECKING:
    from torch import Tensor

    from sta.core.score import ScoredStep
    from sta.methods.released import ReleasedConfig


@register
@dataclass(frozen=True)
class STAConfig(SteppedConfig):
    """Semantic-aware Temporal Accumulation.

    Attributes:
        r: Tokens dropped per frame at the first step. 0 leaves the model as it is.
        schedule: Drops of the steps: "decreasing" (r, r/2, r/4; on Swin r, 1.5r/4, 2r/16),
            "constant" (r, r, r), "increasing" (r, 2r, 4r), "even" (Swin: r, r/4, r/16), or a tuple.
        blocks: Blocks to prune after, counted from 1; 0 is the embedding. None spreads three steps
            as the paper does: 1, 1 + L/3, 1 + 2L/3. On Swin: stages; None takes all but the last.
        fill: On Swin, what stands in for a dropped token: the nearest kept one of its "frame", as
            in the paper, or the most similar of the nearest ones in all frames of the "clip".
        budget: What has a fixed number of tokens: every "frame", as in the paper, or only the
            "clip", whose frames then compete. With "auto" the number follows the clip: at the
            input, or after the block in `blocks`, what changed by more than `threshold` stays.
        threshold: For "auto"; `sta tune` finds it. buckets: Sizes that clips are filled up to.
        merge: Average a dropped token into the most similar kept one, each weighing as many as it
            stands for; so does the model's final average, and with `proportional` attention.
        order: Direction of each step's chain, e.g. "FBF". None alternates, starting forward.
        similarity: Features that measure similarity: "key", "query", "value" or "ffn".
        temperature: Of the affinity softmax; 1.0 is the paper's.
        score: "sta", or only its "temporal" or "semantic" part.
        semantic: What weighs a token: the paper's L1 "norm", or that of its "deviation" from the
            mean of its frame.
        temporal: What tells change: the paper's "chain" through the clip, features at the same
            "place" one frame before, or the "pixels" there.
        combine: A token stays that is "either" new or significant, as in the paper, or "both".
        first_frame: How a chain's first frame is pruned: "tome"; "grid" or "random", by `seed`.
        window_queries: On Swin, queries of window attention: "all", as the paper counts, or "kept".
        pool: On Swin, what the final average is over: the "kept" tokens, or the filled "grid".
    """

    method: ClassVar[str] = "sta"
    title: ClassVar[str] = "STA"
    colour: ClassVar[str] = "#3b528b"
    r_counts: ClassVar[str] = "tokens dropped per frame at the first step"
    budgets: ClassVar[tuple[Budget, ...]] = ("frame", "clip", "auto")

    order: str | None = None
    similarity: Similarity = "key"
    temperature: float = 1.0
    score: Score = "sta"
    semantic: Semantic = "deviation"
    temporal: Temporal = "chain"
    combine: Combine = "either"
    first_frame: FirstFrame = "tome"
    seed: int = 0
    window_queries: WindowQueries = "kept"
    pool: Pool = "kept"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)
        check_literals(self, STAConfig)
        if type(self.temperature) not in (int, float) or not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature!r} must be a number above 0")
        if self.order is not None:
            check_order(self.order, self.steps)
        either = self.score == "semantic" or (self.score, self.combine) == ("sta", "either")
        if self.follows_clip and (self.temporal == "chain" or either):
            raise ValueError(
                'budget="auto" needs a score that says the same in every clip; use '
                'temporal="place" or "pixels", with combine="both" or score="temporal"'
            )

    @property
    def requires(self) -> frozenset[Need]:
        more: set[Need] = {"pixels"} if self.temporal == "pixels" else set()
        if (self.temporal, self.budget) != ("chain", "frame"):
            more |= {"positions"}
        if self.follows_clip and not any(self.blocks or ()):
            more |= {"embeddings"}
        return super().requires | more

    def plan(self, layout: Layout) -> Sequence[Step]:
        steps = super().plan(layout)
        if self.order is not None:
            check_order(self.order, len(steps))
        return steps

    def choose(self, site: Site) -> Choice:
        from sta.methods.scoring import choose

        return choose(self, site)

    def values(self, site: Site) -> Tensor:
        from sta.methods.scoring import values_above

        return values_above(self, site)

    def explain(self, site: Site) -> ScoredStep:
        """The choice of a step with the scores behind it."""
        from sta.methods.scoring import explain

        return explain(self, site)

    @classmethod
    def paper(cls, r: int) -> STAConfig:
        """The paper's formula as it is published: the semantic score by the L1 norm (Eq. 4)."""
        return cls(r=r, semantic="norm")

    @classmethod
    def fit(
        cls, model: Any, clips: Any, *, saved: float | None = None, r: int | None = None
    ) -> STAConfig:
        """STA's score that suits a model best, by a few clips without labels, as `sta.fit`."""
        import sta

        found = sta.fit(clips, model, saved=saved, r=r, methods=["sta"], progress=False).config
        assert isinstance(found, STAConfig)
        return found

    @staticmethod
    def released(r: int) -> ReleasedConfig:
        """The authors' published program for VideoMAE, to the last digit: `ReleasedConfig(r)`."""
        from sta.methods.released import ReleasedConfig

        return ReleasedConfig(r)
