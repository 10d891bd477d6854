"""Window attention over the tokens that are there, whichever they are: tensor code for Swin.

The tokens of a stage are rows, (B, n, C): all places of the grid, or the kept ones. Linear layers
run on rows. For attention every place of a window takes the keys and values of its own token, or,
where that was dropped, of the nearest kept one of its frame, or a similar one of the clip; where it
was merged, of the mean that it went into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones.swin_tokens import Arrangement, StageTokens
from sta.backbones.swin_windows import Windows

# Intermediate results are kept to about this size: they stay in the cache, and the allocator reuses
# their memory, where it would ask the system for fresh pages each time.
PIECE_BYTES = 8 << 20


def per_piece(x: Tensor, width: int) -> int:
    """How many rows of `width` numbers make a piece; all of them where nothing is computed."""
    return (
        x.shape[0] * x.shape[1] if x.is_meta else max(1, PIECE_BYTES // (width * x.element_size()))
    )


def window_attention(
    x: Tensor,
    tokens: StageTokens,
    windows: Windows,
    biases: Sequence[Tensor],
    *,
    norm: Callable[[Tensor], Tensor],
    qkv: nn.Linear,
    heads: int,
    dropout: float = 0.0,
) -> Tensor:
    """Window attention up to the output projection: (B, n, C) -> (B, n, C).

    `biases` is added to the logits, (s, heads, s) for each kind of box; `norm` is the block's
    first, `qkv` its fused projection.
    """
    found = tokens.arrange(windows)
    rows = x.flatten(0, 1)
    if tokens.whole and not found.padded:
        # Every row is fetched just once: project what was fetched.
        def fetch(index: Tensor) -> Tensor:
            return qkv(norm(rows.index_select(0, index)))
    else:
        source = qkv(norm(rows))  # (B * n, 3C)
        if found.padded:  # padding is zero after the norm: only the bias is left
            zero = source.new_zeros(1, source.shape[1])
            source = torch.cat(
                [source, zero if qkv.bias is None else zero + qkv.bias.to(zero.dtype)]
            )

        def fetch(index: Tensor) -> Tensor:
            return source.index_select(0, index)

    if found.counts is None:
        piece = per_piece(x, 3 * x.shape[-1]) if tokens.pieces else None
        results = _all_places(fetch, found, biases, heads, dropout, piece)
    else:
        results = _kept_places(source, found, biases, heads, dropout)
    done = list(results)
    joined = done[0] if len(done) == 1 else torch.cat(done)
    return joined.index_select(0, found.back).view_as(x)


def _all_places(
    fetch: Callable[[Tensor], Tensor],
    found: Arrangement,
    biases: Sequence[Tensor],
    heads: int,
    dropout: float,
    piece: int | None,
) -> Iterator[Tensor]:
    """Results of all places, (some, C) at a time: a piece of so many rows, or all of a kind."""
    for index, bias in zip(found.boxes, biases, strict=True):
        size = index.shape[1]
        for some in (index,) if piece is None else index.split(max(1, piece // size)):
            qkv = fetch(some.flatten()).view(some.shape[0], size, 3, heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (boxes, heads, s, head dim)
            yield _attend(q, k, v, bias, dropout)


def _kept_places(
    source: Tensor, found: Arrangement, biases: Sequence[Tensor], heads: int, dropout: float
) -> Iterator[Tensor]:
    """Results of the kept places, box by box."""
    assert found.counts is not None
    queries = source[:, : source.shape[1] // 3].index_select(0, found.order)  # (B * n, C)
    start = 0
    for index, bias, counts in zip(found.boxes, biases, found.counts, strict=True):
        for box, count in zip(index, counts, strict=True):
            if count == 0:
                continue
            own = slice(start, start + count)
            q = queries[own].view(1, count, heads, -1).transpose(1, 2)
            qkv = source.index_select(0, box).view(1, len(box), 3, heads, -1)
            _, k, v = qkv.permute(2, 0, 3, 1, 4)  # (1, heads, s, head dim)
            yield _attend(q, k, v, bias.index_select(0, found.inside[own]), dropout)
            start += count


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """Attention with a bias on the logits, (queries, heads, keys): -> (boxes * queries, C)."""
    mask = bias.transpose(0, 1).unsqueeze(0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return out.transpose(1, 2).flatten(2).flatten(0, 1)
