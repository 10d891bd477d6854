"""The parts of Video Swin that sta replaces, and the pruning steps between its stages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torchvision.models.swin_transformer import SwinTransformerBlock

from sta.backbones.base import Grid
from sta.backbones.hooks import Plug, Relay, StepPlug, Swapped
from sta.backbones.limits import StageDrops
from sta.backbones.swin_attention import Tokens, per_piece, window_attention
from sta.backbones.swin_windows import Cut, Windows, box_biases, window_bias
from sta.core.difference import keep_changed, tubelet_change
from sta.core.features import head_mean
from sta.core.options import Direction
from sta.core.step import prune_step, random_step
from sta.methods import Fill, Similarity, STAConfig, WindowQueries


class BiasCache(Plug):
    """A block's position biases, ready to add, made anew when their table or the windows change."""

    def __init__(self) -> None:
        # What they are for, the table that they were made of, and they themselves, in one: another
        # thread, with other windows, may write here at any time.
        self.made: tuple[tuple[object, ...], Tensor, list[Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"made": None}  # copies and files go without it

    def get(self, attention: Any, windows: Windows, cut: Cut, dtype: torch.dtype) -> list[Tensor]:
        """The biases of each kind of box, (s, heads, s)."""
        table: Tensor = attention.relative_position_bias_table
        index = attention.relative_position_index
        trained = torch.is_grad_enabled() and table.requires_grad
        unreal = table.is_meta or isinstance(table, FakeTensor)
        if trained or unreal or torch.compiler.is_compiling():
            return box_biases(window_bias(table, index, windows.window).to(dtype), windows, cut)
        key = (windows.window, windows.shift, cut, dtype, table.device)
        made = self.made
        # The table itself is compared: whoever changed it, and however, is noticed.
        if made is None or key != made[0] or not torch.equal(table, made[1]):
            bias = window_bias(table, index, windows.window).to(dtype)
            self.made = made = (key, table.detach().clone(), box_biases(bias, windows, cut))
        return made[2]


class WindowBlock(Swapped, SwinTransformerBlock):
    """The block on rows of tokens, whichever they are."""

    plug: BiasCache

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        attention: Any = self.attn
        windows = Windows.fit(
            tokens.grid, tuple(attention.window_size), tuple(attention.shift_size)
        )
        biases = self.plug.get(attention, windows, tokens.cut, _compute_dtype(x))
        mixed = window_attention(
            x,
            tokens,
            windows,
            biases,
            norm=self.norm1,
            qkv=attention.qkv,
            heads=attention.num_heads,
            dropout=attention.attention_dropout if self.training else 0.0,
        )
        if self.training or not tokens.pieces:
            return self._rest(x, mixed)
        rows, width = x.flatten(0, 1), self.mlp[0].out_features
        size = per_piece(x, width)
        pieces = zip(rows.split(size), mixed.flatten(0, 1).split(size), strict=True)
        return torch.cat([self._rest(*piece) for piece in pieces]).view_as(x)

    def _rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        """All that comes after attention, row by row."""
        attended = F.dropout(self.attn.proj(mixed), self.attn.dropout, self.training)
        x = x + self.stochastic_depth(attended)
        return x + self.stochastic_depth(self.mlp(self.norm2(x)))


def _compute_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


class WindowStage(Swapped, nn.Sequential):
    """A stage that enters with the tokens its step keeps."""

    plug: StagePlug | StageStep

    def forward(self, x: Tensor) -> Tensor:
        step = self.plug
        kept = step.keep(self[0], x) if isinstance(step, StageStep) else None
        tokens = Tokens(x, kept, step.queries, step.fill)
        rows = entered = tokens.start(x)
        for block in self:
            rows = block(rows, tokens)
        if step.pool_kept and kept is not None:
            # A "grid" of K x 1 per frame: the model's average is then over the kept tokens.
            return rows.view(x.shape[0], x.shape[1], -1, 1, x.shape[-1])
        if step.fill == "clip" and kept is not None:
            return x + tokens.fill(rows - entered)
        return tokens.fill(rows)


class StagePlug(Plug):
    """Companion of a stage that no step precedes."""

    pool_kept = False
    fill: Fill = "frame"

    def __init__(self, queries: WindowQueries) -> None:
        self.queries: WindowQueries = queries


class StageStep(StepPlug):
    """A step on the grid that a stage receives. Keeps everything itself; subclasses choose.

    Attributes:
        plan: What this and the other steps drop.
        drop: Tokens dropped per frame.
        queries: Which places ask in the stage's windows.
        pool_kept: Whether the stage gives out its kept tokens instead of a filled grid.
        fill: What stands in for dropped tokens.
        grid: The grid of the last forward.
        width: Channels of its tokens.
    """

    def __init__(
        self,
        step: int,
        plan: StageDrops,
        queries: WindowQueries,
        pool_kept: bool,
        fill: Fill = "frame",
    ) -> None:
        super().__init__(step)
        self.plan = plan
        self.drop = plan.of(plan.r)[step]
        self.queries: WindowQueries = queries
        self.pool_kept = pool_kept
        self.fill: Fill = fill
        self.grid: Grid | None = None
        self.width = 0

    def choose(self, block: nn.Module, x: Tensor, grid: Grid) -> Tensor:
        """Places of each frame that stay, (B, T, K), of tokens (B, T, N, C)."""
        raise NotImplementedError

    def keep(self, block: nn.Module, x: Tensor) -> Tensor | None:
        """Choose from a grid (B, T, H, W, C); None if all stay."""
        batch, frames, height, width, self.width = x.shape
        self.grid = grid = Grid(frames, height, width)
        if self.drop >= grid.tokens:
            raise ValueError(
                f"step {self.step + 1} would drop {self.drop} tokens of every frame, but clips of "
                f"this size have {grid.tokens} there, and one must stay; "
                f"{self.plan.advice(self.step, grid)}, or larger clips"
            )
        if self.drop == 0:
            everything = torch.arange(grid.tokens, device=x.device)
            self.kept = everything.expand(batch, frames, -1)
            return None
        # Another thread may write to self at any time: what this forward needs is in `kept`.
        self.kept = kept = self.choose(block, x.flatten(2, 3), grid)
        return kept


class RecordStep(StageStep):
    """A hook after a patch merging of the stock model, which stays as it is."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        self.keep(module, output)


class STAStageStep(StageStep):
    """A step of STA."""

    def __init__(self, *where: Any, config: STAConfig, order: Direction, seed: int) -> None:
        super().__init__(*where)
        self.config = config
        self.order: Direction = order
        self.seed = seed

    def choose(self, block: nn.Module, x: Tensor, grid: Grid) -> Tensor:
        config = self.config
        metric = x if config.similarity == "ffn" else features(block, x, config.similarity)
        return prune_step(
            x,
            metric,
            self.drop,
            order=self.order,
            score=config.score,
            semantic=config.semantic,
            first_frame=config.first_frame,
            temperature=config.temperature,
            grid=grid.frame,
            seed=self.seed,
        )


class RandomStageStep(StageStep):
    """A step that drops random tokens."""

    def __init__(self, *where: Any, seed: int) -> None:
        super().__init__(*where)
        self.seed = seed

    def choose(self, block: nn.Module, x: Tensor, grid: Grid) -> Tensor:
        return random_step(
            x.shape[0], grid.frames, grid.tokens, self.drop, seed=self.seed, device=x.device
        )


class PixelChange(Plug):
    """A hook before the patch embedding: how much the pixels behind each patch changed."""

    def __init__(self) -> None:
        self.change = Relay()  # (B, T, H, W), of the patches

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pixels: Tensor = args[0] if args else kwargs["x"]  # (B, C, F, H, W)
        if pixels.ndim != 5:
            return  # the model itself says best what is wrong with it
        patch = module.tuple_patch_size
        missing = [-size % step for size, step in zip(pixels.shape[2:], patch, strict=True)]
        pixels = F.pad(pixels, (0, missing[2], 0, missing[1], 0, missing[0]))
        height, width = pixels.shape[3] // patch[1], pixels.shape[4] // patch[2]
        change = tubelet_change(pixels.transpose(1, 2), patch)
        self.change.put(change.unflatten(-1, (height, width)))


class FrameDifferenceStageStep(StageStep):
    """A step that drops the tokens whose pixels changed least."""

    def __init__(self, *where: Any, pixels: PixelChange, merged: int) -> None:
        super().__init__(*where)
        self.pixels = pixels
        self.merged = merged  # how many patch mergings came before

    def choose(self, block: nn.Module, x: Tensor, grid: Grid) -> Tensor:
        change, side = self.pixels.change.get(), 2**self.merged
        assert change is not None
        missing = [grid.width * side - change.shape[3], grid.height * side - change.shape[2]]
        change = F.avg_pool2d(F.pad(change, (0, missing[0], 0, missing[1])), side)
        return keep_changed(change.flatten(2), self.drop)


def features(block: Any, x: Tensor, similarity: Similarity) -> Tensor:
    """Similarity features of a block from its input: (..., C) -> (..., head dim)."""
    attention = block.attn
    part = ("query", "key", "value").index(similarity)
    weight = attention.qkv.weight.chunk(3)[part]
    bias = None if attention.qkv.bias is None else attention.qkv.bias.chunk(3)[part]
    return head_mean(block.norm1(x.detach()), weight, bias, attention.num_heads)
