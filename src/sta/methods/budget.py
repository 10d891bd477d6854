"""How many tokens stay: a number of every frame, of the clip, or as many as the clip needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from sta.core.options import Budget, check_option
from sta.methods.base import Choice, Layout, MergingConfig, Step, check_count

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class BudgetConfig(MergingConfig):
    """Settings of methods with a choice of what has a fixed number of tokens.

    Attributes:
        budgets: What the method can have.
        budget: Every "frame", only the "clip", or, with "auto", neither: what scores above a
            threshold stays.
        threshold: For "auto": of a score that means the same in every clip.
        buckets: For "auto": lengths that clips are filled up to, rising, so that a compiled model
            sees only so many shapes; a single one is static, as an export needs it. Clips that
            would keep more than the last keep the highest scores. None: up to the longest clip.
    """

    budgets: ClassVar[tuple[Budget, ...]] = ("frame", "clip")

    budget: Budget = field(default="frame", kw_only=True)
    threshold: float | None = field(default=None, kw_only=True)
    buckets: tuple[int, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("budget", self.budget, self.budgets)
        if not self.follows_clip:
            for name in ("threshold", "buckets"):
                if (given := getattr(self, name)) is not None:
                    raise ValueError(f'{name}={given!r} is for budget="auto"; set it, or leave it')
            return
        if self.threshold is None:
            raise ValueError(
                'budget="auto" needs a threshold: `sta tune VIDEOS --budget auto --agreement 0.97` '
                "finds one without labels"
            )
        check_threshold(self.threshold)
        check_buckets(self)
        for name, unset in (("r", 0), ("schedule", "decreasing")):
            if (given := getattr(self, name, unset)) != unset:
                raise ValueError(
                    f'{name}={given!r}: with budget="auto" the threshold says how many stay; '
                    f"leave {name} out"
                )
        if self.merge:
            raise ValueError('merge=True needs a fixed number of tokens: budget="frame" or "clip"')

    @property
    def follows_clip(self) -> bool:  # type: ignore[override]
        return self.budget == "auto"

    @property
    def weighs_attention(self) -> bool:  # type: ignore[override]
        """Whether tokens weigh in attention by what they stand for; what fills up, not at all."""
        return self.proportional or self.follows_clip


class _Bucketed(Protocol):
    @property
    def buckets(self) -> tuple[int, ...] | None: ...


def check_threshold(value: object) -> None:
    """Refuse what is no threshold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"threshold={value!r} must be a number, 0 or more")


def check_buckets(config: _Bucketed) -> None:
    """Refuse what are no sizes; a list becomes a tuple."""
    if config.buckets is None:
        return
    if not isinstance(config.buckets, Sequence):
        raise ValueError(f"buckets={config.buckets} must be several, e.g. (400, 800, 1568)")
    for size in config.buckets:
        check_count("buckets", size)
    if not config.buckets or list(config.buckets) != sorted(set(config.buckets)):
        raise ValueError(
            f"buckets={config.buckets} must be rising numbers of tokens, e.g. (400, 800, 1568)"
        )
    object.__setattr__(config, "buckets", tuple(config.buckets))


def check_first_frame(buckets: Sequence[int] | None, layout: Layout) -> None:
    """Refuse buckets that do not hold a frame."""
    assert layout.grid is not None
    if buckets is not None and buckets[-1] < layout.grid.tokens:
        raise ValueError(
            f"buckets={buckets}: a clip keeps its first frame, which has {layout.grid.tokens} "
            f"tokens here; let the last be that or more"
        )


def plan_once(config: BudgetConfig, layout: Layout, after: int = 0) -> list[Step]:
    """The one step of settings whose counts follow the clip."""
    check_first_frame(config.buckets, layout)
    if after > layout.blocks:
        raise ValueError(
            f"blocks={(after,)} does not fit this model, which has {layout.blocks} blocks; use a "
            f"number from 0 to {layout.blocks}"
        )
    return [Step(after, 1)]


def above(value: Tensor, threshold: float, buckets: Sequence[int] | None) -> Choice:
    """The tokens of a batch of clips whose value is above a threshold, (B, T, N)."""
    from sta.core.threshold import keep_above, places_for

    kept, counts = keep_above(value, threshold, places_for(value, threshold, buckets))
    if buckets is None and len(kept) == 1:
        return Choice(kept)
    return Choice(kept, counts=counts)
