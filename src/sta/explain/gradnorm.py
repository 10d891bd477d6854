"""GradNorm: how much each token matters to the loss (the paper's Discussion)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones import find
from sta.backbones.hooks import captured
from sta.backbones.outputs import logits_of
from sta.explain.inspect import StepResult


@dataclass(frozen=True)
class GradNorm:
    """GradNorm of one clip, and what the methods keep of it."""

    norm: NDArray[np.float32]  # GradNorm, (T, H, W)
    # Frames, height and width of the pixels behind one of its positions.
    patch: tuple[int, int, int]
    # By method, its steps, and the share of the gradient on what each keeps.
    kept: dict[str, list[tuple[StepResult, float]]]


def gradnorm(model: nn.Module, pixels: Tensor, labels: Tensor | None = None) -> Tensor:
    """The sum over blocks l and channels of |dL / dX^l|, where X^l is what block l puts out.

    On Swin, whose later blocks have fewer and larger tokens, the sum is on the first stage's grid:
    what a larger token has is spread evenly over its part of that grid, so nothing is lost.

    Args:
        model: An unpruned classifier.
        pixels: Clips in the model's layout.
        labels: Class of each clip, (B,); None takes the model's prediction. L is the cross-entropy.

    Returns:
        (B, T, H, W), on the grid of tokens.
    """
    adapter = find(model)
    if any(getattr(step, "drop", 0) for step in adapter.steps):
        raise ValueError(
            "GradNorm is of the unpruned model, where every token has a gradient; "
            "call sta.remove(model) first"
        )
    parts = adapter.all_blocks()
    with captured(block for block, _ in parts) as seen, torch.enable_grad():
        # The clip takes part in the graph, so that frozen weights do not matter.
        logits = logits_of(model(pixels.detach().requires_grad_()))
        labels = logits.argmax(-1) if labels is None else labels
        loss = F.cross_entropy(logits, labels, reduction="sum")  # clips do not mix
        outputs = [output[0] if isinstance(output, tuple) else output for output in seen]
        gradients = torch.autograd.grad(loss, outputs)
    if not adapter.layout.staged:
        assert adapter.layout.grid is not None
        rows = torch.stack([adapter.tokens_of(g).abs().sum(-1) for g in gradients]).sum(0)
        return rows.unflatten(1, (-1, *adapter.layout.grid.frame))
    total = torch.zeros_like(gradients[0][..., 0])  # (B, T, H, W)
    for gradient, (_, merged) in zip(gradients, parts, strict=True):
        norm = gradient.abs().sum(-1)
        total += on_finer_grid(norm, total.shape[-2:], 1 << merged, share=True)
    return total


def on_finer_grid(
    values: Tensor, grid: tuple[int, ...], times: int, *, share: bool = False
) -> Tensor:
    """Every position of a finer grid, (H, W), gets its token's value: (..., h, w) -> (..., H, W).

    A token is `times` by `times` positions, cut off at the edge. With `share` they divide its
    value, so that the sum stays.
    """
    rows, columns = (torch.arange(size, device=values.device) // times for size in grid)
    if share:
        area = rows.bincount().unsqueeze(1) * columns.bincount()
        values = values / area
    return values[..., rows, :][..., columns]


def share_on(kept: Tensor, norm: Tensor, times: int = 1) -> Tensor:
    """Share of the gradient on kept tokens, (B,).

    Args:
        kept: Which tokens are kept, bool, (B, T, h, w).
        norm: From `gradnorm`, (B, T, H, W).
        times: How many positions of `norm`'s grid a token is wide: over 1 in Swin's later stages.
    """
    on = on_finer_grid(kept, norm.shape[-2:], times)
    return (norm * on).flatten(1).sum(1) / norm.flatten(1).sum(1)
