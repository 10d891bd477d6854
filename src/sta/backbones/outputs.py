"""What a classifier returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor


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
