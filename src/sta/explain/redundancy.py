"""Trajectory sum S: how much of a clip's last frame was there before (the paper's Discussion)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones import Adapter, find
from sta.backbones.hooks import captured


def trajectory_sum(tokens: Tensor) -> Tensor:
    """S: for each token of the last frame, its best cosine similarity in each earlier frame, summed
    over those frames and averaged over its tokens, of (B, T, K, D).

    Returns:
        (B,), at most T - 1, which equal frames reach.
    """
    unit = F.normalize(tokens.double(), dim=-1)
    last, earlier = unit[:, -1:], unit[:, :-1]  # (B, 1, K, D), (B, T - 1, K, D)
    similarity = last @ earlier.transpose(-1, -2)  # (B, T - 1, K of the last, K)
    return similarity.amax(-1).mean(-1).sum(-1)


def last_tokens(model: nn.Module, run: Callable[[], Any]) -> Tensor:
    """The tokens that the last block puts out in a forward, `run`, by frame: (B, T, K, D).

    Refuses a method that keeps different numbers in different frames.
    """
    adapter = find(model)
    last, _ = adapter.all_blocks()[-1]
    with captured([last]) as seen:
        run()
    output = seen[-1]
    if isinstance(output, Tensor) and output.ndim == 5:  # Swin's stock blocks keep the grid
        return output.flatten(2, 3)  # (B, T, H, W, D) -> (B, T, K, D)
    rows = adapter.tokens_of(output)
    return rows.unflatten(1, (_frames(adapter, rows), -1))


def _frames(adapter: Adapter, rows: Tensor) -> int:
    if not adapter.steps:
        grid = adapter.layout.grid
        assert grid is not None  # where there is none, blocks keep it
        return rows.shape[1] // grid.tokens
    kept = adapter.kept()[-1]
    if kept.ndim != 3:
        raise ValueError(
            "the trajectory sum compares frames of equally many tokens, but this method keeps "
            "different numbers in different frames"
        )
    return kept.shape[1]
