"""Columnar backbones with joint space-time attention: everything but the names of their parts.

A pruning step is one forward hook on a block: it sees the block's output, of which it returns fewer
tokens, and compares them by what a second hook captured of the block's projections. A concrete
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

from sta.backbones.base import Adapter, StepLayout
from sta.backbones.hooks import Placement, StepHook, Swapped, ThreadLocalTensor
from sta.backbones.patch_embedding import as_products
from sta.backbones.values import StepValues, left_by, received
from sta.backbones.vit_hooks import (
    CaptureEmbeddings,
    CapturePixels,
    CaptureProjection,
    CaptureTokens,
    CheckCall,
    ClearArgument,
    ForgetState,
    ForwardState,
    PassPositions,
    ReceiveInputStep,
    StartForward,
    WeighAttention,
    WeighAverage,
    WeighPooling,
    size_bias,
)
from sta.core.delta import delta_fill, delta_unmerge
from sta.core.features import head_mean, mean_over_heads
from sta.core.grid import Grid
from sta.core.merge import merge_tokens, most_similar, weighted_mean
from sta.core.tokens import fill_source, fill_source_clip, take
from sta.methods.base import Choice, Config, Layout, Need, Similarity, Step

_FRAMES: tuple[Need, str] = ("frames", "whole frames are dropped on Video Swin alone")


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
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attention with a bias on its logits, up to the output projection: (B, n, D).

        Args:
            block: The block.
            attended: What its attention receives, (B, n, D).
            bias: Broadcastable to (B, heads, n, n).
            dropout: Of the attention weights.
            positions: As for `queries_and_keys`.
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
        """Those of the block's attention, (B, heads, n, head dim) each.

        Args:
            block: The block.
            attended: What its attention receives, (B, n, D).
            positions: Where on the grid the tokens belong, (B, n); None if all are there.
        """
        return cls.by_head(block, attended, "query"), cls.by_head(block, attended, "key")

    # Planning a method

    @property
    def layout(self) -> Layout:
        refuses: tuple[tuple[Need, str], ...] = (_FRAMES,)
        if self.block_with_step is None:
            refuses += (("merge", "its adapter has no block with a step inside"),)
        return Layout(self.family, len(self.blocks), self.grid, refuses=refuses)

    def place(self, config: Config, steps: Sequence[Step]) -> list[Placement]:
        drops = any(step.drop > 0 for step in steps)
        pixels = CapturePixels(type(self)) if drops and "pixels" in config.requires else None
        embedded = CaptureEmbeddings() if drops and "embeddings" in config.requires else None
        placed: list[Placement] = []
        for number, step in enumerate(steps):
            hook = TokenStep(number, len(steps), config, step, type(self), self.grid)
            module = self.blocks[step.after - 1] if step.after else self.embedding
            how: Any = self.block_with_step if step.inside and drops else "after"
            hook.pixels, hook.embedded, hook.tubelet = pixels, embedded, self.tubelet
            placed.append(Placement(module, hook, how))
        if not drops:
            return placed  # the model as it is: hooks only record
        placed += self._weighing(config, steps, placed)
        names = tuple(inspect.signature(self.backbone.forward).parameters)
        placed.insert(0, Placement(self.backbone, CheckCall(type(self), names), "before"))
        if pixels is not None:
            placed.append(Placement(self.embedding, pixels, "before"))
        if embedded is not None:
            convolution = next(m for m in self.embedding.modules() if isinstance(m, nn.Conv3d))
            placed.append(Placement(convolution, embedded))
        if config.embeds_patches:
            placed += as_products(self.embedding)
        placed += self._captured_features(config, steps, placed)
        return placed + self._word_to_blocks(config, steps, placed)

    def _weighing(
        self, config: Config, steps: Sequence[Step], placed: Sequence[Placement]
    ) -> list[Placement]:
        """What lets a token that stands for others weigh as much as they did."""
        if "merge" not in config.requires:
            return []
        sizes = ThreadLocalTensor()
        for placement in placed:
            if isinstance(placement.hook, TokenStep):
                placement.hook.final_sizes = sizes
        out = self._weigh_head(sizes)
        last: int | None = None
        inside = {step.after for step in steps if step.inside}
        for number, block in enumerate(self.blocks, start=1):
            before = [i for i, step in enumerate(steps) if step.after < number]
            last = before[-1] if before else None
            if config.weighs_attention and last is not None and number not in inside:
                assert self.block_with_step is not None
                hook = WeighAttention(last, config, self.prefix)
                out.append(Placement(block, hook, self.block_with_step))
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

    def _captured_features(
        self, config: Config, steps: Sequence[Step], placed: Sequence[Placement]
    ) -> list[Placement]:
        """Lets steps at the end of a block have what the block's projection puts out."""
        if config.similarity is None or config.similarity == "ffn":
            return []
        out = []
        for placement in placed:
            hook = placement.hook
            if not isinstance(hook, TokenStep) or hook.drop == 0 or hook.after == 0:
                continue
            if placement.how == "after":
                linear, heads = self.projection(placement.module, config.similarity)
                hook.captured = CaptureProjection(heads)
                out.append(Placement(linear, hook.captured))
        return out

    def _word_to_blocks(
        self, config: Config, steps: Sequence[Step], placed: Sequence[Placement]
    ) -> list[Placement]:
        """What blocks must be handed that receive fewer tokens."""
        first = next(p.hook for p in placed if isinstance(p.hook, TokenStep))
        assert isinstance(first, TokenStep)
        out = []
        needed = self.positions_argument is not None or config.requires & {"merge", "positions"}
        if needed:
            _check_passes_keywords(self.encoder, self.blocks)
            out.append(Placement(self.encoder, StartForward(), "before"))
            if (name := self.stateless) is not None:
                modules = (getattr(block, name) for block in self.blocks)
                out += [Placement(module, ForgetState(), "before") for module in modules]
            if first.after == 0:
                first.handed_on, first.handed_sizes = ThreadLocalTensor(), ThreadLocalTensor()
                out.append(Placement(self.blocks[0], ReceiveInputStep(first), "before"))
        ends = {step.after: number for number, step in enumerate(steps) if not step.inside}
        inside = {step.after: number for number, step in enumerate(steps) if step.inside}
        last = ends.get(0)
        for number, block in enumerate(self.blocks, start=1):
            if last is not None and self.positions_argument is not None:
                at = _argument(block, self.positions_argument)
                out.append(Placement(block, PassPositions(last, at), "before"))
            if last is not None and self.cleared_argument is not None:
                at = _argument(block, self.cleared_argument)
                out.append(Placement(block, ClearArgument(at), "before"))
            last = ends.get(number, inside.get(number, last))
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
        for step, flat in zip(steps, _compose(steps), strict=True):
            if step.framewise:
                out.append(flat.view(flat.shape[0], grid.frames, -1) % grid.tokens)
            else:
                out.append(flat.sort(-1).values)
        return out

    def restore(self, tokens: Tensor) -> Tensor:
        steps, grid = self._last_clip()
        flats = _compose(steps)
        tokens, number = self._rows_after(tokens, steps, flats, grid)
        if number > 0:
            tokens = take(tokens, _fill(grid, steps[:number], flats[number - 1]))
        return tokens.reshape(-1, grid.frames, grid.tokens, tokens.shape[-1])

    def restore_delta(self, tokens: Tensor) -> Tensor:
        steps, grid = self._last_clip()
        flats = _compose(steps)
        tokens, number = self._rows_after(tokens, steps, flats, grid)
        whole = torch.arange(grid.frames * grid.tokens, device=tokens.device)
        before = [whole.expand(tokens.shape[0], -1), *flats]
        for step, places in reversed(list(zip(steps[:number], before, strict=False))):
            if not step.drop:
                continue
            then, kept = received(step), cast(Tensor, step.kept)
            if step.into is not None:
                tokens = delta_unmerge(tokens, left_by(step), then, step.into)
            else:
                tokens = delta_fill(tokens, then, kept, places, grid)
        return tokens.reshape(-1, grid.frames, grid.tokens, tokens.shape[-1])

    def _rows_after(
        self, tokens: Tensor, steps: Sequence[TokenStep], flats: Sequence[Tensor], grid: Grid
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
    """Position of an argument of a block's forward."""
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


def _fill(grid: Grid, steps: Sequence[TokenStep], flat: Tensor) -> Tensor:
    """Which of the tokens after the last of `steps` fills each place, (B, T * N)."""
    moved = [step.into for step in steps if step.drop]
    if moved and all(into is not None for into in moved):  # exact: every place knows where it went
        source, *later = cast("list[Tensor]", moved)
        for into in later:
            source = into.gather(1, source)
        return source
    if not steps[-1].framewise:
        return fill_source_clip(flat, grid.frames, grid.frame)
    kept = flat.view(flat.shape[0], grid.frames, -1)
    offset = torch.arange(grid.frames, device=flat.device).view(-1, 1) * kept.shape[-1]
    return (fill_source(kept % grid.tokens, grid.frame) + offset).flatten(1)


class TokenSite:
    """The tokens that reached a step, and what is known of them: see `sta.methods.base.Site`."""

    def __init__(
        self,
        hook: TokenStep,
        tokens: Tensor,
        frames: int,
        features: Callable[[Similarity], Tensor],
        state: ForwardState | None,
        queries_and_keys: Callable[[], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self._queries_and_keys = queries_and_keys
        self.step, self.steps, self.drop = hook.number, hook.steps, hook.drop
        self.grid = hook.grid._replace(frames=frames)
        self.tokens = tokens
        self.sizes = None if state is None else state.sizes.get(hook.number - 1)
        self.learned: nn.Module | None = None
        self.features = features
        self._hook, self._state = hook, state

    def frames(self, x: Tensor) -> Tensor:
        """(B, n, D) -> (B, T, n / T, D)."""
        return x.reshape(x.shape[0], self.grid.frames, -1, x.shape[-1])

    def pixels(self) -> tuple[Tensor, tuple[int, int, int]]:
        """The clip, (B, F, C, H, W), and the pixels behind one token."""
        captured = self._hook.pixels
        clip = None if captured is None else captured.clip.get()
        if clip is None:
            raise TypeError(
                f"{type(self._hook.config).__name__} asks for pixels, which it does not list in "
                f"`needs`"
            )
        return clip, self._hook.tubelet

    def embeddings(self) -> Tensor:
        """Patch embeddings of the whole grid, before positions are added, (B, T * N, D)."""
        captured = self._hook.embedded
        found = None if captured is None else captured.tokens.get()
        if found is None:
            raise TypeError(
                f"{type(self._hook.config).__name__} asks for embeddings, which it does not list "
                f"in `needs`"
            )
        return found

    def queries_and_keys(self) -> tuple[Tensor, Tensor]:
        """Of the block's attention, without prefix tokens, (B, heads, n, head dim) each."""
        if self._queries_and_keys is None:
            raise TypeError("queries and keys are for steps inside a block: Step(..., inside=True)")
        query, key = self._queries_and_keys()
        prefix = self._hook.family.prefix
        return query[:, :, prefix:], key[:, :, prefix:]

    def positions(self) -> Tensor:
        """Where on the grid each token belongs, (B, n)."""
        if self.step == 0:
            batch, rows, _ = self.tokens.shape
            return torch.arange(rows, device=self.tokens.device).expand(batch, -1)
        if self._state is None:
            raise TypeError(
                f"{type(self._hook.config).__name__} asks for positions, which it does not list "
                f"in `needs`"
            )
        return self._state.positions[self.step - 1]


class TokenStep(StepHook):
    """A step on the rows of a columnar backbone.

    As a forward hook it keeps some of the tokens that a block, or the embedding, puts out; as the
    companion of a block with a step inside it is called between attention and MLP.

    Attributes:
        family: The adapter class, which knows the parts of a block.
        grid: The grid of a clip as long as the config's.
        tubelet: Frames, height and width of the pixels behind one token.
        captured: Where the block's own features are; None makes them again.
        pixels: Where the clip is; None if the method does not need it.
        embedded: Where its patch embeddings are; None likewise.
        handed_on: Where a step at the input leaves what it kept for the first block.
        final_sizes: Where the last step leaves the sizes of its tokens for the head.
        kept: (B, K) indices into the rows that it received.
        into: Where rows are merged: which row each received one went into, (B, n).
        sizes: How many original rows each that it left stands for, (B, K, 1), where rows were
            merged; 0 for those that only fill a clip up.
        framewise: Whether it kept the same number of each frame, in grid order.
        received: Rows that it received in the last forward.
    """

    captured: CaptureProjection | None = None
    pixels: CapturePixels | None = None
    embedded: CaptureEmbeddings | None = None
    handed_on: ThreadLocalTensor | None = None
    handed_sizes: ThreadLocalTensor | None = None
    final_sizes: ThreadLocalTensor | None = None
    tubelet = (1, 1, 1)

    def __init__(
        self,
        number: int,
        steps: int,
        config: Config,
        step: Step,
        family: type[ViTAdapter],
        grid: Grid,
    ) -> None:
        super().__init__(number, steps, config, step)
        self.family = family
        self.grid = grid
        self.into: Tensor | None = None
        self.sizes: Tensor | None = None
        self.framewise = True
        self.received = 0

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """As a forward hook."""
        tokens, *others = output if isinstance(output, tuple) else (output,)
        prefix = self.family.prefix

        def features(similarity: Similarity) -> Tensor:
            if similarity == "ffn" or self.after == 0:
                return tokens[:, prefix:]
            linear, _ = self.family.projection(module, similarity)
            found = None if self.captured is None else self.captured.last(linear)
            if found is None:
                found = self.family.features(module, args[0], similarity)
            return found[:, prefix:]

        left = self._advance(tokens, features, kwargs.get("state"))
        if self.captured is not None:
            self.captured.features.clear()
        if left is None:
            return None  # the module's own output, bit for bit
        return (left, *others) if isinstance(output, tuple) else left

    def between(self, block: nn.Module, normed: Tensor, x: Tensor, state: ForwardState) -> Tensor:
        """Between a block's attention and its MLP: (B, n, D) -> (B, K, D).

        Args:
            block: The block.
            normed: What its attention received.
            x: What its MLP would.
            state: Of this forward.
        """

        def features(similarity: Similarity) -> Tensor:
            found = x if similarity == "ffn" else self.family.head_mean(block, normed, similarity)
            return found[:, self.family.prefix :]

        def queries_and_keys() -> tuple[Tensor, Tensor]:
            positions = state.positions.get(self.number - 1)
            # Choices are made without autocast: then what it rounded is of another type.
            attended = normed.to(next(block.parameters()).dtype)
            return self.family.queries_and_keys(block, attended, positions)

        left = self._advance(x, features, state, queries_and_keys)
        return x if left is None else left

    def attention_bias(self, state: ForwardState) -> Tensor | None:
        """What is added to attention logits so that tokens weigh by size, (B, 1, 1, n)."""
        return size_bias(state, self.number - 1, self.config, self.family.prefix)

    def _advance(
        self,
        tokens: Tensor,
        features: Callable[[Similarity], Tensor],
        state: ForwardState | None,
        queries_and_keys: Callable[[], tuple[Tensor, Tensor]] | None = None,
    ) -> Tensor | None:
        """The tokens that go on, prefix included; None if all do."""
        prefix = self.family.prefix
        x = tokens[:, prefix:]
        frames = self._frames(x.shape[1], state)
        self.received = x.shape[1]
        sizes = None if state is None else state.sizes.get(self.number - 1)
        if self.drop == 0:
            kept = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
            self._record(kept, sizes, state)
            return None
        choice = self.choose(TokenSite(self, x, frames, features, state, queries_and_keys))
        kept, into = self._flat(choice, x.shape[1] // frames), choice.into
        if into is None and self.config.merge:
            into = most_similar(features(self.config.similarity or "key"), kept)
        if self.number == self.steps - 1:
            self._release()
        # For whoever looks afterwards: another thread may write here at any time.
        self.into, self.framewise = into, choice.kept.ndim == 3
        if into is None:
            left = take(x, kept)
            if choice.counts is not None:  # what fills a clip up has no size
                here = torch.arange(kept.shape[1], device=x.device) < choice.counts.unsqueeze(1)
                sizes = here.unsqueeze(-1).to(x.dtype)
        else:
            if sizes is None:
                sizes = x.new_ones(x.shape[0], x.shape[1], 1)
            weights = sizes if choice.weights is None else choice.weights
            left, sizes = merge_tokens(x, kept, into, weights)
            if isinstance(self.observe, StepValues):
                self.observe.left = left
            sizes = sizes.detach()
        self._record(kept, sizes, state)
        return left if prefix == 0 else torch.cat([tokens[:, :prefix], left], 1)

    def _record(self, kept: Tensor, sizes: Tensor | None, state: ForwardState | None) -> None:
        """Note what stays, for later blocks, for the head and for whoever looks afterwards."""
        self.kept, self.sizes = kept, sizes
        if state is not None:
            state.add(self.number, kept, sizes)
        if self.handed_on is not None:
            self.handed_on.put(kept)
        for place in (self.handed_sizes, self.final_sizes):
            if place is not None and sizes is not None:
                place.put(sizes)
            elif place is not None:
                place.clear()

    def _release(self) -> None:
        """Let go of what was captured for the steps of this forward."""
        if self.pixels is not None:
            self.pixels.clip.clear()
        if self.embedded is not None:
            self.embedded.tokens.clear()

    def _frames(self, rows: int, state: ForwardState | None) -> int:
        """Frames of tokens in this clip."""
        if self.number > 0:
            return self.grid.frames if state is None else state.frames
        tokens, any_length = self.grid.tokens, self.family.any_length
        frames, rest = rows // tokens, rows % tokens  # dynamo has no divmod
        if rest or (frames != self.grid.frames and not any_length):
            expected = "whole frames" if any_length else f"{self.grid.frames * tokens}"
            raise ValueError(
                f"step 1 expected {expected} ({self.grid.frames} x {tokens} tokens), got {rows}: "
                f"a pruned model takes whole clips of the size in its config, without masked "
                f"positions"
            )
        if state is not None:
            state.frames = frames
        return frames

    def _flat(self, choice: Choice, per_frame: int) -> Tensor:
        """A choice as indices into the received rows, (B, K)."""
        if choice.kept.ndim == 2:
            return choice.kept
        offset = torch.arange(choice.kept.shape[1], device=choice.kept.device) * per_frame
        return (choice.kept + offset.view(-1, 1)).flatten(1)
