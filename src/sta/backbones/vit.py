"""Columnar backbones with joint space-time attention: everything but the names of their parts.

A pruning step is one forward hook on a block: it sees the block's output, of which it returns fewer
tokens, and compares them by what a second hook captured of the block's projections. A concrete
adapter says where the blocks, the grid and the projections are, which tokens are protected, and
what later blocks need to know. docs/adding-a-backbone.md walks through writing one.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones.base import Adapter, StepLayout
from sta.backbones.hooks import (
    Placement,
    Swapped,
    ThreadLocal,
    ThreadLocalTensor,
    recorded_input,
    recorded_output,
)
from sta.backbones.patch_embedding import as_matrix_products
from sta.backbones.site import CapturePixels, head_mean, mean_over_heads
from sta.backbones.vit_hooks import (
    CaptureEmbeddings,
    CaptureProjection,
    CaptureTokens,
    CheckCall,
    ClearArgument,
    PassPositions,
    ReceiveInputStep,
    RemoveState,
    StartForward,
    WeighAttention,
    WeighAverage,
    WeighPooling,
)
from sta.backbones.vit_step import TokenStep
from sta.core.fill import delta_fill, delta_unmerge, fill_source, fill_source_clip
from sta.core.merge import weighted_mean
from sta.core.tokens import Grid, clip_indices, take
from sta.methods.base import Config, Layout, Need, Similarity, Step

_REFUSED: tuple[tuple[Need, str], ...] = (
    ("frames", "whole frames are dropped on Video Swin alone"),
    ("windows", "nothing fills dropped places here, only in Video Swin's windows; leave fill out"),
)


class ViTAdapter(Adapter):
    """A columnar backbone. Subclasses name its parts."""

    prefix: ClassVar[int] = 0  # leading tokens that are no part of the grid, never dropped
    any_length: ClassVar[bool] = False  # whether clips of other lengths than the config's fit
    #: Argument of a block that takes the grid positions of its tokens; None if it needs none.
    positions_argument: ClassVar[str | None] = None
    #: Argument of a block that must be None once tokens were dropped; None if there is none.
    cleared_argument: ClassVar[str | None] = None
    #: Attribute of a block that must not be handed the state; None if all of it takes keywords.
    stateless: ClassVar[str | None] = None
    #: Attribute of the model around the backbone that receives the mean of the last tokens.
    after_average: ClassVar[str | None] = None
    #: Attribute of that model whose layers pool the tokens by attention.
    pooler: ClassVar[str | None] = None
    #: The block's class with a step between attention and MLP; None if it cannot have one.
    block_with_step: ClassVar[type[Swapped] | None] = None

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

    @staticmethod
    def reason_against_call(backbone: Any, given: Mapping[str, Any]) -> str | None:
        """Why the backbone cannot serve a call with fewer tokens and what to do; None if it can."""
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
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attention with a bias on its logits, up to the output projection: (B, n, D) -> (B, n, D).

        The bias is broadcastable to (B, heads, n, n).
        """
        query, key = cls.queries_and_keys(block, attended, positions)
        value = cls.by_head(block, attended, "value")
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias.to(query.dtype), dropout_p=dropout
        )
        return context.transpose(1, 2).flatten(2)

    @classmethod
    def by_head(cls, block: nn.Module, attended: Tensor, part: Similarity) -> Tensor:
        """Queries, keys or values of what the attention receives, (B, heads, n, head dim)."""
        linear, heads = cls.projection(block, part)
        return linear(attended).unflatten(-1, (heads, -1)).transpose(1, 2)

    @classmethod
    def queries_and_keys(
        cls, block: nn.Module, attended: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Of the block's attention, which receives (B, n, D): (B, heads, n, head dim) each.

        `positions` is where on the grid the tokens belong, (B, n); None if all are there.
        """
        return cls.by_head(block, attended, "query"), cls.by_head(block, attended, "key")

    # Planning a method

    @property
    def layout(self) -> Layout:
        refuses = _REFUSED
        if self.block_with_step is None:
            refuses += (("merge", "its adapter has no block with a step inside"),)
        return Layout(self.family, len(self.blocks), self.grid, refuses=refuses)

    def place(self, config: Config, steps: Sequence[Step]) -> list[Placement]:
        drops = any(step.drop > 0 for step in steps)
        hooks: list[TokenStep] = []
        placed: list[Placement] = []
        for number, step in enumerate(steps):
            hook = TokenStep(number, len(steps), config, step, type(self), self.grid)
            module = self.blocks[step.after - 1] if step.after else self.embedding
            how: Any = self.block_with_step if step.inside and drops else "after"
            hooks.append(hook)
            placed.append(Placement(module, hook, how))
        if not drops:
            return placed  # the model as it is: hooks only record
        names = tuple(inspect.signature(self.backbone.forward).parameters)
        placed.insert(0, Placement(self.backbone, CheckCall(type(self), names), "before"))
        placed += self._size_weighting(config, steps, hooks)
        placed += self._captured_input(config, hooks)
        if config.embeds_patches:
            placed += as_matrix_products(self.embedding)
        placed += self._captured_features(config, steps, hooks)
        return placed + self._block_arguments(config, steps, hooks[0])

    def _size_weighting(
        self, config: Config, steps: Sequence[Step], hooks: Sequence[TokenStep]
    ) -> list[Placement]:
        """Lets a token that stands for others weigh as much as they did."""
        if "merge" not in config.requires:
            return []
        sizes = ThreadLocalTensor()
        for hook in hooks:
            hook.final_sizes = sizes
        out = self._weigh_head(sizes)
        if not config.weighs_attention:
            return out
        assert self.block_with_step is not None
        inside = {step.after for step in steps if step.inside}
        for number, block in enumerate(self.blocks, start=1):
            before = [i for i, step in enumerate(steps) if step.after < number]
            if before and number not in inside:
                weigh = WeighAttention(before[-1], config, self.prefix)
                out.append(Placement(block, weigh, self.block_with_step))
        return out

    def _weigh_head(self, sizes: ThreadLocalTensor) -> list[Placement]:
        """Lets the head of the model around the backbone weigh tokens by the sizes left there."""
        if (norm := self._part_of_head(self.after_average)) is not None:
            tokens = CaptureTokens()
            average = WeighAverage(tokens, sizes)
            return [Placement(self.backbone, tokens), Placement(norm, average, "before")]
        if (pooler := self._part_of_head(self.pooler)) is None:
            return []
        parts = (p if isinstance(p, nn.ModuleList) else (p,) for p in pooler.children())
        layers = [layer for part in parts for layer in part]
        return [Placement(layer, WeighPooling(sizes), "before") for layer in layers]

    def _part_of_head(self, name: str | None) -> nn.Module | None:
        """A module of the model that has this backbone as a part; None if there is none."""
        around = (m for m in (self.model or self.backbone).modules() if name)
        owners = (m for m in around if any(child is self.backbone for child in m.children()))
        return next((getattr(owner, name or "", None) for owner in owners), None)

    def average(self, tokens: Tensor) -> Tensor:
        for step in reversed(cast("list[TokenStep]", self.steps)):
            if step.sizes is not None and step.sizes.shape[:2] == tokens.shape[:2]:
                return weighted_mean(tokens, step.sizes)
        return super().average(tokens)

    def _captured_input(self, config: Config, hooks: Sequence[TokenStep]) -> list[Placement]:
        """Lets steps have the clip and its patch embeddings, where the method needs them."""
        out = []
        if "pixels" in config.requires:
            clip = CapturePixels(self.pixels)
            out.append(Placement(self.embedding, clip, "before"))
            for hook in hooks:
                hook.pixels, hook.tubelet = clip.clip, self.tubelet
        if "embeddings" in config.requires:
            embedded = CaptureEmbeddings()
            convolution = next(m for m in self.embedding.modules() if isinstance(m, nn.Conv3d))
            out.append(Placement(convolution, embedded))
            for hook in hooks:
                hook.embedded = embedded.tokens
        return out

    def _captured_features(
        self, config: Config, steps: Sequence[Step], hooks: Sequence[TokenStep]
    ) -> list[Placement]:
        """Lets steps at the end of a block have what the block's projection puts out."""
        if config.similarity is None or config.similarity == "ffn":
            return []
        out = []
        for step, hook in zip(steps, hooks, strict=True):
            if step.drop and step.after and not step.inside:
                linear, heads = self.projection(self.blocks[step.after - 1], config.similarity)
                hook.captured = CaptureProjection(heads)
                out.append(Placement(linear, hook.captured))
        return out

    def _block_arguments(
        self, config: Config, steps: Sequence[Step], first: TokenStep
    ) -> list[Placement]:
        """What blocks with fewer tokens are handed: positions, and the state of the forward."""
        out = []
        needed = self.positions_argument is not None or config.requires & {"merge", "positions"}
        if needed:
            _check_passes_keywords(self.encoder, self.blocks)
            out.append(Placement(self.encoder, StartForward(), "before"))
            if (name := self.stateless) is not None:
                modules = (getattr(block, name) for block in self.blocks)
                out += [Placement(module, RemoveState(), "before") for module in modules]
            if first.after == 0:
                first.input_kept, first.input_sizes = ThreadLocalTensor(), ThreadLocalTensor()
                first.input_frames = ThreadLocal()
                out.append(Placement(self.blocks[0], ReceiveInputStep(first), "before"))
        steps_after = {step.after: number for number, step in enumerate(steps)}
        last = steps_after.get(0)
        for number, block in enumerate(self.blocks, start=1):
            if last is not None and self.positions_argument is not None:
                at = _argument(block, self.positions_argument)
                out.append(Placement(block, PassPositions(last, at), "before"))
            if last is not None and self.cleared_argument is not None:
                at = _argument(block, self.cleared_argument)
                out.append(Placement(block, ClearArgument(at), "before"))
            last = steps_after.get(number, last)
        return out

    def tokens_per_frame(self, size: int) -> list[int]:
        return [self.grid.tokens]

    def all_blocks(self) -> list[tuple[nn.Module, int]]:
        return [(block, 0) for block in self.blocks]

    def token_pixels(self, merged: int = 0) -> tuple[int, int, int]:
        return self.tubelet

    def tokens_of(self, output: Any) -> Tensor:
        tokens: Tensor = output[0] if isinstance(output, tuple) else output
        return tokens[:, self.prefix :]

    def step_layouts(self) -> list[StepLayout]:
        steps, grid = self._last_clip()
        names = [f"block {step.after}" if step.after else "input" for step in steps]
        return [StepLayout(name, grid, self.tubelet) for name in names]

    # Looking at the last forward

    def kept(self) -> list[Tensor]:
        steps, grid = self._last_clip()
        out = []
        for number, flat in enumerate(_compose(steps), start=1):
            if _framewise(steps[:number]):
                out.append(flat.view(flat.shape[0], grid.frames, -1) % grid.tokens)
            else:
                out.append(flat.sort(-1).values)
        return out

    def restore(self, tokens: Tensor) -> Tensor:
        steps, grid = self._last_clip()
        flats = _compose(steps)
        tokens, number = self._rows_after(tokens, flats, grid)
        if number > 0:
            tokens = take(tokens, _fill(grid, steps[:number], flats[number - 1]))
        return tokens.reshape(-1, grid.frames, grid.tokens, tokens.shape[-1])

    def restore_delta(self, tokens: Tensor) -> Tensor:
        steps, grid = self._last_clip()
        flats = _compose(steps)
        tokens, number = self._rows_after(tokens, flats, grid)
        whole = torch.arange(grid.frames * grid.tokens, device=tokens.device)
        before = [whole.expand(tokens.shape[0], -1), *flats]
        for step, places in reversed(list(zip(steps[:number], before, strict=False))):
            if not step.drop:
                continue
            then, kept = recorded_input(step), cast(Tensor, step.kept)
            if step.into is not None:
                tokens = delta_unmerge(tokens, recorded_output(step), then, step.into)
            else:
                tokens = delta_fill(tokens, then, kept, places, grid)
        return tokens.reshape(-1, grid.frames, grid.tokens, tokens.shape[-1])

    def _rows_after(
        self, tokens: Tensor, flats: Sequence[Tensor], grid: Grid
    ) -> tuple[Tensor, int]:
        """Given tokens as rows without prefix, and how many steps they have passed."""
        counts = [grid.frames * grid.tokens, *(flat.shape[1] for flat in flats)]
        tokens = self.rows_of_last_forward(tokens, flats[0].shape[0])
        given = tokens.shape[1]
        for number in reversed(range(len(counts))):
            if given in (counts[number], counts[number] + self.prefix):
                return tokens[:, given - counts[number] :], number
        raise ValueError(
            f"tokens has {given} per clip; the last forward left {', '.join(map(str, counts))} "
            f"before and after its steps"
        )

    def _last_clip(self) -> tuple[list[TokenStep], Grid]:
        """The steps of the last forward and the grid of the clip that it saw."""
        steps = cast("list[TokenStep]", self.last_forward())
        return steps, self.grid._replace(frames=steps[0].received // self.grid.tokens)


def _argument(block: nn.Module, name: str) -> int:
    names = list(inspect.signature(block.forward).parameters)
    if name not in names:
        raise TypeError(
            f"{type(block).__name__}.forward has no argument {name!r} in the installed version, "
            f"only {', '.join(names)}; this adapter does not know how to tell it about positions"
        )
    return names.index(name)


def _check_passes_keywords(encoder: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """The state of a forward travels as a keyword argument, through the encoder to its blocks."""
    for module in (encoder, blocks[0]):
        kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            raise TypeError(
                f"{type(module).__name__}.forward takes no further keyword arguments in the "
                f"installed version; this adapter needs them to tell blocks where tokens belong"
            )


def _compose(steps: Sequence[TokenStep]) -> list[Tensor]:
    """Indices into the original grid after each step, (B, K), in token order."""
    flats: list[Tensor] = []
    for step in steps:
        kept = cast(Tensor, step.kept)
        flats.append(kept if not flats else flats[-1].gather(1, kept))
    return flats


def _framewise(steps: Sequence[TokenStep]) -> bool:
    """Whether every frame has as many tokens after these steps, in grid order."""
    # One that drops nothing leaves them as the steps before did.
    return all(step.framewise for step in steps)


def _fill(grid: Grid, steps: Sequence[TokenStep], flat: Tensor) -> Tensor:
    """Which of the tokens after the last of `steps` fills each place, (B, T * N)."""
    moved = [step.into for step in steps if step.drop]
    if moved and all(into is not None for into in moved):  # exact: every place knows where it went
        source, *later = cast("list[Tensor]", moved)
        for into in later:
            source = into.gather(1, source)
        return source
    if not _framewise(steps):
        return fill_source_clip(flat, grid.frames, grid.frame)
    kept = flat.view(flat.shape[0], grid.frames, -1)
    return clip_indices(fill_source(kept % grid.tokens, grid.frame), kept.shape[-1])
