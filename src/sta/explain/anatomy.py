"""Where a backbone's blocks and steps are, and which pixels are behind their tokens."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from sta.backbones import Adapter, Grid, find
from sta.backbones.hooks import StepHook, hooks_in
from sta.backbones.swin import SwinAdapter
from sta.backbones.vit import ViTAdapter


class Site(NamedTuple):
    """A module that may carry a step.

    Attributes:
        name: "input", "block 5" or "stage 2": what a step there comes after.
        merged: How often patches were merged by then.
        module: The module.
    """

    name: str
    merged: int
    module: nn.Module

    @property
    def step(self) -> Any:
        """The step that it carries, or None."""
        return next(hooks_in(self.module, StepHook), None)


class StepPlace(NamedTuple):
    """Where a step is, and the tokens it chooses from.

    Attributes:
        after: What it comes after: "input", "block 5" or "stage 2".
        grid: Places for tokens.
        patch: Frames, height and width of the pixels behind one token.
    """

    after: str
    grid: Grid
    patch: tuple[int, int, int]


def sites(adapter: Adapter) -> list[Site]:
    """The modules that may carry a step."""
    if isinstance(adapter, ViTAdapter):
        blocks = [Site(f"block {i}", 0, block) for i, block in enumerate(adapter.blocks, 1)]
        return [*blocks, Site("input", 0, adapter.embedding)]
    swin = cast(SwinAdapter, adapter)
    stages = [Site(f"stage {i}", i, stage) for i, stage in enumerate(swin.stages)]
    return stages + [Site(f"stage {i}", i, m) for i, m in enumerate(swin.mergings, 1)]


def places(model: nn.Module) -> list[StepPlace]:
    """Where the steps of the last forward are, in their order."""
    adapter = find(model)
    carried = {site.step: site for site in sites(adapter) if site.step is not None}
    steps: list[Any] = list(adapter.last_forward())
    found = []
    for step in steps:
        site = carried[step]
        grid: Grid
        if isinstance(adapter, ViTAdapter):  # a clip may be longer than the config's
            grid = adapter.grid._replace(frames=steps[0].received // adapter.grid.tokens)
        else:
            grid = step.grid
        found.append(StepPlace(site.name, grid, patch(adapter, site.merged)))
    return found


def patch(adapter: Adapter, merged: int = 0) -> tuple[int, int, int]:
    """Frames, height and width of the pixels behind one token after so many patch mergings."""
    if isinstance(adapter, ViTAdapter):
        return adapter.tubelet
    frames, height, width = adapter.backbone.patch_embed.tuple_patch_size
    return frames, height << merged, width << merged


def blocks(adapter: Adapter) -> list[tuple[nn.Module, int]]:
    """The transformer blocks, and how often patches were merged before each."""
    if isinstance(adapter, ViTAdapter):
        return [(block, 0) for block in adapter.blocks]
    return [
        (block, merged)
        for merged, stage in enumerate(cast(SwinAdapter, adapter).stages)
        for block in stage
    ]


def tokens_of(adapter: Adapter, output: Any) -> Tensor:
    """The tokens that a block put out, as rows, (B, n, D), without class token."""
    tokens: Tensor = output[0] if isinstance(output, tuple) else output
    if isinstance(adapter, ViTAdapter):
        return tokens[:, adapter.prefix :]
    return tokens.flatten(1, -2)
