"""Steps in Video Swin: what they may ask about their grid, and the one that drops whole frames."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones.hooks import StepHook
from sta.backbones.site import StepSite, head_mean, mean_over_heads
from sta.core.tokens import Grid, clip_indices, take
from sta.methods.base import Config, Similarity, Step


class GridStep(StepHook):
    """A step that chooses from a full grid."""

    grid: Grid | None = None  # of the last forward
    width = 0  # channels of its tokens
    into: Tensor | None = None  # the kept one that each place was merged into, (B, T * N)

    @property
    def places(self) -> Tensor:
        """Where each kept token is in the clip's grid, (B, n)."""
        assert self.kept is not None
        assert self.grid is not None
        return clip_indices(self.kept, self.grid.tokens)

    @property
    def sizes(self) -> Tensor | None:
        """How many places each kept token stands for, (B, n, 1); None if nothing was merged."""
        if self.into is None:
            return None
        none = torch.zeros(self.places.shape, device=self.into.device)
        ones = torch.ones_like(self.into, dtype=none.dtype)
        return none.scatter_add(1, self.into, ones).unsqueeze(-1)


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


class FrameStep(GridStep):
    """A hook after the patch embedding that keeps whole frames: (B, K) indices into the clip."""

    def __init__(
        self, number: int, steps: int, config: Config, step: Step, block: nn.Module
    ) -> None:
        super().__init__(number, steps, config, step)
        self._block = block

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor | None:
        batch, frames, height, width, self.width = output.shape
        self.grid = grid = Grid(frames, height, width)
        if self.drop >= frames:
            raise ValueError(
                f"r={self.drop} leaves no frames: clips of this length have {frames} frames of "
                f"tokens; use r <= {frames - 1}, or longer clips"
            )
        if self.drop == 0:
            everything = torch.arange(frames * grid.tokens, device=output.device)
            self.kept = everything.expand(batch, -1)
            return None
        learned = getattr(module, self.config.method, None)
        choice = self.choose(StageSite(self, self._block, output, grid, learned))
        self.kept = choice.kept
        if choice.shares is not None:
            shares = choice.shares.to(output.dtype)
            return torch.einsum("bkt,bthwc->bkhwc", shares, output)
        return take(output.flatten(1, 3), choice.kept).view(batch, -1, height, width, self.width)

    def restore(self, rows: Tensor) -> Tensor:
        """Tokens of any stage by all frames, from the nearest kept one: -> (B, T, n / K, D)."""
        grid, kept = cast(Grid, self.grid), cast(Tensor, self.kept)
        frames = kept[:, :: grid.tokens] // grid.tokens  # (B, K)
        batch, given, width = rows.shape
        if given % frames.shape[1]:
            raise ValueError(
                f"tokens has {given} per clip; the last forward kept {frames.shape[1]} frames, so "
                f"a multiple of that is expected"
            )
        time = torch.arange(grid.frames, device=kept.device).view(-1, 1)
        nearest = (time - frames.unsqueeze(1)).abs().argmin(-1)  # (B, T), ties: the earlier
        whole = take(rows.reshape(batch, frames.shape[1], -1), nearest)
        return whole.view(batch, grid.frames, -1, width)
