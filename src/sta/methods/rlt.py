"""Run-length tokenization: drop tubelets that repeat what was there before, however many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sta.methods.base import Choice, Config, Layout, Need, Site, Step, register
from sta.methods.budget import above, check_buckets, check_first_frame, check_threshold

if TYPE_CHECKING:
    from torch import Tensor


@register
@dataclass(frozen=True)
class RLTConfig(Config):
    """Run-length tokenization (RLT): a tubelet stays if its pixels changed, once, at the input.

    The number of tokens follows the clip: a still one keeps a frame's. In a batch, clips are filled
    up to the longest; what fills them is hidden from attention and has no part in the average, so
    each clip gives what it gives alone. Clips of like length make the best batches.

    Attributes:
        threshold: A tubelet stays if the mean absolute difference of its last frame to the first
            one of the tubelet before it is above this, on the pixels that the model receives.
        buckets: Lengths that clips are filled up to, rising, so that a compiled model sees only so
            many shapes; a single one is static, as an export needs it. Clips that would keep more
            than the last keep the tubelets that changed most. None fills up to the longest clip.
    """

    method: ClassVar[str] = "rlt"
    title: ClassVar[str] = "RLT"
    colour: ClassVar[str] = "#8c6d31"
    needs: ClassVar[frozenset[Need]] = frozenset({"clip", "merge", "pixels"})
    weighs_attention = True
    follows_clip = True

    threshold: float = 0.1
    buckets: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        check_buckets(self)

    def plan(self, layout: Layout) -> Sequence[Step]:
        check_first_frame(self.buckets, layout)
        return [Step(0, 1)]

    def choose(self, site: Site) -> Choice:
        return above(self.values(site), self.threshold, self.buckets)

    def values(self, site: Site) -> Tensor:
        from sta.core.difference import run_change

        return run_change(*site.pixels())
