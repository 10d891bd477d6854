"""Video Swin (torchvision): four stages of window attention, patches merged in between.

A step comes after each patch merging and chooses from the full grid that the next stage receives.
Inside the stage, linear layers run on the kept tokens alone; window attention sees the whole grid,
the nearest kept token standing in for each dropped one; before the next patch merging the grid is
filled the same way (`WindowStage`, with the `StageTokens` of swin_tokens.py). Where tokens are
merged, their mean stands in at the places of all of them, and each leaves the stage as it was plus
what the mean gained; so do dropped ones with `fill="clip"`. Every stage runs on our own window
attention, which is also what `DenseConfig` is about.

A forward hook on a stage, e.g. `model.features[4]`, sees full grids (B, T, H, W, C); the output of
the last stage is (B, T, K, 1, C), the kept tokens, unless `pool="grid"`. A hook on a block inside
sees the kept tokens as (B, T * K, C). `sta.restore` takes all of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.swin_transformer import PatchMerging, SwinTransformerBlock
from torchvision.models.video.swin_transformer import ShiftedWindowAttention3d, SwinTransformer3d

from sta.backbones.base import Adapter, StepLayout
from sta.backbones.hooks import (
    Hook,
    Placement,
    RecordedTokens,
    Swapped,
    in_float32,
    recorded_input,
    recorded_output,
)
from sta.backbones.patch_embedding import as_matrix_products
from sta.backbones.site import CapturePixels
from sta.backbones.swin_attention import per_piece, window_attention
from sta.backbones.swin_site import FrameStep, GridStep, StageSite
from sta.backbones.swin_tokens import StageTokens, works_in_pieces
from sta.backbones.swin_windows import Cut, Windows, box_biases, window_bias
from sta.core.fill import delta_fill, delta_unmerge, fill_source, fill_source_similar
from sta.core.merge import weighted_mean
from sta.core.tokens import Grid, clip_indices, take
from sta.core.tracing import is_fake
from sta.methods.base import Choice, Config, Fill, Layout, Step, WindowQueries
from sta.methods.stepped import largest_staged

_REFUSES = (
    ("clip", "its windows need the same number of tokens of every frame, in grid order"),
    ("embeddings", "its patches are merged into other tokens from stage to stage"),
    ("attention", "it attends in windows: no token sees all others"),
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
        return [m for m in self.backbone.features if isinstance(m, nn.Sequential)]

    @property
    def mergings(self) -> list[PatchMerging]:
        """The patch mergings; the first comes after the first stage."""
        return [m for m in self.backbone.features if isinstance(m, PatchMerging)]

    # Planning a method

    @property
    def layout(self) -> Layout:
        return Layout(
            self.family,
            len(self.mergings),
            None,
            staged=True,
            refuses=_REFUSES,  # type: ignore[arg-type]
        )

    @property
    def learned_home(self) -> tuple[nn.Module, int]:
        embedding = self.backbone.patch_embed
        return embedding, embedding.proj.out_channels

    def place(self, config: Config, steps: Sequence[Step]) -> list[Placement]:
        if "frames" in config.requires:
            return self._place_frames(config, steps)
        layout = self.layout
        made = [
            StageStep(number, len(steps), config, step, layout, step.after == len(self.stages) - 1)
            for number, step in enumerate(steps)
        ]
        if config.drops and not any(step.drop for step in steps):
            return [
                Placement(self.mergings[step.after - 1], RecordStep(hook))
                for step, hook in zip(steps, made, strict=True)
            ]
        by_stage = {step.after: hook for step, hook in zip(steps, made, strict=True)}
        placements = self._place_stages(config, by_stage)
        if "pixels" in config.requires:
            capture = CapturePixels(_frames_first)
            placements.append(Placement(self.backbone.patch_embed, capture, "before"))
            for hook in made:
                hook.pixels, hook.tubelet = capture.clip, self.token_pixels(hook.after)
        if config.embeds_patches:
            placements += as_matrix_products(self.backbone.patch_embed)
        return placements

    def _place_frames(self, config: Config, steps: Sequence[Step]) -> list[Placement]:
        """A step that shortens the clip; then every stage has all tokens of the frames left."""
        (step,) = steps
        first = FrameStep(0, 1, config, step, self.stages[0][0])
        placements = [Placement(self.backbone.patch_embed, first)]
        if step.drop == 0:
            return placements
        placements += self._place_stages(config, {})
        return placements + as_matrix_products(self.backbone.patch_embed)

    def _place_stages(self, config: Config, steps: Mapping[int, StageStep]) -> list[Placement]:
        """Our own window attention in every stage; steps by how many stages lie before theirs."""
        placements = []
        for before, stage in enumerate(self.stages):
            hook = steps.get(before, WholeStage(config.window_queries))
            placements.append(Placement(stage, hook, WindowStage))
            placements += [Placement(block, BiasCache(), WindowBlock) for block in stage]
        return placements

    def tokens_per_frame(self, size: int) -> list[int]:
        _, height, width = self.backbone.patch_embed.tuple_patch_size
        places = Grid(1, -(-size // height), -(-size // width))
        return [merged_tokens(places, times) for times in range(1, len(self.mergings) + 1)]

    def all_blocks(self) -> list[tuple[nn.Module, int]]:
        return [(block, merged) for merged, stage in enumerate(self.stages) for block in stage]

    def token_pixels(self, merged: int = 0) -> tuple[int, int, int]:
        frames, height, width = self.backbone.patch_embed.tuple_patch_size
        return frames, height << merged, width << merged

    def tokens_of(self, output: Any) -> Tensor:
        return cast(Tensor, output).flatten(1, -2)

    def average(self, tokens: Tensor) -> Tensor:
        for step in cast("list[GridStep]", self.steps):
            sizes = step.sizes if step.width == tokens.shape[-1] else None  # stages differ in width
            if sizes is not None and sizes.shape[:2] == tokens.shape[:2]:
                return weighted_mean(tokens, sizes)
        return super().average(tokens)

    # Looking at the last forward

    def step_layouts(self) -> list[StepLayout]:
        steps = cast("list[GridStep]", self.last_forward())
        return [
            StepLayout(
                f"stage {step.after}" if step.after else "input",
                cast(Grid, step.grid),
                self.token_pixels(step.after),
            )
            for step in steps
        ]

    def kept(self) -> list[Tensor]:
        return [cast(Tensor, step.kept) for step in self.last_forward()]

    def restore(self, tokens: Tensor) -> Tensor:
        if isinstance(first := self.last_forward()[0], FrameStep):
            return first.restore(self.rows_of_last_forward(tokens, len(cast(Tensor, first.kept))))
        rows, step = self._rows_after(tokens)
        grid, kept = cast(Grid, step.grid), cast(Tensor, step.kept)
        if rows.shape[1] != grid.frames * grid.tokens:
            source = step.into
            if source is None:
                source = clip_indices(fill_source(kept, grid.frame), kept.shape[-1])
            rows = take(rows, source)
        return rows.reshape(-1, grid.frames, grid.tokens, rows.shape[-1])

    def restore_delta(self, tokens: Tensor) -> Tensor:
        if isinstance(self.last_forward()[0], FrameStep):
            raise ValueError(
                'fill="delta" is for dropped tokens, not for whole frames; use nearest'
            )
        rows, step = self._rows_after(tokens)
        grid = cast(Grid, step.grid)
        if rows.shape[1] != grid.frames * grid.tokens:
            then = recorded_input(step)
            if step.into is not None:
                rows = delta_unmerge(rows, recorded_output(step), then, step.into)
            else:
                places = torch.arange(grid.frames * grid.tokens, device=rows.device)
                rows = delta_fill(rows, then, step.places, places.expand(len(rows), -1), grid)
        return rows.reshape(-1, grid.frames, grid.tokens, rows.shape[-1])

    def _rows_after(self, tokens: Tensor) -> tuple[Tensor, GridStep]:
        """Given tokens as rows, (B, n, C), and the step that left or received them."""
        steps = cast("list[GridStep]", self.last_forward())
        rows = self.rows_of_last_forward(tokens, cast(Tensor, steps[0].kept).shape[0])
        _, given, width = rows.shape
        # Stages differ in width; tokens of another width (scores, say) go by their number alone.
        of_width = [step for step in steps if step.width == width] or steps
        counts = []
        for step in reversed(of_width):
            assert step.grid is not None
            assert step.kept is not None
            both = [step.kept[0].numel(), step.grid.frames * step.grid.tokens]
            if given in both:
                return rows, step
            counts += both
        raise ValueError(
            f"tokens has {given} per clip; the last forward's steps left or received "
            f"{', '.join(map(str, counts))}"
        )


def _frames_first(clip: Tensor) -> Tensor:
    """(B, C, F, H, W) -> (B, F, C, H, W)."""
    return clip.transpose(1, 2)


class BiasCache(Hook):
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
        # Elsewhere than on a CPU, comparing the table would wait for the device in every block.
        cached = works_in_pieces(table) and not is_fake(table)
        if trained or not cached:
            return box_biases(window_bias(table, index, windows.window).to(dtype), windows, cut)
        key = (windows.window, windows.shift, cut, dtype, table.device)
        made = self.made
        # The table itself is compared, so that any change is noticed, however it was made.
        if made is None or key != made[0] or not torch.equal(table, made[1]):
            # A later forward may have gradients, for which inference tensors cannot be saved.
            with torch.inference_mode(False):
                own = table.detach().clone()
                bias = window_bias(own, index, windows.window).to(dtype)
                self.made = made = (key, own, box_biases(bias, windows, cut))
        return made[2]


class WindowBlock(Swapped, SwinTransformerBlock):
    """The block on rows of tokens, whichever they are."""

    hook: BiasCache

    def forward(self, x: Tensor, tokens: StageTokens) -> Tensor:
        attention: Any = self.attn
        windows = Windows.fit(
            tokens.grid, tuple(attention.window_size), tuple(attention.shift_size)
        )
        biases = self.hook.get(attention, windows, tokens.cut, _compute_dtype(x))
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

    hook: WholeStage | StageStep

    def forward(self, x: Tensor) -> Tensor:
        step = self.hook
        choice = step.keep(self[0], x) if isinstance(step, StageStep) else None
        tokens = StageTokens(x, choice, step.queries, step.fill)
        rows = entered = tokens.start(x)
        if isinstance(observer := getattr(step, "observe", None), RecordedTokens):
            observer.left = entered
        for block in self:
            rows = block(rows, tokens)
        if choice is None:
            return tokens.fill(rows)
        if choice.into is None and step.pool_kept:
            # A "grid" of K x 1 per frame: the model's average is then over the kept tokens.
            return rows.view(x.shape[0], x.shape[1], -1, 1, x.shape[-1])
        if choice.into is None and step.fill == "frame":
            return tokens.fill(rows)
        return x + tokens.fill(rows - entered)


class WholeStage(Hook):
    """Companion of a stage that no step precedes."""

    pool_kept = False
    fill: Fill = "frame"

    def __init__(self, queries: WindowQueries) -> None:
        self.queries: WindowQueries = queries


class StageStep(GridStep):
    """A step on the grid that a stage receives, as the companion of that stage.

    It keeps (B, T, K) indices into each frame, or (B, K) into the clip.
    """

    def __init__(
        self, number: int, steps: int, config: Config, step: Step, layout: Layout, last: bool
    ) -> None:
        super().__init__(number, steps, config, step)
        self.layout = layout  # what the method planned with
        self.queries: WindowQueries = config.window_queries
        self.pool_kept = last and config.pool == "kept"  # instead of giving out a filled grid
        self.fill: Fill = config.fill

    def keep(self, block: nn.Module, x: Tensor) -> Choice | None:
        """Choose from a grid (B, T, H, W, C); None if all stay."""
        batch, frames, height, width, self.width = x.shape
        self.grid = grid = Grid(frames, height, width)
        if self.drop >= grid.tokens:
            raise ValueError(
                f"step {self.number + 1} would drop {self.drop} tokens of every frame, but clips "
                f"of this size have {grid.tokens} there, and one must stay; "
                f"{self._advice(grid)}, or larger clips"
            )
        if self.drop == 0:
            everything = torch.arange(grid.tokens, device=x.device)
            self.kept, self.into = everything.expand(batch, frames, -1), None
            return None
        choice = self.choose(StageSite(self, block, x, grid))
        if choice.into is None and self.config.merge:
            with in_float32(x):
                into = fill_source_similar(x.flatten(1, 3), choice.kept, grid.frame)
            choice = choice._replace(into=into)
        # Another thread may write to self at any time: what this forward needs is in `choice`.
        self.kept, self.into = choice.kept, choice.into
        if self.pixels is not None and self.number == self.steps - 1:
            self.pixels.clear()
        return choice

    def _advice(self, grid: Grid) -> str:
        later = [step.after - self.after for step in self.config.plan(self.layout)[self.number :]]
        most = largest_staged(
            self.config, self.layout, self.number, [merged_tokens(grid, times) for times in later]
        )
        return "use smaller drops" if most is None else f"use r <= {most}"


def merged_tokens(grid: Grid, times: int) -> int:
    """Places per frame after so many more patch mergings, which pad odd sides."""
    side = 2**times
    return -(-grid.height // side) * -(-grid.width // side)


class RecordStep(GridStep):
    """A hook after a patch merging of the stock model, which stays as it is."""

    def __init__(self, step: StageStep) -> None:
        super().__init__(step.number, step.steps, step.config, Step(step.after, 0))
        self._step = step

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        self._step.keep(module, output)
        for name in ("grid", "width", "kept", "into"):
            setattr(self, name, getattr(self._step, name))
