"""STTS: whole frames by a learned score, before the first stage of Video Swin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from sta.core.options import check_option
from sta.methods.base import (
    Choice,
    Config,
    Layout,
    Need,
    Site,
    Step,
    WindowQueries,
    check_count,
    register,
)

if TYPE_CHECKING:
    from torch import nn


@register
@dataclass(frozen=True)
class STTSConfig(Config):
    """Spatial-temporal token selection (STTS), its temporal part: whole frames, by a learned score.

    A small scorer looks at the mean and maximum of each frame's patch embeddings; all that follows
    sees only the frames of the highest scores. The scorer is trained with the model: ``sta train
    DATA --model swin-t-k400 --method stts --r 2 --out RUN``. The published figures on Video Swin
    are of the temporal part alone; there is no spatial one here.

    Attributes:
        r: Frames of tokens dropped from the clip.
        samples: In training, draws of the noise that makes the choice differentiable.
        sigma: Its standard deviation when training starts; it falls in line to 0.
        window_queries: How window attention is computed, as for STA.
    """

    method: ClassVar[str] = "stts"
    title: ClassVar[str] = "STTS"
    colour: ClassVar[str] = "#7a5195"
    r_counts: ClassVar[str] = "frames of tokens dropped from the clip, at the input"
    needs: ClassVar[frozenset[Need]] = frozenset({"frames"})
    learns: ClassVar[bool] = True

    r: int = 0
    samples: int = 500
    sigma: float = 0.05
    window_queries: WindowQueries = "kept"

    def __post_init__(self) -> None:
        check_count("r", self.r)
        check_option("window_queries", self.window_queries, get_args(WindowQueries))
        if not isinstance(self.samples, int) or self.samples < 1:
            raise ValueError(f"samples={self.samples!r} must be a whole number, 1 or more")
        if not isinstance(self.sigma, (int, float)) or not self.sigma > 0:
            raise ValueError(f"sigma={self.sigma!r} must be a number above 0")

    def plan(self, layout: Layout) -> Sequence[Step]:
        return [Step(0, self.r)]

    @classmethod
    def learned(cls, width: int) -> nn.Module:
        from sta.core.top_frames import TimeScorer

        return TimeScorer(width)

    def choose(self, site: Site) -> Choice:
        import torch

        from sta.core.top_frames import TimeScorer, perturbed_top_frames, top_frames

        scorer = site.learned
        assert isinstance(scorer, TimeScorer)
        scores = scorer(site.frames(site.tokens))  # (B, T)
        count, tokens = site.grid.frames - site.drop, site.grid.tokens
        frames = top_frames(scores, count)
        places = torch.arange(tokens, device=frames.device)
        kept = (frames.unsqueeze(-1) * tokens + places).flatten(1)
        if not scorer.training:
            return Choice(kept)
        sigma = self.sigma * max(1 - scorer.progress, 1e-3)
        shares = perturbed_top_frames(scores, count, samples=self.samples, sigma=sigma)
        return Choice(kept, shares=shares)
