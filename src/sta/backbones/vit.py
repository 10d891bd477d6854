"""Columnar backbones with joint space-time attention: everything but the names of their parts.

A pruning step is one forward hook on a block: it sees the block's output, of which it returns fewer
tokens, and compares them by what a second hook overheard of the block's projections. A concrete
adapter says where the blocks, the grid and the projections are, which tokens are protected, and
what later blocks need to know. docs/adding-a-backbone.md walks through writing one.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones.base import Adapter, Grid
from sta.backbones.hooks import Placement, Plug, Swapped
from sta.backbones.limits import check_merging, check_steps, released_groups
from sta.backbones.patch_embedding import as_products
from sta.backbones.vit_steps import (
    FrameDifferenceStep,
    MergeStep,
    RandomStep,
    ReleasedStep,
    STAStep,
    ViTStep,
)
from sta.backbones.vit_trail import Guard, Overhear, StartTrail
from sta.core.features import head_mean, mean_over_heads
from sta.core.noise import derive
from sta.core.options import Direction
from sta.core.schedule import STEPS, directions, drops, spread_blocks, tokens_before
from sta.core.tokens import fill_source, fill_source_clip, take
from sta.methods import (
    Config,
    DenseConfig,
    FrameDifferenceConfig,
    RandomConfig,
    Similarity,
    STAConfig,
    SteppedConfig,
    ToMeConfig,
)


class ViTAdapter(Adapter):
    """A columnar backbone. Subclasses name its parts."""

    prefix: ClassVar[int] = 0  # leading tokens that are no part of the grid, never dropped
    any_length: ClassVar[bool] = False  # whether clips of other lengths than the config's fit
    needs_trail: ClassVar[bool] = False  # whether blocks must hear what earlier steps kept
    merging_block: ClassVar[type[Swapped] | None] = None  # the block's class with merging inside

    @property
    @abstractmethod
    def grid(self) -> Grid:
        """The clip's grid of tokens."""

    @property
    @abstractmethod
    def tubelet(self) -> tuple[int, int, int]:
        """Frames, height and width of the pixels behind one token."""

    @property
    @abstractmethod
    def embedding(self) -> nn.Module:
        """The module that turns a clip into tokens; its first argument is the clip."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]:
        """The transformer blocks; tokens are their first argument and their output."""

    @property
    def encoder(self) -> nn.Module:
        """The module that runs the blocks and hands them its own keyword arguments."""
        return self.backbone.encoder

    @staticmethod
    @abstractmethod
    def attention_input(block: Any, x: Tensor) -> Tensor:
        """What the block's attention receives, given the block's input."""

    @staticmethod
    @abstractmethod
    def projection(block: Any, similarity: Similarity) -> tuple[nn.Linear, int]:
        """The linear layer that makes keys, queries or values, and the number of heads."""

    @staticmethod
    def pixels(clip: Tensor) -> Tensor:
        """The embedding's first argument as (B, F, C, H, W)."""
        return clip

    def before_block(self, after: int) -> Plug | None:
        """What a block needs that receives fewer tokens; None if nothing.

        Args:
            after: Number of the step that left the tokens.
        """
        return None

    @staticmethod
    def reason_against_call(backbone: Any, given: Mapping[str, Any]) -> str | None:
        """Why the backbone cannot serve a call with fewer tokens and what to do; None if it can.

        Args:
            backbone: The backbone.
            given: Arguments of the call, by name.
        """
        return None

    def reason_against_clip(self, clip: Tensor | None) -> str | None:
        """Why a clip does not fit learnt positions; None if it does, or if it is no clip at all."""
        if clip is None or clip.ndim != 5:
            return None
        (frames, _, height, width), grid = self.pixels(clip).shape[1:], self.grid
        t, h, w = self.tubelet
        if (frames // t, height // h, width // w) == grid:
            return None
        return (
            f"takes clips of {grid.frames * t} frames of {grid.height * h} x {grid.width * w} "
            f"pixels, not of {frames} frames of {height} x {width}"
        )

    # Similarity features and attention, from the parts named above

    @classmethod
    def features(cls, block: nn.Module, x: Tensor, similarity: Similarity) -> Tensor:
        """Similarity features from the block's input: (B, n, D) -> (B, n, head dim)."""
        return cls.head_mean(block, cls.attention_input(block, x.detach()), similarity)

    @classmethod
    def head_mean(cls, block: nn.Module, attended: Tensor, similarity: Similarity) -> Tensor:
        """Keys, queries or values averaged over heads, from what the attention receives."""
        linear, heads = cls.projection(block, similarity)
        if type(linear) is nn.Linear:
            return head_mean(attended, linear.weight, linear.bias, heads)
        return mean_over_heads(linear(attended).detach(), heads)  # adapted or quantised, say

    @classmethod
    def attend(
        cls,
        block: nn.Module,
        attended: Tensor,
        bias: Tensor,
        *,
        dropout: float,
        rotate: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> Tensor:
        """Attention with a bias on its logits, up to the output projection: (B, n, D).

        Args:
            block: The block.
            attended: What its attention receives, (B, n, D).
            bias: Broadcastable to (B, heads, n, n).
            dropout: Of the attention weights.
            rotate: Gives queries and keys, (B, heads, n, head dim), their rotary positions.
        """
        query, key, value = (
            linear(attended).unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, heads, n, head dim)
            for linear, heads in (cls.projection(block, f) for f in ("query", "key", "value"))
        )
        context = F.scaled_dot_product_attention(
            rotate(query), rotate(key), value, attn_mask=bias.to(query.dtype), dropout_p=dropout
        )
        return context.transpose(1, 2).flatten(2)

    # Planning a method

    def plan(self, config: Config) -> list[Placement]:
        steps = self._steps(config)
        if all(step.plug.drop == 0 for step in steps):  # type: ignore[attr-defined]
            return steps
        return [*steps, *self._companions(steps)]

    def _companions(self, steps: Sequence[Placement]) -> list[Placement]:
        """What the model needs beside these steps, which drop tokens."""
        names = tuple(inspect.signature(self.backbone.forward).parameters)
        out = [Placement(self.backbone, Guard(type(self), names), "before")]
        plugs = [step.plug for step in steps]
        out += [self._overhear(step) for step in steps if _compares_projections(step.plug)]
        if not isinstance(plugs[0], ReleasedStep):  # it stays the authors', to the last digit
            out += as_products(self.embedding)
        if self.needs_trail or isinstance(plugs[0], MergeStep):
            at_input = plugs[0] if isinstance(plugs[0], FrameDifferenceStep) else None
            clip = getattr(self.backbone, "main_input_name", "pixel_values")
            out.append(Placement(self.encoder, StartTrail(at_input, clip), "before"))
        numbers = {step.module: number for number, step in enumerate(steps)}
        after = numbers.get(self.embedding)
        for block in self.blocks:
            if after is not None and (plug := self.before_block(after)) is not None:
                out.append(Placement(block, plug, "before"))
            after = numbers.get(block, after)
        return out

    def _overhear(self, step: Placement) -> Placement:
        """Lets a step at the end of a block have what the block's projection puts out."""
        plug = cast(ViTStep, step.plug)
        linear, heads = self.projection(step.module, cast(Similarity, plug.similarity))
        plug.overheard = Overhear(heads)
        return Placement(linear, plug.overheard)

    def _steps(self, config: Config) -> list[Placement]:
        match config:
            case STAConfig(program="released"):
                return self._released_steps(config)
            case STAConfig() | RandomConfig():
                return self._block_steps(config)
            case FrameDifferenceConfig():
                tokens_before(self.grid.tokens, (config.r,))
                where = (0, type(self), self.grid, self.grid.tokens, config.r)
                return [
                    Placement(self.embedding, FrameDifferenceStep(*where, tubelet=self.tubelet))
                ]
            case ToMeConfig() if config.r > 0:
                return self._merging_steps(config)
            case ToMeConfig() | DenseConfig():
                return self._block_steps(STAConfig(r=0))
        raise self.refuse(config, "this method is unknown to it")

    def _block_steps(self, config: SteppedConfig) -> list[Placement]:
        depth = len(self.blocks)
        count = config.steps or min(STEPS, depth)
        blocks = config.blocks or spread_blocks(depth, count)
        if blocks[-1] > depth or len(set(blocks)) < count:
            raise ValueError(
                f"blocks={blocks} do not fit this model, which has {depth} blocks; "
                f"use {count} different numbers from 1 to {depth}"
            )
        dropped = drops(config.r, config.schedule, count)
        check_steps(config, dropped, self.grid.tokens)
        before = tokens_before(self.grid.tokens, dropped)
        orders = directions(config.order, count) if isinstance(config, STAConfig) else "F" * count
        steps = []
        for i, (number, tokens, drop) in enumerate(zip(blocks, before, dropped, strict=True)):
            where = (i, type(self), self.grid, tokens, drop)
            if isinstance(config, STAConfig):
                order, seed = cast(Direction, orders[i]), derive(config.seed, i)
                step: ViTStep = STAStep(*where, config=config, order=order, seed=seed)
            else:
                step = RandomStep(*where, seed=derive(cast(RandomConfig, config).seed, i))
            steps.append(Placement(self.blocks[number - 1], step))
        return steps

    def _released_steps(self, config: STAConfig) -> list[Placement]:
        frames, tokens = self.grid.frames, self.grid.tokens
        depth = len(self.blocks)
        if frames % 4 or depth < STEPS:
            raise ValueError(
                f"STAConfig.released regroups frames by 4 and prunes after 3 blocks; "
                f"this model has {frames} frames of tokens and {depth} blocks"
            )
        sizes = released_groups(config.r, tokens)
        steps = []
        for i, (number, size) in enumerate(zip(spread_blocks(depth, STEPS), sizes, strict=True)):
            where = (i, type(self), self.grid, size, config.r)
            step = ReleasedStep(*where, groups=frames >> i, backward=i % 2 == 1)
            steps.append(Placement(self.blocks[number - 1], step))
        return steps

    def _merging_steps(self, config: ToMeConfig) -> list[Placement]:
        if self.merging_block is None:
            raise self.refuse(config, "its adapter has no block that merges tokens")
        depth = len(self.blocks)
        check_merging(config.r, self.grid.frames * self.grid.tokens, depth)
        steps = [
            MergeStep(i, self.prefix, config.r, config.proportional, depth) for i in range(depth)
        ]
        return [
            Placement(block, step, self.merging_block)
            for block, step in zip(self.blocks, steps, strict=True)
        ]

    # Looking at the last forward

    def kept(self) -> list[Tensor]:
        steps, grid = self._last_clip()
        out = []
        for step, flat in zip(steps, _compose(steps), strict=True):
            if step.framewise:
                out.append(flat.view(flat.shape[0], grid.frames, -1) % grid.tokens)
            else:
                out.append(flat.sort(-1).values)
        return out

    def restore(self, tokens: Tensor) -> Tensor:
        steps, grid = self._last_clip()
        flats = [torch.empty(0), *_compose(steps)]
        counts = [grid.frames * grid.tokens, *(flat.shape[1] for flat in flats[1:])]
        tokens = self.rows_of_last_forward(tokens, flats[1].shape[0])
        given, dim = tokens.shape[1:]
        for number in reversed(range(len(counts))):
            if given in (counts[number], counts[number] + self.prefix):
                tokens = tokens[:, given - counts[number] :]
                if number > 0:
                    tokens = take(tokens, _fill(grid, steps[:number], flats[number]))
                return tokens.reshape(-1, grid.frames, grid.tokens, dim)
        raise ValueError(
            f"tokens has {given} per clip; the last forward left {', '.join(map(str, counts))} "
            f"before and after its steps"
        )

    def _last_clip(self) -> tuple[list[ViTStep | MergeStep], Grid]:
        """The steps of the last forward and the grid of the clip that it saw."""
        steps = cast("list[ViTStep | MergeStep]", self.last_forward())
        return steps, self.grid._replace(frames=steps[0].received // self.grid.tokens)


def _compares_projections(plug: Plug) -> bool:
    return isinstance(plug, ViTStep) and plug.drop > 0 and plug.similarity not in (None, "ffn")


def _compose(steps: Sequence[ViTStep | MergeStep]) -> list[Tensor]:
    """Indices into the original grid after each step, (B, K), in token order."""
    flats: list[Tensor] = []
    for step in steps:
        kept = cast(Tensor, step.kept)
        flats.append(kept if not flats else flats[-1].gather(1, kept))
    return flats


def _fill(grid: Grid, steps: Sequence[ViTStep | MergeStep], flat: Tensor) -> Tensor:
    """Which of the tokens after the last of `steps` fills each place, (B, T * N)."""
    if isinstance(steps[-1], MergeStep):  # exact: every place knows where it went
        source, *later = (cast(Tensor, cast(MergeStep, step).source) for step in steps)
        for into in later:
            source = into.gather(1, source)
        return source
    if not steps[-1].framewise:
        return fill_source_clip(flat, grid.frames, grid.frame)
    kept = flat.view(flat.shape[0], grid.frames, -1)
    offset = torch.arange(grid.frames, device=flat.device).view(-1, 1) * kept.shape[-1]
    return (fill_source(kept % grid.tokens, grid.frame) + offset).flatten(1)
