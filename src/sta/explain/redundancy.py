"""Trajectory sum S: how much of a clip's last frame was there before (the paper's Discussion)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones import Adapter, find


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
    found: list[Tensor] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        found[:] = [output[0] if isinstance(output, tuple) else output]

    last, _ = adapter.all_blocks()[-1]
    handle = last.register_forward_hook(record)  # after the hook of a step on this block
    try:
        run()
    finally:
        handle.remove()
    if found[0].ndim == 5:  # Swin's stock blocks keep the grid: (B, T, H, W, D)
        return found[0].flatten(2, 3)
    rows = adapter.tokens_of(found[0])
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
