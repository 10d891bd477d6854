"""A model as a source of features: uint8 clips go in, vectors or grids of them come out."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sta.backbones import find
from sta.backbones.encode import Fill, check_block, encode
from sta.backbones.outputs import dtype_of
from sta.backbones.patch import apply
from sta.backbones.zoo.spec import ClipSpec
from sta.methods import Config


@dataclass
class Encoder:
    """Runs one model under one method for its features; see `sta.backbones.encode`.

    Attributes:
        model: A supported classifier or bare encoder, with no method applied yet.
        clip: The clips it expects.
        config: The method; None stands for the model as it is.
        device: Where to run it.
        block: Whose output is taken, counted from 1; None is the whole model's.
        dense: Give tokens on their grid instead of one vector.
        fill: What stands at dropped places.
    """

    model: nn.Module
    clip: ClipSpec
    config: Config | None = None
    device: str = "cpu"
    block: int | None = None
    dense: bool = False
    fill: Fill = "nearest"

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()
        check_block(find(self.model), self.block)
        if self.config is not None:
            apply(self.model, self.config)

    def __call__(self, clips: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Features ``(1, B, ...)`` of clips ``(B, T, H, W, 3)``, and seconds."""
        start = time.perf_counter()
        with torch.inference_mode():
            pixels = self.clip.pixels(clips, self.device).to(dtype_of(self.model))
            made = encode(self.model, pixels, block=self.block, dense=self.dense, fill=self.fill)
            features = made.float().cpu().numpy()
        return features[None], np.array([time.perf_counter() - start])
