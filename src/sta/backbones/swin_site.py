"""What a step in Video Swin may ask about the grid of tokens that it chooses from."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones.hooks import StepHook
from sta.backbones.site import StepSite
from sta.core.features import head_mean, mean_over_heads
from sta.core.grid import Grid
from sta.core.tokens import clip_indices
from sta.methods.base import Similarity


class GridStep(StepHook):
    """A step that chooses from a full grid.

    Attributes:
        grid: The grid of the last forward.
        width: Channels of its tokens.
        into: Where tokens were merged: which kept one each place went into, (B, T * N).
    """

    grid: Grid | None = None
    width = 0
    into: Tensor | None = None

    @property
    def places(self) -> Tensor:
        """Where each kept token is in the clip's grid, (B, n)."""
        assert self.kept is not None
        assert self.grid is not None
        return clip_indices(self.kept, self.grid.tokens)


class StageSite(StepSite):
    """The full grid that a stage receives."""

    staged = True

    def __init__(
        self, hook: GridStep, block: Any, x: Tensor, grid: Grid, learned: nn.Module | None = None
    ) -> None:
        super().__init__(hook, x.flatten(1, 3), grid)
        self.learned = learned
        self._hook, self._block = hook, block

    def features(self, similarity: Similarity) -> Tensor:
        """From the first block of the stage, (B, n, C)."""
        if similarity == "ffn":
            return self.tokens
        return features(self._block, self.tokens, similarity)

    def pixels(self) -> tuple[Tensor, tuple[int, int, int]]:
        """The clip, (B, F, C, H, W), padded to whole tokens, and the pixels behind one token."""
        clip, (t, h, w) = self.captured(self._hook.pixels, "pixels"), self._hook.tubelet
        frames, height, width = (
            size * step for size, step in zip(self.grid, (t, h, w), strict=True)
        )
        missing = (frames - clip.shape[1], height - clip.shape[3], width - clip.shape[4])
        pad = (0, missing[2], 0, missing[1], 0, 0, 0, missing[0])
        return F.pad(clip, pad) if any(missing) else clip, (t, h, w)

    def embeddings(self) -> Tensor:
        """Refused when the method is applied: grids change from stage to stage."""
        raise TypeError("Video Swin keeps no patch embeddings for later steps")

    def queries_and_keys(self) -> tuple[Tensor, Tensor]:
        """Refused when the method is applied: attention is by windows."""
        raise TypeError("Video Swin attends in windows: no token has all others as keys")


def features(block: Any, x: Tensor, similarity: Similarity) -> Tensor:
    """Similarity features of a block from its input: (..., C) -> (..., head dim)."""
    attention = block.attn
    part = ("query", "key", "value").index(similarity)
    normed, qkv = block.norm1(x.detach()), attention.qkv
    if type(qkv) is not nn.Linear:  # adapted or quantised, say
        return mean_over_heads(qkv(normed).detach().chunk(3, -1)[part], attention.num_heads)
    weight = qkv.weight.chunk(3)[part]
    bias = None if qkv.bias is None else qkv.bias.chunk(3)[part]
    return head_mean(normed, weight, bias, attention.num_heads)
