"""What a step in Video Swin may ask about the grid of tokens that it chooses from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones.hooks import Hook, StepHook, ThreadLocalTensor
from sta.core.features import head_mean, mean_over_heads
from sta.core.grid import Grid
from sta.methods.base import Similarity


class GridStep(StepHook):
    """A step that chooses from a full grid.

    Attributes:
        pixels: Where the clip is; None if the method does not need it.
        grid: The grid of the last forward.
        width: Channels of its tokens.
    """

    pixels: CapturePixels | None = None
    grid: Grid | None = None
    width = 0


class StageSite:
    """The full grid that a stage receives: see `sta.methods.base.Site`."""

    def __init__(
        self, hook: GridStep, block: Any, x: Tensor, grid: Grid, learned: nn.Module | None = None
    ) -> None:
        self.step, self.steps, self.drop = hook.number, hook.steps, hook.drop
        self.grid = grid
        self.tokens = x.flatten(1, 3)  # (B, T * N, C)
        self.sizes: Tensor | None = None
        self.learned = learned
        self._hook, self._block = hook, block

    def frames(self, x: Tensor) -> Tensor:
        """(B, n, D) -> (B, T, N, D)."""
        return x.reshape(x.shape[0], self.grid.frames, -1, x.shape[-1])

    def features(self, similarity: Similarity) -> Tensor:
        """From the first block of the stage, (B, n, C)."""
        if similarity == "ffn":
            return self.tokens
        return features(self._block, self.tokens, similarity)

    def pixels(self) -> tuple[Tensor, tuple[int, int, int]]:
        """The clip, (B, F, C, H, W), padded to whole tokens, and the pixels behind one token."""
        captured = self._hook.pixels
        clip = None if captured is None else captured.clip.get()
        if captured is None or clip is None:
            raise TypeError(
                f"{type(self._hook.config).__name__} asks for pixels, which it does not list in "
                f"`needs`"
            )
        t, h, w = captured.patch
        h, w = h << self._hook.after, w << self._hook.after
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

    def positions(self) -> Tensor:
        """Every token is at its own position, (B, n)."""
        batch, rows, _ = self.tokens.shape
        return torch.arange(rows, device=self.tokens.device).expand(batch, -1)


class CapturePixels(Hook):
    """A hook before the patch embedding that keeps the clip for the steps of this forward.

    Attributes:
        clip: (B, F, C, H, W).
        patch: Frames, height and width of a patch.
    """

    def __init__(self) -> None:
        self.clip = ThreadLocalTensor()
        self.patch = (1, 1, 1)

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pixels: Tensor = args[0] if args else kwargs["x"]  # (B, C, F, H, W)
        if pixels.ndim == 5:  # else the model itself says best what is wrong with it
            self.patch = tuple(module.tuple_patch_size)
            self.clip.put(pixels.transpose(1, 2))


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
