"""From uint8 frames to class scores, for either backbone family."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sta.backbones.zoo.spec import IMAGENET_MEAN, IMAGENET_STD, Layout


def layout_of(model: nn.Module) -> Layout:
    """VideoMAE takes (B, T, C, H, W), torchvision's models (B, C, T, H, W)."""
    return "TCHW" if hasattr(model, "config") else "CTHW"


def normalise(frames: Tensor, layout: Layout) -> Tensor:
    """Normalised pixels of uint8 frames (B, T, 3, H, W), in the layout of a model."""
    shape = (1, 1, 3, 1, 1)
    mean = torch.tensor(IMAGENET_MEAN, device=frames.device).view(shape)
    std = torch.tensor(IMAGENET_STD, device=frames.device).view(shape)
    pixels = (frames.float() / 255 - mean) / std
    return pixels.contiguous() if layout == "TCHW" else pixels.transpose(1, 2).contiguous()


def logits_of(model: nn.Module, pixels: Tensor) -> Tensor:
    """Class scores (B, classes), whether the model returns them or an output object."""
    out = model(pixels)
    logits: Tensor = out if isinstance(out, Tensor) else out.logits
    return logits
