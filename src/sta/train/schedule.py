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


def parameter_groups(
    model: nn.Module, weight_decay: float, position_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Optimizer groups: matrices decay; biases, norms and tables of position biases do not.

    Args:
        model: The model to train.
        weight_decay: Of the matrices.
        position_scale: Rate of the tables over that of the rest, as ``scale`` of their group.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    tables = [p for name, p in trained if name.endswith("relative_position_bias_table")]
    others = [p for name, p in trained if not name.endswith("relative_position_bias_table")]
    groups = [
        {"params": [p for p in others if p.ndim > 1], "weight_decay": weight_decay, "scale": 1.0},
        {"params": [p for p in others if p.ndim <= 1], "weight_decay": 0.0, "scale": 1.0},
        {"params": tables, "weight_decay": 0.0, "scale": position_scale},
    ]
    return [group for group in groups if group["params"]]
