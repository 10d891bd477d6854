"""The pruning steps of columnar backbones, as plugs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from sta.backbones.hooks import StepPlug
from sta.backbones.limits import check_merging
from sta.core.difference import keep_changed, tubelet_change
from sta.core.merge import merge_step
from sta.core.options import Direction
from sta.core.released import released_step
from sta.core.step import prune_step, random_step
from sta.core.tokens import take
from sta.methods import Similarity, STAConfig

if TYPE_CHECKING:
    from sta.backbones.base import Grid
    from sta.backbones.vit import ViTAdapter
    from sta.backbones.vit_trail import Overhear, Trail


class ViTStep(StepPlug):
    """A forward hook that keeps some of the tokens a module puts out.

    Attributes:
        family: The adapter class, which knows the parts of a block.
        grid: The clip's grid of tokens.
        tokens: Tokens per frame that the step receives.
        drop: Tokens per frame that it drops.
        framewise: Whether it keeps the same number of each frame, in grid order.
        overheard: Where the block's own features are to be had; None makes them again.
    """

    framewise: ClassVar[bool] = True
    overheard: Overhear | None = None

    def __init__(
        self, step: int, family: type[ViTAdapter], grid: Grid, tokens: int, drop: int
    ) -> None:
        super().__init__(step)
        self.family = family
        self.grid = grid
        self.tokens = tokens
        self.drop = drop

    @property
    def similarity(self) -> Similarity | None:
        """What the step compares tokens by; None if it does not."""
        return None

    def metric(self, module: nn.Module, args: tuple[Any, ...], x: Tensor) -> Tensor:
        """What the step compares tokens by, (B, n, C), given the same as `choose`."""
        assert self.similarity is not None
        if self.similarity == "ffn":
            return x
        projection, _ = self.family.projection(module, self.similarity)
        heard = None if self.overheard is None else self.overheard.last(projection)
        if heard is None:
            heard = self.family.features(module, args[0], self.similarity)
        return heard[:, self.family.prefix :]

    def choose(self, module: nn.Module, args: tuple[Any, ...], x: Tensor) -> Tensor:
        """Indices of the tokens that stay, (B, K), given the output without its prefix tokens."""
        raise NotImplementedError

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        tokens, *others = output if isinstance(output, tuple) else (output,)
        prefix = self.family.prefix
        x = tokens[:, prefix:]
        self._check_count(x.shape[1])
        if self.drop == 0:
            kept = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        else:
            kept = self.choose(module, args, x)
        self.kept = kept  # for whoever looks afterwards: another thread may write here at any time
        if self.overheard is not None:
            self.overheard.heard.clear()
        if (trail := kwargs.get("trail")) is not None:
            trail.add(self.step, kept)
        if self.drop == 0:
            return None  # the module's own output, bit for bit
        left = take(x, kept)
        if prefix > 0:
            left = torch.cat([tokens[:, :prefix], left], 1)
        return (left, *others) if isinstance(output, tuple) else left

    def _check_count(self, received: int) -> None:
        any_length = self.family.any_length and self.framewise
        parts, rest = received // self.tokens, received % self.tokens  # dynamo has no divmod
        if rest or (parts != self.parts and not any_length):
            expected = f"{self.parts * self.tokens}" if not any_length else "whole frames"
            raise ValueError(
                f"step {self.step + 1} expected {expected} ({self.parts} x {self.tokens} tokens), "
                f"got {received}: a pruned model takes whole clips of the size in its config, "
                f"without masked positions"
            )

    @property
    def parts(self) -> int:
        """What the tokens are counted by: the frames of a clip as long as the config's."""
        return self.grid.frames

    @property
    def received(self) -> int:
        """Tokens that the step received in the last forward."""
        assert self.kept is not None
        return self.kept.shape[1] // (self.tokens - self.drop) * self.tokens

    def flat(self, kept: Tensor) -> Tensor:
        """(B, T, K) per frame -> (B, T * K) into the received sequence."""
        offset = torch.arange(kept.shape[1], device=kept.device).view(-1, 1) * self.tokens
        return (kept + offset).flatten(1)

    def framed(self, x: Tensor) -> Tensor:
        """(B, T * N, D) -> (B, T, N, D)."""
        return x.reshape(x.shape[0], -1, self.tokens, x.shape[-1])


class STAStep(ViTStep):
    """A step of STA at the end of a block."""

    def __init__(self, *where: Any, config: STAConfig, order: Direction, seed: int) -> None:
        super().__init__(*where)
        self.config = config
        self.order: Direction = order
        self.seed = seed

    @property
    def similarity(self) -> Similarity:
        return self.config.similarity

    def choose(self, module: nn.Module, args: tuple[Any, ...], x: Tensor) -> Tensor:
        whole = self.tokens == self.grid.tokens
        kept = prune_step(
            self.framed(x),
            self.framed(self.metric(module, args, x)),
            self.drop,
            order=self.order,
            score=self.config.score,
            semantic=self.config.semantic,
            first_frame=self.config.first_frame,
            temperature=self.config.temperature,
            grid=self.grid.frame if whole else None,
            seed=self.seed,
        )
        return self.flat(kept)


class RandomStep(ViTStep):
    """A step that drops random tokens."""

    def __init__(self, *where: Any, seed: int) -> None:
        super().__init__(*where)
        self.seed = seed

    def choose(self, module: nn.Module, args: tuple[Any, ...], x: Tensor) -> Tensor:
        frames = x.shape[1] // self.tokens
        kept = random_step(
            x.shape[0], frames, self.tokens, self.drop, seed=self.seed, device=x.device
        )
        return self.flat(kept)


class FrameDifferenceStep(ViTStep):
    """A step on the embeddings that drops the tubelets whose pixels changed least."""

    def __init__(self, *where: Any, tubelet: tuple[int, int, int]) -> None:
        super().__init__(*where)
        self.tubelet = tubelet

    def choose(self, module: nn.Module, args: tuple[Any, ...], x: Tensor) -> Tensor:
        return self.changed(args[0])

    def changed(self, clip: Tensor) -> Tensor:
        """Indices of the tokens that stay, (B, K), given the embedding's first argument."""
        change = tubelet_change(self.family.pixels(clip), self.tubelet)
        return self.flat(keep_changed(change, self.drop))


class ReleasedStep(ViTStep):
    """A step of the authors' released program: `tokens` and `drop` count per group of frames."""

    framewise = False

    def __init__(self, *where: Any, groups: int, backward: bool) -> None:
        super().__init__(*where)
        self.groups = groups
        self.backward = backward

    @property
    def parts(self) -> int:
        return self.groups

    @property
    def similarity(self) -> Similarity:
        return "key"

    def choose(self, module: nn.Module, args: tuple[Any, ...], x: Tensor) -> Tensor:
        metric = self.metric(module, args, x)
        return released_step(x, metric, self.drop, groups=self.groups, backward=self.backward)


class MergeStep(StepPlug):
    """A step of token merging, called between a block's attention and its MLP.

    Attributes:
        blocks: How many blocks merge.
        source: Which token each received one went into, (B, n before).
    """

    framewise: ClassVar[bool] = False

    def __init__(self, step: int, prefix: int, drop: int, proportional: bool, blocks: int) -> None:
        super().__init__(step)
        self.blocks = blocks
        self.prefix = prefix
        self.drop = drop
        self.proportional = proportional
        self.source: Tensor | None = None

    @property
    def received(self) -> int:
        """Tokens that the step received in the last forward."""
        assert self.kept is not None
        return self.kept.shape[1] + self.drop

    def attention_bias(self, trail: Trail) -> Tensor | None:
        """What proportional attention adds to the logits, (B, 1, 1, n); None adds nothing."""
        size = trail.sizes.get(self.step - 1)
        if not self.proportional or size is None:
            return None
        log = size.squeeze(-1).log()
        log = torch.cat([log.new_zeros(log.shape[0], self.prefix), log], 1)
        return log[:, None, None, :]

    def __call__(self, x: Tensor, metric: Tensor, trail: Trail) -> Tensor:
        """Merge tokens: (B, n, D), (B, n, C) -> (B, n - drop, D)."""
        head, rest = x[:, : self.prefix], x[:, self.prefix :]
        check_merging(self.drop, rest.shape[1] + self.step * self.drop, self.blocks)
        size = trail.sizes.get(self.step - 1)
        if size is None:
            size = rest.new_ones(rest.shape[0], rest.shape[1], 1)
        merged = merge_step(rest, metric[:, self.prefix :], size, self.drop)
        self.kept, self.source = merged.kept, merged.source
        trail.add(self.step, merged.kept)
        trail.sizes[self.step] = merged.size.detach()
        return merged.x if self.prefix == 0 else torch.cat([head, merged.x], 1)
