"""A model as a source of features: uint8 clips go in, vectors or grids of them come out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sta.backbones import find
from sta.backbones.encode import Fill, check_block, encode
from sta.inference.clip_model import ClipModel


@dataclass
class Encoder(ClipModel):
    """Runs one model for its features; see `ClipModel` and `sta.backbones.encode`.

    Attributes:
        block: Whose output is taken, counted from 1; None is the whole model's.
        dense: Give tokens on their grid instead of one vector.
        fill: What stands at dropped places.
    """

    block: int | None = None
    dense: bool = False
    fill: Fill = "nearest"

    def __post_init__(self) -> None:
        check_block(find(self.model), self.block)
        self._network = _Features(self.model, self.block, self.dense, self.fill)
        super().__post_init__()

    def network(self) -> nn.Module:
        return self._network

    def __call__(self, clips: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Features ``(methods, B, ...)`` of clips ``(B, T, H, W, 3)``, and seconds."""
        made, seconds = self.outputs(clips)
        return torch.stack(made).float().cpu().numpy(), np.array(seconds)


class _Features(nn.Module):
    """The model, returning its features."""

    def __init__(self, model: nn.Module, block: int | None, dense: bool, fill: Fill) -> None:
        super().__init__()
        self.model = model
        self.block, self.dense, self.fill = block, dense, fill

    def forward(self, pixels: Tensor) -> Tensor:
        return encode(self.model, pixels, block=self.block, dense=self.dense, fill=self.fill)
