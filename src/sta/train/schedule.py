"""The learning rate over a training run, and what weight decay applies to."""

from __future__ import annotations

import math
from typing import Any

from torch import nn


def warm_cosine(step: int, steps: int, warmup: int) -> float:
    """The share of the full rate at a step: a linear warm-up, then a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Optimizer groups: matrices decay; biases, norms and other vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
