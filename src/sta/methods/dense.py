"""Keep every token, on the adapter's own fast path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sta.core.schedule import STEPS, spread_blocks
from sta.methods.base import Config, Layout, Step, register


@register
@dataclass(frozen=True)
class DenseConfig(Config):
    """Keep every token, on the adapter's own fast path: the fair baseline where the stock model is
    slow for other reasons (Swin's window attention)."""

    method: ClassVar[str] = "dense"
    title: ClassVar[str] = "Dense"
    colour: ClassVar[str] = "#c9a227"
    embeds_patches: ClassVar[bool] = False

    def plan(self, layout: Layout) -> Sequence[Step]:
        steps = layout.blocks if layout.staged else min(STEPS, layout.blocks)
        return [Step(block, 0) for block in spread_blocks(layout.blocks, steps)]
