"""The tokens of a Video Swin stage: which there are, what fills the places of the others.

`StageTokens` fills a stage's grid twice: for its windows, where every place needs keys and values
(`arrange`), and at its end, before the next patch merging (`fill`). Which kept token stands in for
a dropped one is `sta.core.fill`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sta.backbones.hooks import in_float32
from sta.backbones.swin_windows import Cut, Size, Windows, boxes
from sta.core.fill import fill_source, fill_source_similar
from sta.core.merge import merge_tokens
from sta.core.tokens import clip_indices, take
from sta.core.tracing import is_fake
from sta.methods.base import Choice, Fill, WindowQueries


def works_in_pieces(x: Tensor) -> bool:
    """Whether to work piece by piece: on a CPU, unless a graph is being recorded."""
    recording = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    return x.device.type in ("cpu", "meta") and not recording


class Arrangement(NamedTuple):
    """Rows sorted into boxes."""

    # For each kind of box, (B * boxes, s): the row at each place; B * n for padding.
    boxes: list[Tensor]
    padded: bool  # whether there is padding
    back: Tensor  # (B * n,): where the result of each row is, among all results in order
    # For each kind, how many queries each box has; None if every place is one.
    counts: list[list[int]] | None
    order: Tensor  # (B * n,): the rows in the order of their queries; empty if every place is one
    inside: Tensor  # (B * n,): their places in their boxes, in that order


class StageTokens:
    """Which tokens of a stage's grid, (B, T, H, W, C), there are, and how they meet in windows.

    Without a `choice` all are kept. Where a token was dropped, the nearest kept one of its "frame"
    fills its place, or of the nearest ones in all frames of the "clip" the most similar.
    """

    def __init__(
        self, like: Tensor, choice: Choice | None, queries: WindowQueries, filling: Fill = "frame"
    ) -> None:
        self.batch, frames, height, width, _ = like.shape
        self.grid: Size = (frames, height, width)
        self.device = like.device
        self.whole = choice is None
        self.into = None if choice is None else choice.into
        self.pieces = works_in_pieces(like)  # shapes may then depend on the data
        self.all_query = self.whole or queries == "all" or not self.pieces
        # The paper counts whole windows; few large calls also suit accelerators and graphs.
        self.cut: Cut = "masked" if queries == "all" or not self.pieces else "split"
        if choice is None:
            places = torch.arange(frames * height * width, device=self.device)
            self._place = fill = places.expand(self.batch, -1)
        else:
            kept = choice.kept
            self._place = clip_indices(kept, height * width)  # (B, n): the place of each row
            if choice.into is not None:
                fill = choice.into
            elif filling == "clip":
                with in_float32(like):
                    fill = fill_source_similar(like.flatten(1, 3), kept, (height, width))
            else:
                fill = clip_indices(fill_source(kept, (height, width)), kept.shape[-1])
        self.rows = self._place.shape[1]  # tokens of a clip, n
        clip = torch.arange(self.batch, device=self.device).view(-1, 1)
        self._fill = fill + clip * self.rows  # (B, T * N): the row that fills each place
        self._made: dict[Windows, Arrangement] = {}

    def start(self, x: Tensor) -> Tensor:
        """The rows of a grid, merged or taken: (B, T, H, W, C) -> (B, n, C)."""
        rows = x.flatten(1, 3)
        if self.whole:
            return rows
        if self.into is None:
            return take(rows, self._place)
        single = rows.new_ones(self.batch, rows.shape[1], 1)
        return merge_tokens(rows, self._place, self.into, single)[0]

    def fill(self, x: Tensor) -> Tensor:
        """Rows back onto the grid, holes filled: (B, n, C) -> (B, T, H, W, C)."""
        if not self.whole:
            x = x.flatten(0, 1).index_select(0, self._fill.flatten())
        return x.view(self.batch, *self.grid, -1)

    def arrange(self, windows: Windows) -> Arrangement:
        """The rows sorted into the boxes of these windows; made once."""
        if windows not in self._made:
            self._made[windows] = self._arrange(windows)
        return self._made[windows]

    def _arrange(self, windows: Windows) -> Arrangement:
        padded = windows.padded != windows.grid
        fill = F.pad(self._fill, (0, 1), value=self.batch * self.rows) if padded else self._fill
        kinds = boxes(windows, self.cut, self.device)
        arranged = [fill[:, kind].flatten(0, 1) for kind in kinds]
        position = self._positions(kinds, fill.shape[1])
        if self.all_query:
            none = position[:0]
            return Arrangement(arranged, padded, position, None, none, none)
        queried, order = position.sort()
        lengths = torch.cat(
            [position.new_full((rows.shape[0],), rows.shape[1]) for rows in arranged]
        )
        ends = lengths.cumsum(0)  # (B * all boxes,)
        inside = queried - (ends - lengths)[torch.searchsorted(ends, queried, right=True)]
        count = torch.arange(order.shape[0], device=self.device)
        back = torch.empty_like(order).scatter(0, order, count)
        if is_fake(queried):
            arranged, counts = _spread(arranged, self.batch, self.rows)
        else:
            until = torch.searchsorted(queried, ends)
            each = iter(until.diff(prepend=until.new_zeros(1)).tolist())
            counts = [[next(each) for _ in rows] for rows in arranged]
        return Arrangement(arranged, padded, back, counts, order, inside)

    def _positions(self, kinds: Sequence[Tensor], width: int) -> Tensor:
        """Where each row's own place is among all places of all boxes, (B * n,)."""
        start, starts, steps = 0, [], []
        for kind in kinds:
            starts.append(torch.arange(start, start + kind.numel(), device=self.device))
            steps.append(starts[-1].new_full((kind.numel(),), kind.numel()))
            start += self.batch * kind.numel()
        clip = torch.arange(self.batch, device=self.device).view(-1, 1)
        position = torch.cat(starts) + torch.cat(steps) * clip  # (B, places of all boxes)
        place = torch.cat([kind.flatten() for kind in kinds]).expand(self.batch, -1)
        found = torch.zeros(self.batch, width, dtype=torch.long, device=self.device)
        return found.scatter(1, place, position).gather(1, self._place).flatten()


def _spread(arranged: list[Tensor], batch: int, rows: int) -> tuple[list[Tensor], list[list[int]]]:
    """Stand-ins where there are no data, only shapes: the same work in one box of each kind.

    Queries are taken to be spread evenly over all places.
    """
    sizes = [boxes.numel() // batch for boxes in arranged]
    until = [end * rows // sum(sizes) for end in accumulate(sizes, initial=0)]
    counts = [[(end - start) * batch] for start, end in pairwise(until)]
    return [boxes[:1] for boxes in arranged], counts
