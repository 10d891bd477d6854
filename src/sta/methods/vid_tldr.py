"""vid-TLDR: merge in the first blocks, and let tokens with blurred attention fade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sta.methods.base import Choice, Config, Layout, Need, Site, Step, check_count, register

#: Shares of r that the steps merge away: as its authors' 600, 200, 100 of 1,568 tokens.
_SHARES = (1, 1 / 3, 1 / 6)


@register
@dataclass(frozen=True)
class VidTLDRConfig(Config):
    """Saliency by the sharpness of attention; similar tokens are merged in the first blocks.

    A token counts the more in a merge the sharper its attention is; tokens below the clip's mean
    sharpness are background and count nothing, so that merging drops them.

    Attributes:
        r: Tokens merged away after the attention of block 1, in the whole clip; of blocks 2 and 3 a
            third and a sixth of that.
    """

    method: ClassVar[str] = "vid-tldr"
    title: ClassVar[str] = "vid-TLDR"
    colour: ClassVar[str] = "#c44e52"
    r_counts: ClassVar[str] = "tokens merged away in block 1, of the whole clip"
    needs: ClassVar[frozenset[Need]] = frozenset({"clip", "merge", "attention"})
    weighs_attention = True

    r: int = 0

    def __post_init__(self) -> None:
        check_count("r", self.r)

    def plan(self, layout: Layout) -> Sequence[Step]:
        assert layout.grid is not None
        drops = [int(self.r * share) for share in _SHARES[: layout.blocks]]
        left = whole = layout.grid.frames * layout.grid.tokens
        for block, drop in enumerate(drops, start=1):
            if drop > left // 2:
                most = next(r for r in range(self.r, -1, -1) if _fits(r, whole, len(drops)))
                raise ValueError(
                    f"r={self.r} merges {drop} of the {left} tokens left at block {block}, more "
                    f"than half; use r <= {most}"
                )
            left -= drop
        return [Step(block, drop, inside=True) for block, drop in enumerate(drops, start=1)]

    def dropped(self, layout: Layout) -> int:
        return sum(step.drop for step in self.plan(layout))

    def choose(self, site: Site) -> Choice:
        import torch

        from sta.core.merge import match_step
        from sta.core.saliency import attention_sharpness, foreground_weight

        kept, into = match_step(site.tokens, site.drop)
        weight = foreground_weight(attention_sharpness(*site.queries_and_keys()))  # (B, n)
        targets = torch.zeros_like(weight).scatter(-1, kept, 1.0)
        sizes = 1.0 if site.sizes is None else site.sizes
        return Choice(kept, into, torch.maximum(weight, targets).unsqueeze(-1) * sizes)


def _fits(r: int, tokens: int, steps: int) -> bool:
    for share in _SHARES[:steps]:
        if int(r * share) > tokens // 2:
            return False
        tokens -= int(r * share)
    return True
