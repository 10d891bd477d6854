"""The best frames of a clip: a learned score for each, the hard choice, and one with a gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Scores that are closer than this are the same, and have no gradient.
_SAME = 1e-5


class TimeScorer(nn.Module):
    """STTS's temporal scorer: how much each frame of a clip tells, from 0 to 1; `progress` is the
    share of the training that is done."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 2 * width
        self.project = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, wide), nn.GELU())
        self.score = nn.Sequential(
            nn.Linear(wide, wide // 2),
            nn.GELU(),
            nn.Linear(wide // 2, wide // 4),
            nn.GELU(),
            nn.Linear(wide // 4, 1),
        )
        self.progress = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Tokens of all frames, (B, T, N, D) -> (B, T)."""
        seen = torch.cat([x.mean(2), x.amax(2)], -1)  # (B, T, 2D)
        # Choices are made without autocast: then what it rounded is of another type.
        frames = self.project(seen.to(next(self.parameters()).dtype))
        own, shared = frames.chunk(2, -1)
        clip = shared.mean(1, keepdim=True).expand_as(shared)
        scores = self.score(torch.cat([own, clip], -1)).squeeze(-1).float()
        low = scores.amin(-1, keepdim=True)
        span = scores.amax(-1, keepdim=True) - low
        return torch.where(span > _SAME, (scores - low) / span.clamp(min=_SAME), 0.0)


def top_frames(scores: Tensor, count: int) -> Tensor:
    """The frames of the highest scores (ties: the earlier), in time order: (..., T) -> (..., K)."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return order[..., :count].sort(-1).values


def perturbed_top_frames(scores: Tensor, count: int, *, samples: int, sigma: float) -> Tensor:
    """`top_frames` averaged over noise on the scores, which makes it differentiable.

    Args:
        scores: (B, T).
        count: How many frames, K.
        samples: Of the noise, drawn from torch's global generator.
        sigma: Its standard deviation.

    Returns:
        (B, K, T): how often the k-th of the chosen frames was frame t. Its gradient is the unbiased
        estimate E[choice * noise] / sigma of that of the expectation.
    """
    noise = torch.randn(samples, *scores.shape, dtype=scores.dtype, device=scores.device)
    chosen = top_frames(scores.detach() + sigma * noise, count)  # (samples, B, K)
    choice = F.one_hot(chosen, scores.shape[-1]).to(scores.dtype)  # (samples, B, K, T)
    slope = (scores * noise).sum(-1) / sigma
    one = 1 + (slope - slope.detach())  # only its gradient counts
    return (choice * one[..., None, None]).mean(0)
