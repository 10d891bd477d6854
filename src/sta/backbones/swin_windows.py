"""Windows of Video Swin as lists of places: pure tensor code, no model classes.

A grid of T x H x W tokens is padded to a multiple of the window, rolled back by the shift and cut
into windows; in the last window of a shifted axis, places from the two ends of the grid meet, which
must not see each other. Here all that becomes boxes, each a list of places of the grid, so that
pad, roll and partition (and filling dropped places) are one `index_select` of rows.

Two ways to cut. `masked`: whole windows, and a mask on the logits hides the two ends from each
other, as in the stock model. `split`: such a window is cut in two, so no mask is needed and no work
is done for pairs that it would have hidden: in the last window of an axis about half of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Size = tuple[int, int, int]  # frames, height, width
Cut = Literal["masked", "split"]

HIDDEN = -100.0  # what the stock model adds to the logit of a pair that must not see each other


class Windows(NamedTuple):
    """How a grid is cut."""

    grid: Size  # places of the clip
    window: Size  # places of a window, no larger than the grid
    shift: Size  # how far the windows are shifted, 0 along axes where one window spans the grid

    @classmethod
    def fit(cls, grid: Size, window: Size, shift: Size) -> Windows:
        """Windows shrunk to a grid that is smaller, which is then not shifted."""
        fitted = [
            (size, 0) if size <= most else (most, by)
            for size, most, by in zip(grid, window, shift, strict=True)
        ]
        (t, st), (h, sh), (w, sw) = fitted
        return cls(grid, (t, h, w), (st, sh, sw))

    @property
    def padded(self) -> Size:
        """The grid, filled up to whole windows."""
        t, h, w = (
            -(-size // window) * window for size, window in zip(self.grid, self.window, strict=True)
        )
        return t, h, w

    @property
    def places(self) -> int:
        """Places of the grid. This number itself stands for a padded place."""
        return self.grid[0] * self.grid[1] * self.grid[2]


class Part(NamedTuple):
    """Boxes of equal size along one axis of the padded, rolled grid."""

    start: int  # where they begin
    number: int  # how many there are
    size: int  # how long each is
    offset: int = 0  # where a box begins inside its window
    seam: int = 0  # where strangers meet inside the box; 0 if they do not


def _axis(padded: int, window: int, shift: int, cut: Cut) -> list[Part]:
    count = padded // window
    if shift == 0:
        return [Part(0, count, window)]
    last, seam = padded - window, window - shift
    inner = Part(0, count - 1, window)
    if cut == "masked":
        return [inner, Part(last, 1, window, seam=seam)]
    return [inner, Part(last, 1, seam), Part(last + seam, 1, shift, offset=seam)]


def _parts(windows: Windows, cut: Cut) -> Iterator[tuple[Part, Part, Part]]:
    axes = zip(windows.padded, windows.window, windows.shift, strict=True)
    time, down, across = (_axis(padded, window, shift, cut) for padded, window, shift in axes)
    return product(time, down, across)


def boxes(windows: Windows, cut: Cut, device: torch.device) -> list[Tensor]:
    """The places of all boxes: a tensor (boxes, s) for each kind of box.

    Boxes of a kind have the same size and the same place inside a window. The number of places
    stands for padding.
    """
    grid = windows.grid
    axes = zip(grid, windows.padded, windows.shift, strict=True)
    rolled = [
        (torch.arange(padded, device=device).roll(-shift), size) for size, padded, shift in axes
    ]
    t, h, w = (place for place, _ in rolled)
    in_t, in_h, in_w = (place < size for place, size in rolled)
    place = (t.view(-1, 1, 1) * grid[1] + h.view(-1, 1)) * grid[2] + w
    inside = in_t.view(-1, 1, 1) & in_h.view(-1, 1) & in_w
    place = torch.where(inside, place, windows.places)  # (T', H', W'), padded and rolled
    out = []
    for parts in _parts(windows, cut):
        here = place
        for axis, part in enumerate(parts):
            here = here.narrow(axis, part.start, part.number * part.size)
        (nt, st), (nh, sh), (nw, sw) = ((part.number, part.size) for part in parts)
        here = here.reshape(nt, st, nh, sh, nw, sw).permute(0, 2, 4, 1, 3, 5)
        out.append(here.reshape(nt * nh * nw, st * sh * sw))
    return out


def window_bias(table: Tensor, index: Tensor, window: Size) -> Tensor:
    """Relative position bias of a whole window, (S, heads, S): query, head, key.

    `table` has the learned biases, (relative positions, heads); `index`, (full, full), says which
    of them joins two places of the model's full window. A smaller window uses its first rows and
    columns, as the stock model does.
    """
    size = window[0] * window[1] * window[2]
    return table[index[:size, :size].flatten()].view(size, size, -1).transpose(1, 2).contiguous()


def box_biases(bias: Tensor, windows: Windows, cut: Cut) -> list[Tensor]:
    """The parts of `window_bias` inside `boxes`, (s, heads, s); pairs across a seam hidden."""
    inside: dict[tuple[Part, Part], Tensor] = {}  # boxes that differ in time alone share theirs
    out = []
    for time, down, across in _parts(windows, cut):
        if time.seam or down.seam or across.seam:
            out.append(bias + _hidden((time, down, across), bias).unsqueeze(1))
            continue
        if (down, across) not in inside:
            inside[down, across] = _inside_frame(bias, windows.window, down, across)
        frame = down.size * across.size
        here = slice(time.offset * frame, (time.offset + time.size) * frame)
        out.append(inside[down, across][here, :, here])  # whole frames: a view
    return out


def _inside_frame(bias: Tensor, window: Size, down: Part, across: Part) -> Tensor:
    """The bias between some rows and columns of all of a window's frames."""
    frames, height, width = window
    if (down.size, across.size) == (height, width):
        return bias
    rows = torch.arange(down.offset, down.offset + down.size, device=bias.device)
    columns = torch.arange(across.offset, across.offset + across.size, device=bias.device)
    places = (rows.view(-1, 1) * width + columns).flatten()
    bias = bias.view(frames, height * width, -1, frames, height * width)
    return bias.index_select(1, places).index_select(4, places).flatten(3).flatten(0, 1)


def _hidden(parts: tuple[Part, Part, Part], like: Tensor) -> Tensor:
    """`HIDDEN` where two places of a box lie on different sides of a seam, else 0: (s, s)."""
    t, h, w = (
        (torch.arange(part.size, device=like.device) >= (part.seam or part.size)).long()
        for part in parts
    )
    side = (t.view(-1, 1, 1) * 4 + h.view(-1, 1) * 2 + w).flatten()
    apart = side.unsqueeze(1) != side
    return torch.zeros(apart.shape, dtype=like.dtype, device=like.device).masked_fill(apart, HIDDEN)
