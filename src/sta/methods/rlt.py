"""Run-length tokenization: drop tubelets that repeat what was there before, however many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sta.methods.base import Choice, Config, Layout, Need, Site, Step, check_count, register

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

    threshold: float = 0.1
    buckets: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, (int, float)) or not self.threshold >= 0:
            raise ValueError(f"threshold={self.threshold!r} must be a number, 0 or more")
        if self.buckets is None:
            return
        for size in self.buckets:
            check_count("buckets", size)
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(
                f"buckets={self.buckets} must be rising numbers of tokens, e.g. (400, 800, 1568)"
            )
        object.__setattr__(self, "buckets", tuple(self.buckets))

    def plan(self, layout: Layout) -> Sequence[Step]:
        assert layout.grid is not None
        if self.buckets is not None and self.buckets[-1] < layout.grid.tokens:
            raise ValueError(
                f"buckets={self.buckets}: a clip keeps its first frame, which has "
                f"{layout.grid.tokens} tokens here; let the last be that or more"
            )
        return [Step(0, 1)]

    def choose(self, site: Site) -> Choice:
        from sta.core.run_length import keep_runs, run_change

        change = run_change(*site.pixels())
        kept, counts = keep_runs(change, self.threshold, self._size(change))
        if self.buckets is None and len(kept) == 1:
            return Choice(kept)
        return Choice(kept, counts=counts)

    def _size(self, change: Tensor) -> int:
        """Places for the tokens of each clip of a batch."""
        from sta.core.tracing import is_fake

        places = change.shape[1] * change.shape[2]
        sizes = [min(size, places) for size in self.buckets or ()]
        # What a graph is recorded of has no values, and so no lengths.
        if len(sizes) == 1 or is_fake(change):
            return (sizes or [places])[-1]
        longest = int((change > self.threshold).sum((1, 2)).max())
        return next((size for size in sizes if size >= longest), (sizes or [longest])[-1])
