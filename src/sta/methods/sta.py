"""Semantic-aware Temporal Accumulation: drop what earlier frames showed and what means little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from sta.core.options import Budget, Combine, FirstFrame, Score, Semantic, Temporal, check_option
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
    from sta.core.score import Step as Scores
    from sta.methods.released import ReleasedConfig


@register
@dataclass(frozen=True)
class STAConfig(SteppedConfig):
    """Semantic-aware Temporal Accumulation.

    Attributes:
        r: Tokens dropped per frame at the first step. 0 leaves the model as it is.
        schedule: Drops of the steps: "decreasing" (r, r/2, r/4; on Swin r, 1.5r/4, 2r/16),
            "constant" (r, r, r), "increasing" (r, 2r, 4r), or a tuple of drops.
        blocks: Blocks to prune after, counted from 1; 0 is the patch embedding, where similarity is
            that of the embeddings. None spreads three steps as the paper does:
            1, 1 + L/3, 1 + 2L/3. On Swin: stages to prune after, each at its patch merging; None
            takes all that have one.
        fill: On Swin, what stands in for a dropped token: "frame" is the paper's, the nearest kept
            token of its frame, which it becomes when the stage ends. With "clip" the nearest in
            space and time lends its keys and values, and the place leaves the stage as its own
            token plus what the stage added to the other: the same cost, far less lost.
        budget: What has a fixed number of tokens: every "frame", as in the paper, or only the
            "clip": tokens of all frames compete, and a busy frame keeps more than a still one. With
            "auto" the number follows the clip: after one block, the input unless `blocks` names
            another, all tokens stay whose change, times significance + 0.1 unless the score is
            "temporal", is above `threshold`, and those of the first frame.
        threshold: For "auto"; `sta tune --budget auto` finds it without labels.
        buckets: For "auto", sizes that clips are filled up to, as RLT's.
        merge: Average a dropped token into the most similar kept one, each weighing as many as it
            stands for; so does the model's final average, and with `proportional` attention.
        order: Direction of each step's chain, e.g. "FBF". None alternates, starting forward.
        similarity: Features that measure similarity: "key", "query", "value" or "ffn".
        temperature: Of the affinity softmax; 1.0 is the paper's.
        score: "sta", or only its "temporal" or "semantic" part.
        semantic: What the semantic score weighs a token by: "norm" is the paper's L1 norm,
            "deviation" that of its difference to the mean of its frame, which loses less on all
            models and tasks that were measured here.
        temporal: How the temporal score reads change: by the paper's "chain" through the clip, by
            features at the same "place" one frame before, or by the "pixels" there.
        combine: A token stays that is "either" new or significant, as in the paper, or "both".
        first_frame: How the first frame of a chain is pruned: "tome", "grid" or "random". Where
            tokens of all frames compete, or there is no chain, it is a frame as any other.
        seed: Of the random choices of "grid" and "random".
        window_queries: On Swin, which queries window attention computes: "all" is the paper's
            accounting, "kept" gives the same result for less work: only kept tokens have queries,
            and pairs that the shift of the windows masks are never computed.
        pool: On Swin, what the final average is over: the "kept" tokens of the last stage, or its
            whole "grid", where dropped places count as the kept ones that fill them.
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
        for name, allowed in (
            ("similarity", Similarity),
            ("score", Score),
            ("semantic", Semantic),
            ("temporal", Temporal),
            ("combine", Combine),
            ("first_frame", FirstFrame),
            ("window_queries", WindowQueries),
            ("pool", Pool),
        ):
            check_option(name, getattr(self, name), get_args(allowed))
        if not isinstance(self.temperature, (int, float)) or not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature!r} must be a number above 0")
        if self.order is not None:
            check_order(self.order, self.steps)
        if self.follows_clip and (self.temporal == "chain" or self._weighs_either):
            raise ValueError(
                'budget="auto" needs a score that says the same in every clip; use '
                'temporal="place" or "pixels", with combine="both" or score="temporal"'
            )

    @property
    def _weighs_either(self) -> bool:
        return self.score == "semantic" or (self.score, self.combine) == ("sta", "either")

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
        if self.threshold is not None:
            from sta.methods.scoring import choose_above

            return choose_above(self, site)
        return Choice(self.explain(site).kept)

    def explain(self, site: Site) -> Scores:
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
        """STA's score that suits a model best, by a few dozen clips without labels: see `sta.fit`.

        Args:
            model: What `sta.load` takes, or a model without a method applied.
            clips: Videos, clips or pixels, as `sta.fit` takes them.
            saved: Share of the unpruned model's GFLOPs to save; half without.
            r: Tokens dropped per frame at the first step, instead of `saved`.
        """
        import sta

        found = sta.fit(clips, model, saved=saved, r=r, methods=["sta"], progress=False).config
        assert isinstance(found, STAConfig)
        return found

    @staticmethod
    def released(r: int) -> ReleasedConfig:
        """The authors' published program for VideoMAE, to the last digit: `ReleasedConfig(r)`."""
        from sta.methods.released import ReleasedConfig

        return ReleasedConfig(r)
