"""What pruning must amount to: the dense model with its attention masked to the kept tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import sta
from sta.backbones import find


def gaps(
    pruned: nn.Module,
    stock: nn.Module,
    attentions: Sequence[nn.Module],
    steps_at: Sequence[int],
    clip: Tensor,
) -> list[float]:
    """How far each block of a pruned model is from the dense one, masked to the kept tokens.

    Args:
        pruned: A backbone with a method applied that drops tokens.
        stock: The same backbone without it.
        attentions: Of the stock model, each block's attention module.
        steps_at: The blocks after which the method's steps come; 0 stands for the embeddings.
        clip: Their input.

    Returns:
        Per block, the largest difference of its output on the tokens that are left after it.
    """
    ours = hidden_states(pruned, clip)
    adapter = find(pruned)
    batch, prefix, per_frame = clip.shape[0], adapter.prefix, adapter.grid.tokens
    frames = adapter.step_layouts()[0].grid.frames
    everything = torch.arange(prefix + frames * per_frame).expand(batch, -1)
    left = [everything] * len(ours)  # after the embeddings and after each block, (B, n)
    for number, kept in zip(steps_at, sta.kept(pruned), strict=True):
        if kept.ndim == 3:
            kept = (kept + torch.arange(frames).view(1, -1, 1) * per_frame).flatten(1)
        flat = kept + prefix
        left[number:] = [torch.cat([everything[:, :prefix], flat], 1)] * (len(ours) - number)
    nothing = torch.zeros_like(everything, dtype=torch.bool)
    masks = [nothing.scatter(1, places, True) for places in left[:-1]]
    theirs = masked_hidden_states(stock, dict(zip(attentions, masks, strict=True)), clip)
    return [
        (dense.gather(1, places.unsqueeze(-1).expand(-1, -1, dense.shape[-1])) - sparse)
        .abs()
        .max()
        .item()
        for dense, places, sparse in zip(theirs[1:], left[1:], ours[1:], strict=True)
    ]


def masked_hidden_states(
    model: nn.Module, present: dict[nn.Module, Tensor], clip: Tensor
) -> tuple[Tensor, ...]:
    """Hidden states of a stock model whose attention modules see the present tokens only."""

    def masked(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, None]:
        mask = present[module][:, None, None]  # (B, 1, 1, n)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return out.transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("masked", masked)
    before, model.config._attn_implementation = model.config._attn_implementation, "masked"
    try:
        return hidden_states(model, clip)
    finally:
        model.config._attn_implementation = before


def hidden_states(model: nn.Module, clip: Tensor) -> tuple[Tensor, ...]:
    """Hidden states of a backbone: after the embeddings, then after each block."""
    extra = {"skip_predictor": True} if hasattr(model, "predictor") else {}
    return model(clip, output_hidden_states=True, **extra).hidden_states
