"""What choosing tokens costs: one step of STA by itself, and as a share of the pruned forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import sta
from sta.backbones import find
from sta.backbones.copies import shared_copy
from sta.backbones.vit import ViTAdapter
from sta.backbones.zoo.video_model import VideoModel
from sta.core.schedule import STEPS, drops, tokens_before
from sta.measure.timing import Timing, interleave
from sta.methods import STAConfig

FRAMES, BATCHES = (8, 16, 32, 64), (1, 4)


def chain_rows(
    opened: VideoModel,
    r: int,
    *,
    frames: Sequence[int] = FRAMES,
    batch_sizes: Sequence[int] = BATCHES,
    rounds: int = 9,
    device: str = "cpu",
    time: Callable[..., dict[Any, Timing]] = interleave,
) -> list[dict[str, Any]]:
    """Time `sta.prune_step` at the model's first step, for clips of any number of token frames.

    Args:
        opened: A columnar model, which tells the tokens per frame and the widths.
        r: Tokens dropped per frame.
        frames: Token frames of the clips.
        batch_sizes: Clips at a time.
        rounds: How often each is timed.
        device: Where.
        time: What times them.

    Returns:
        Rows with `frames`, `batch_size`, `ms` and `ms_per_frame` (of one clip), which stays the
        same where the cost grows linearly with the frames.
    """
    adapter = _columnar(opened)
    runs = {
        (count, batch): _step(adapter, count, adapter.grid.tokens, r, batch, device)
        for count in frames
        for batch in batch_sizes
    }
    timings = time(runs, rounds=rounds, device=torch.device(device))
    return [
        {
            "frames": count,
            "batch_size": batch,
            "ms": 1000 * timing.median,
            "ms_per_frame": 1000 * timing.median / count / batch,
        }
        for (count, batch), timing in timings.items()
    ]


def share_of_forward(
    opened: VideoModel,
    clip: Tensor,
    r: int,
    *,
    rounds: int = 9,
    time: Callable[..., dict[Any, Timing]] = interleave,
) -> dict[str, float]:
    """Seconds of all steps of a forward beside the whole pruned forward, timed in turn."""
    adapter = _columnar(opened)
    device = str(clip.device)
    dropped = drops(r, "decreasing", min(STEPS, len(adapter.blocks)))
    before = tokens_before(adapter.grid.tokens, dropped)
    runs: dict[Any, Callable[[], object]] = {
        number: _step(adapter, adapter.grid.frames, tokens, drop, len(clip), device)
        for number, (tokens, drop) in enumerate(zip(before, dropped, strict=True))
    }
    pruned = sta.apply(shared_copy(opened.model), STAConfig(r=r))
    timings = time({**runs, "forward": partial(pruned, clip)}, rounds=rounds, device=clip.device)
    steps = sum(timings[number].median for number in runs)
    forward = timings["forward"].median
    return {"steps_ms": 1000 * steps, "forward_ms": 1000 * forward, "share": steps / forward}


def _columnar(opened: VideoModel) -> ViTAdapter:
    adapter = find(opened.model)
    if not isinstance(adapter, ViTAdapter):
        raise ValueError(
            f"--chain needs a backbone with the same tokens in every block, such as vit-b; this "
            f"one is {adapter.family}"
        )
    return adapter


def _step(
    adapter: ViTAdapter, frames: int, tokens: int, r: int, batch: int, device: str
) -> Callable[[], object]:
    """One step on random tokens and features of the model's widths."""
    linear, heads = adapter.projection(adapter.blocks[0], "key")
    generator = torch.Generator().manual_seed(0)
    size = (batch, frames, tokens)
    x = torch.randn(*size, linear.in_features, generator=generator).to(device)
    metric = torch.randn(*size, linear.out_features // heads, generator=generator).to(device)
    return partial(sta.prune_step, x, metric, r)
