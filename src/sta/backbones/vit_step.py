"""A step of a columnar backbone: the hook that asks the method and drops or merges rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sta.backbones.hooks import RecordedTokens, StepHook, ThreadLocal, ThreadLocalTensor, in_float32
from sta.backbones.site import StepSite
from sta.backbones.vit_hooks import CaptureProjection, ForwardState, size_bias
from sta.core.merge import merge_tokens, most_similar
from sta.core.tokens import Grid, clip_indices, take
from sta.methods.base import Config, Similarity, Step

if TYPE_CHECKING:
    from sta.backbones.vit import ViTAdapter


class TokenSite(StepSite):
    """The tokens that reached a step, and what is known of them."""

    def __init__(
        self,
        hook: TokenStep,
        tokens: Tensor,
        frames: int,
        features: Callable[[Similarity], Tensor],
        state: ForwardState | None,
        queries_and_keys: Callable[[], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        super().__init__(hook, tokens, hook.grid._replace(frames=frames))
        self.sizes = None if state is None else state.sizes.get(hook.number - 1)
        self.features = features
        self._hook, self._state, self._queries_and_keys = hook, state, queries_and_keys

    def pixels(self) -> tuple[Tensor, tuple[int, int, int]]:
        return self.captured(self._hook.pixels, "pixels"), self._hook.tubelet

    def embeddings(self) -> Tensor:
        return self.captured(self._hook.embedded, "embeddings")

    def queries_and_keys(self) -> tuple[Tensor, Tensor]:
        """Of the block's attention, without prefix tokens, (B, heads, n, head dim) each."""
        if self._queries_and_keys is None:
            raise TypeError("queries and keys are for steps inside a block: Step(..., inside=True)")
        query, key = self._queries_and_keys()
        prefix = self._hook.family.prefix
        return query[:, :, prefix:], key[:, :, prefix:]

    def positions(self) -> Tensor:
        if self.step == 0:
            return super().positions()
        if self._state is None:
            raise self.not_listed("positions")
        return self._state.positions[self.step - 1]


class TokenStep(StepHook):
    """A step on the rows of a columnar backbone.

    As a forward hook it keeps some of the tokens that a block, or the embedding, puts out; as the
    companion of a block with a step inside it is called between attention and MLP. It keeps (B, K)
    indices into the rows that it received.
    """

    captured: CaptureProjection | None = None  # has the block's own features; else made again
    embedded: ThreadLocalTensor | None = None  # patch embeddings, if the method needs them
    input_kept: ThreadLocalTensor | None = None  # what a step at the input kept, for block 1
    input_sizes: ThreadLocalTensor | None = None
    input_frames: ThreadLocal[int] | None = None
    final_sizes: ThreadLocalTensor | None = None  # of the last step's tokens, for the head

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
        self.grid = grid  # of a clip as long as the config's
        self.into: Tensor | None = None  # the row that each received one was merged into, (B, n)
        # How many original rows each that it left stands for, (B, K, 1), where rows were merged; 0
        # for those that only fill a clip up.
        self.sizes: Tensor | None = None
        self.framewise = True  # whether it kept as many of each frame, in grid order
        self.received = 0  # rows, in the last forward

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
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
        """For a block's MLP, after its attention received `normed`: (B, n, D) -> (B, K, D)."""

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
        kept, into = clip_indices(choice.kept, x.shape[1] // frames), choice.into
        if into is None and self.config.merge:
            metric = features(self.config.similarity or "key")
            with in_float32(x):
                into = most_similar(metric, kept)
        if self.number == self.steps - 1:  # let go of what was captured for the steps
            for place in (self.pixels, self.embedded):
                if place is not None:
                    place.clear()
        # To be looked at afterwards: another thread may write here at any time.
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
            if isinstance(self.observe, RecordedTokens):
                self.observe.left = left
            sizes = sizes.detach()
        self._record(kept, sizes, state)
        return left if prefix == 0 else torch.cat([tokens[:, :prefix], left], 1)

    def _record(self, kept: Tensor, sizes: Tensor | None, state: ForwardState | None) -> None:
        """Note what stays, for later blocks, for the head and to be looked at afterwards."""
        self.kept, self.sizes = kept, sizes
        if state is not None:
            state.add(self.number, kept, sizes)
        if self.input_kept is not None:
            self.input_kept.put(kept)
        for place in (self.input_sizes, self.final_sizes):
            if place is not None and sizes is not None:
                place.put(sizes)
            elif place is not None:
                place.clear()

    def _frames(self, rows: int, state: ForwardState | None) -> int:
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
        if self.input_frames is not None:
            self.input_frames.put(frames)
        return frames
