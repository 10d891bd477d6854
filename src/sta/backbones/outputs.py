"""What a model takes and returns, beside its clips."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def logits_of(output: Any) -> Tensor:
    """The logits (B, classes) in what a classifier of transformers or torchvision returned."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if logits is None:
        raise ValueError(
            f"the model returns a {type(output).__name__} without logits; expected a classifier: "
            f"wrap the model in a module that returns a tensor of class scores"
        )
    return logits


def dtype_of(model: nn.Module) -> torch.dtype:
    """What a model computes in: the type of its weights."""
    floating = (p.dtype for p in model.parameters() if p.is_floating_point())
    return next(floating, torch.float32)
