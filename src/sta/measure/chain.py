"""What choosing tokens costs: one step of STA by itself, and as a share of the pruned forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import RenderableType
from torch import Tensor, nn

import sta
from sta.backbones import find
from sta.backbones.copies import shared_copy
from sta.backbones.vit import ViTAdapter
from sta.backbones.zoo.video_model import VideoModel
from sta.core.schedule import STEPS, directions, drops, tokens_before
from sta.measure.bench import about, bench_clips
from sta.measure.contenders import Source
from sta.measure.memory import keep_memory
from sta.measure.timing import Timing, interleave
from sta.methods import STAConfig
from sta.progress import ProgressArg, reporting
from sta.results import Result, table
from sta.runtime.devices import choose_device

FRAMES, BATCHES = (8, 16, 32, 64), (1, 4)


@dataclass(frozen=True)
class ChainResult(Result):
    """The time that choosing tokens takes.

    Attributes:
        model: The model's name.
        r: Tokens dropped per frame.
        rows: One step: `frames`, `batch_size`, `ms` and `ms_per_frame` of one clip.
        batch_size: Clips of the forward that the share is of.
        share: `steps_ms` of all steps, `forward_ms` of the pruned forward, and their `share`.
        about: What the figures depend on beside the model.
    """

    model: str
    r: int
    rows: tuple[dict[str, Any], ...]
    batch_size: int
    share: dict[str, float]
    about: dict[str, Any]

    def records(self) -> list[dict[str, Any]]:
        """A row per number of frames and clips, then one with the share of a forward."""
        return [{"model": self.model, "r": self.r, **row} for row in (*self.rows, self.share)]

    def tables(self) -> Iterator[RenderableType]:
        """A table of the steps, and a line about the forward."""
        yield table(
            ("frames", "batch size", "ms", "ms per frame of a clip"),
            [
                (
                    str(row["frames"]),
                    str(row["batch_size"]),
                    f"{row['ms']:.2f}",
                    f"{row['ms_per_frame']:.3f}",
                )
                for row in self.rows
            ],
            title=f"choosing tokens as in {self.model}, r={self.r}, one step",
        )
        yield (
            f"all steps of a forward of {self.batch_size} take {self.share['steps_ms']:.2f} ms of "
            f"{self.share['forward_ms']:.1f} ms: {self.share['share']:.2%}"
        )


def bench_chain(
    model: str | nn.Module | VideoModel = "vit-s-k400",
    *,
    r: int | None = None,
    batch_size: int = 1,
    rounds: int = 9,
    threads: int | None = None,
    device: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    progress: ProgressArg = True,
) -> ChainResult:
    """Time the choice of tokens, alone for 8 to 64 frames and as a share of the pruned forward.

    The model must have the same tokens in every block; the arguments are those of `sta.bench`.
    """
    where = choose_device(device, model)
    keep_memory()
    source = Source(model, overrides or {}, random_weights, where, threads)
    with reporting(progress, "benchmark") as report:
        report(f"loading {source.name}")
        opened = source.open()
        config = STAConfig(r=opened.default_r if r is None else r)
        report("timing one step")
        rows = chain_rows(opened, config, rounds=rounds, device=where)
        clip = opened.pixels(bench_clips(None, opened.clip.views, batch_size), where)
        report("timing all steps beside the forward")
        share = share_of_forward(opened, clip, config, rounds=rounds)
    facts = about(where, rounds, None)
    return ChainResult(source.name, config.r, tuple(rows), batch_size, share, facts)


def chain_rows(
    opened: VideoModel,
    config: STAConfig,
    *,
    frames: Sequence[int] = FRAMES,
    batch_sizes: Sequence[int] = BATCHES,
    rounds: int = 9,
    device: str = "cpu",
    time: Callable[..., dict[Any, Timing]] = interleave,
) -> list[dict[str, Any]]:
    """Time the model's first step for clips of any number of token frames.

    `ms_per_frame`, of one clip, stays the same where the cost grows linearly with the frames.
    """
    adapter = _columnar(opened)
    runs = {
        (count, batch): step(adapter, config, count, adapter.grid.tokens, config.r, batch, device)
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
    config: STAConfig,
    *,
    rounds: int = 9,
    time: Callable[..., dict[Any, Timing]] = interleave,
) -> dict[str, float]:
    """Seconds of all steps of a forward beside the pruned forward, timed in turn."""
    adapter = _columnar(opened)
    device = str(clip.device)
    count = config.steps or min(STEPS, len(adapter.blocks))
    dropped = drops(config.r, config.schedule, count)
    before = tokens_before(adapter.grid.tokens, dropped)
    orders = directions(config.order, count)
    frames = adapter.grid.frames
    runs: dict[Any, Callable[[], object]] = {
        number: step(adapter, config, frames, tokens, drop, len(clip), device, order)
        for number, (tokens, drop, order) in enumerate(zip(before, dropped, orders, strict=True))
    }
    pruned = sta.apply(shared_copy(opened.model), config)
    timings = time({**runs, "forward": partial(pruned, clip)}, rounds=rounds, device=clip.device)
    steps = sum(timings[number].median for number in runs)
    forward = timings["forward"].median
    return {"steps_ms": 1000 * steps, "forward_ms": 1000 * forward, "share": steps / forward}


def _columnar(opened: VideoModel) -> ViTAdapter:
    adapter = find(opened.model)
    if not isinstance(adapter, ViTAdapter):
        raise ValueError(
            f"the choice alone is timed on backbones with the same tokens in every block, such as "
            f"vit-b; this one is {adapter.family}"
        )
    return adapter


def step(
    adapter: ViTAdapter,
    config: STAConfig,
    frames: int,
    tokens: int,
    r: int,
    batch: int,
    device: str,
    order: str = "F",
) -> Callable[[], object]:
    """One step on random tokens and features of the model's widths, with the model's settings."""
    linear, heads = adapter.projection(adapter.blocks[0], "key")
    generator = torch.Generator().manual_seed(0)
    size = (batch, frames, tokens)
    x = torch.randn(*size, linear.in_features, generator=generator).to(device)
    metric = torch.randn(*size, linear.out_features // heads, generator=generator).to(device)
    return partial(
        sta.prune_step,
        x,
        metric,
        r,
        order=order,  # type: ignore[arg-type]
        score=config.score,
        semantic=config.semantic,
        first_frame=config.first_frame,
        temperature=config.temperature,
        seed=config.seed,
    )
