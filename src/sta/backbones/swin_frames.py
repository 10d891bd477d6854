"""Whole frames dropped before the first stage of Video Swin, which then has a shorter clip."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from sta.backbones.swin_site import GridStep, StageSite
from sta.core.grid import Grid
from sta.core.tokens import take
from sta.methods.base import Config, Step


class FrameStep(GridStep):
    """A hook after the patch embedding that keeps whole frames.

    Attributes:
        kept: (B, K) indices into the grid of the clip: all of each kept frame.
    """

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
