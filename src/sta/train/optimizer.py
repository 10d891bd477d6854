"""What weight decay and rates apply to."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(
    model: nn.Module, rate: float, weight_decay: float, position_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Optimizer groups: matrices decay; biases, norms and tables of position biases do not.

    `position_scale` is the rate of the tables over that of the rest.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    tables = [p for name, p in trained if name.endswith("relative_position_bias_table")]
    others = [p for name, p in trained if not name.endswith("relative_position_bias_table")]
    groups = [
        {"params": [p for p in others if p.ndim > 1], "weight_decay": weight_decay, "lr": rate},
        {"params": [p for p in others if p.ndim <= 1], "weight_decay": 0.0, "lr": rate},
        {"params": tables, "weight_decay": 0.0, "lr": rate * position_scale},
    ]
    return [group for group in groups if group["params"]]
