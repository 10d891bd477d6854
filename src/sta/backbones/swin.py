"""Video Swin (torchvision): four stages of window attention, patches merged in between.

A step comes after each patch merging and chooses from the full grid that the next stage receives.
Inside the stage, linear layers run on the kept tokens alone; window attention sees the whole grid,
the nearest kept token standing in for each dropped one; before the next merging the grid is
filled the same way. Every stage runs on our own window attention, which is also what `DenseConfig`
is about.

A forward hook on a stage, e.g. `model.features[4]`, sees full grids (B, T, H, W, C); the output of
the last stage is (B, T, K, 1, C), the kept tokens, unless `pool="grid"`. A hook on a block inside
sees the kept tokens as (B, T * K, C). `sta.restore` takes all of these.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torchvision.models.swin_transformer import PatchMerging, SwinTransformerBlock
from torchvision.models.video.swin_transformer import ShiftedWindowAttention3d, SwinTransformer3d

from sta.backbones.base import Adapter
from sta.backbones.hooks import Placement
from sta.backbones.limits import StageDrops
from sta.backbones.patch_embedding import as_products
from sta.backbones.swin_steps import (
    BiasCache,
    FrameDifferenceStageStep,
    PixelChange,
    RandomStageStep,
    RecordStep,
    StagePlug,
    StageStep,
    STAStageStep,
    WindowBlock,
    WindowStage,
)
from sta.core.noise import derive
from sta.core.options import Direction
from sta.core.schedule import directions
from sta.core.tokens import fill_source, take
from sta.methods import (
    Config,
    DenseConfig,
    Fill,
    FrameDifferenceConfig,
    RandomConfig,
    STAConfig,
    SteppedConfig,
    ToMeConfig,
)


class SwinAdapter(Adapter):
    """Adapter of `SwinTransformer3d`: swin3d_t, swin3d_s, swin3d_b and any other size."""

    family = "Video Swin"
    classes = ("SwinTransformer3d",)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return isinstance(module, SwinTransformer3d)

    def reason_against(self, model: nn.Module) -> str | None:
        for module in self.backbone.features:
            if not isinstance(module, nn.Sequential | PatchMerging):
                return f"its features contain a {type(module).__name__}"
        for stage in self.stages:
            for block in stage:
                if not isinstance(block, SwinTransformerBlock):
                    return f"a stage contains a {type(block).__name__}"
                if not isinstance(block.attn, ShiftedWindowAttention3d):
                    return f"a block attends with {type(block.attn).__name__}"
        return None

    @property
    def stages(self) -> list[nn.Sequential]:
        """The stages, each a sequence of blocks."""
        return [m for m in self.backbone.features if isinstance(m, nn.Sequential)]

    @property
    def mergings(self) -> list[PatchMerging]:
        """The patch mergings; the first comes after the first stage."""
        return [m for m in self.backbone.features if isinstance(m, PatchMerging)]

    # Planning a method

    def plan(self, config: Config) -> list[Placement]:
        match config:
            case STAConfig(program="released"):
                raise self.refuse(config, "the authors never published their program for it")
            case ToMeConfig():
                raise self.refuse(
                    config, "merged tokens have no place in the grid, which windows are cut from"
                )
            case STAConfig() | RandomConfig() | FrameDifferenceConfig() | DenseConfig():
                return self._steps(config)
        raise self.refuse(config, "this method is unknown to it")

    def _steps(self, config: Config) -> list[Placement]:
        plan = self.stage_drops(config)
        if not isinstance(config, DenseConfig) and not any(plan.of(plan.r)):
            return [
                Placement(self.mergings[stage - 1], RecordStep(i, plan, "all", False))
                for i, stage in enumerate(plan.stages)
            ]
        steps = dict(zip(plan.stages, self._make(config, plan), strict=True))
        queries = config.window_queries if isinstance(config, STAConfig) else "kept"
        placements = []
        for before, stage in enumerate(self.stages):  # stages that lie before this one
            placements.append(Placement(stage, steps.get(before, StagePlug(queries)), WindowStage))
            placements += [Placement(block, BiasCache(), WindowBlock) for block in stage]
        pixels = next((s.pixels for s in steps.values() if hasattr(s, "pixels")), None)
        if pixels is not None:
            placements.append(Placement(self.backbone.patch_embed, pixels, "before"))
        if not isinstance(config, DenseConfig):
            placements += as_products(self.backbone.patch_embed)
        return placements

    def stage_drops(self, config: Config) -> StageDrops:
        """The stages after whose merging a step comes, and what each drops."""
        possible = len(self.mergings)
        everywhere = tuple(range(1, possible + 1))
        if isinstance(config, DenseConfig):
            return StageDrops(0, "decreasing", everywhere)
        named = config.schedule if isinstance(config, SteppedConfig) else "decreasing"
        chosen = config.blocks if isinstance(config, SteppedConfig) else None
        steps = (config.steps if isinstance(config, SteppedConfig) else None) or possible
        chosen = chosen or everywhere[:steps]
        if len(chosen) < steps or not set(chosen) <= set(everywhere) or not possible:
            raise ValueError(
                f"{steps} steps after stages {chosen} do not fit this model, which has {possible} "
                f"stages with a patch merging; blocks are different stage numbers from 1 to "
                f"{possible}"
            )
        return StageDrops(config.r, named, chosen)  # type: ignore[attr-defined]

    def _make(self, config: Config, plan: StageDrops) -> list[StageStep]:
        settings = config if isinstance(config, STAConfig) else STAConfig()
        orders = directions(settings.order, len(plan.stages))
        fill: Fill = getattr(config, "fill", "frame")
        pixels = PixelChange()
        made: list[StageStep] = []
        for i, stage in enumerate(plan.stages):
            last = stage == len(self.stages) - 1
            pool_kept = last and settings.pool == "kept"
            where = (i, plan, settings.window_queries, pool_kept, fill)
            match config:
                case STAConfig():
                    order, seed = cast(Direction, orders[i]), derive(config.seed, i)
                    made.append(STAStageStep(*where, config=config, order=order, seed=seed))
                case RandomConfig():
                    made.append(RandomStageStep(*where, seed=derive(config.seed, i)))
                case FrameDifferenceConfig():
                    made.append(FrameDifferenceStageStep(*where, pixels=pixels, merged=stage))
                case _:
                    made.append(StageStep(*where))
        return made

    # Looking at the last forward

    def kept(self) -> list[Tensor]:
        return [cast(Tensor, step.kept) for step in self.last_forward()]

    def restore(self, tokens: Tensor) -> Tensor:
        steps = cast(list[StageStep], self.last_forward())
        rows = self.rows_of_last_forward(tokens, cast(Tensor, steps[0].kept).shape[0])
        batch, given, width = rows.shape
        # Stages differ in width; tokens of another width (scores, say) go by their number alone.
        of_width = [step for step in steps if step.width == width] or steps
        counts = []
        for step in reversed(of_width):
            assert step.grid is not None
            assert step.kept is not None
            grid, kept = step.grid, step.kept  # (B, T, K)
            if given == grid.frames * kept.shape[-1]:
                frames = rows.reshape(batch * grid.frames, -1, width)
                source = fill_source(kept, grid.frame).flatten(0, 1)
                return take(frames, source).view(batch, grid.frames, grid.tokens, width)
            if given == grid.frames * grid.tokens:
                return rows.reshape(batch, grid.frames, grid.tokens, width)
            counts += [grid.frames * kept.shape[-1], grid.frames * grid.tokens]
        raise ValueError(
            f"tokens has {given} per clip; the last forward's steps left or received "
            f"{', '.join(map(str, counts))}"
        )
