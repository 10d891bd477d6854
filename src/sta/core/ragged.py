"""The STA score of tokens at their places on the clip's grid, where frames may have lost others.

What `sta.core.step` does frame by frame, for frames with any number of tokens: where tokens compete
over the whole clip, or are compared with those at the same place of another frame. Shapes depend on
the number of tokens in the clip alone.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sta.core.options import Budget, Combine, Direction, Score, Semantic
from sta.core.score import IN_CACHE, ScoredStep, rank_score, token_weight
from sta.core.tokens import Grid, take


def explain_ragged(
    x: Tensor,
    positions: Tensor,
    grid: Grid,
    r: int,
    *,
    metric: Tensor | None,
    change: Tensor | None = None,
    budget: Budget = "frame",
    order: Direction = "F",
    score: Score = "sta",
    semantic: Semantic = "deviation",
    combine: Combine = "either",
    temperature: float = 1.0,
) -> ScoredStep:
    """One pruning step with the scores it went by. Other options are `sta.prune_step`'s.

    Args:
        x: Tokens in the order of their places, (B, n, D).
        positions: Their places, ascending, (B, n).
        grid: The clip's grid.
        r: Tokens to drop per frame, on average over the clip.
        metric: Features that measure similarity, (B, n, C), normalised here; the temporal score is
            a chain through them. None where `change` is the temporal score.
        change: How much each place of the grid changed, (B, T, N).
        budget: Whether a "frame" keeps as many as every other, or only the "clip" has a number.

    Returns:
        `kept` as `sta.methods.base.Choice` has it; the other parts on the whole grid, NaN at places
        without a token.
    """
    batch, rows, _ = x.shape
    places = grid.frames * grid.tokens
    present = torch.ones(batch, places, dtype=torch.bool, device=x.device)
    if rows < places:
        present = torch.zeros_like(present).scatter(1, positions, True)
    present = present.view(batch, grid.frames, grid.tokens)
    normalise = partial(min_max_of, present=present, budget=budget)
    weight = _weights(x.detach(), positions // grid.tokens, grid, semantic)
    significance = normalise(spread(weight.unsqueeze(-1), positions, grid).squeeze(-1))
    rank = partial(rank_score, score=score, combine=combine)
    if change is not None:
        redundancy = 1 - normalise(change)
    else:
        assert metric is not None
        features = spread(F.normalize(metric.detach().float(), dim=-1), positions, grid)
        towards = features, present, 1 - significance
        if order == "B":
            towards = tuple(of.flip(1) for of in towards)  # type: ignore[assignment]
        share = (rows - r * grid.frames, rows)
        redundancy = _chain(*towards, share=share, rank=rank, temperature=temperature)
        redundancy = redundancy.flip(1) if order == "B" else redundancy
    ranked = rank(redundancy, 1 - significance, normalise=normalise)
    kept = keep_lowest(ranked, present, rows - r * grid.frames, budget)
    shown = (of.masked_fill(~present, torch.nan) for of in (significance, redundancy, ranked))
    return ScoredStep(kept, *shown)


def spread(rows: Tensor, positions: Tensor, grid: Grid) -> Tensor:
    """Rows at their places: (B, n, C), (B, n) -> (B, T, N, C); 0 where there is none."""
    batch, count, dim = rows.shape
    places = grid.frames * grid.tokens
    if count < places:
        empty = rows.new_zeros(batch, places, dim)
        rows = empty.scatter(1, positions.unsqueeze(-1).expand(-1, -1, dim), rows)
    return rows.reshape(batch, grid.frames, grid.tokens, dim)


def min_max_of(values: Tensor, present: Tensor, budget: Budget) -> Tensor:
    """Normalised to [0, 1] over the tokens that compete, a frame's or a clip's: (B, T, N)."""
    over = (-1,) if budget == "frame" else (-2, -1)
    low = values.masked_fill(~present, torch.inf).amin(over, keepdim=True)
    span = values.masked_fill(~present, -torch.inf).amax(over, keepdim=True) - low
    return torch.where(present & (span > 0), (values - low) / span, 0.0)


def place_change(metric: Tensor, positions: Tensor, grid: Grid, order: Direction = "F") -> Tensor:
    """How much each place changed since the frame before: 1 - cosine similarity, (B, T, N).

    Where an earlier step dropped the token of the frame before, the last one that is left at the
    place counts; a place's first token is compared with its next, and one that is alone at its
    place has changed as much as any of its clip.

    Args:
        metric: Features that measure similarity, (B, n, C); normalised here.
        positions: Places of the tokens on the grid, (B, n).
        grid: The clip's grid.
        order: "B" compares with the frame after.
    """
    features = spread(F.normalize(metric.detach().float(), dim=-1), positions, grid)
    present = features.new_ones(metric.shape[0], grid.frames, grid.tokens, dtype=torch.bool)
    if metric.shape[1] < grid.frames * grid.tokens:
        marks = torch.ones_like(positions, dtype=features.dtype).unsqueeze(-1)
        present = spread(marks, positions, grid).squeeze(-1) > 0
    before, after = _since_last(features, present), _since_last(features.flip(1), present.flip(1))
    after = after[0].flip(1), after[1].flip(1)
    if order == "B":
        before, after = after, before
    change = torch.where(before[1], before[0], torch.where(after[1], after[0], 0.0))
    alone = present & ~before[1] & ~after[1]
    return torch.where(alone, change.amax((1, 2), keepdim=True), change)


def _since_last(features: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Change since the last token at the same place, and whether there is one: (B, T, N)."""
    last, seen = features[:, 0], present[:, 0]
    change, known = [torch.zeros_like(last[..., 0])], [torch.zeros_like(seen)]
    for t in range(1, features.shape[1]):
        here, now = present[:, t], features[:, t]
        change.append(1 - (now * last).sum(-1))
        known.append(here & seen)
        last, seen = torch.where(here.unsqueeze(-1), now, last), seen | here
    return torch.stack(change, 1), torch.stack(known, 1)


def keep_lowest(ranked: Tensor, present: Tensor, keep: int, budget: Budget) -> Tensor:
    """The tokens of a clip that rank lowest (ties: the earlier place).

    Args:
        ranked: (B, T, N).
        present: Which places have a token; of every frame as many, if the budget is a frame's.
        keep: How many of the clip stay.
        budget: What they compete over.

    Returns:
        Indices into the tokens that are present, ascending: (B, T, keep / T) into those of each
        frame, or (B, keep) into the clip's.
    """
    most = torch.finfo(ranked.dtype).max
    ranked = ranked.nan_to_num(nan=most, posinf=most).masked_fill(~present, torch.inf)
    if budget == "clip":
        ranked, present = ranked.flatten(1), present.flatten(1)
    else:
        keep = keep // ranked.shape[1]
    order = ranked.argsort(dim=-1, stable=True)
    places = order[..., :keep].sort(-1).values
    return (present.long().cumsum(-1) - 1).gather(-1, places)


def _weights(x: Tensor, frame: Tensor, grid: Grid, by: Semantic) -> Tensor:
    """What the semantic score normalises, (B, n); `frame` is each token's, (B, n)."""
    if x.shape[1] == grid.frames * grid.tokens:
        return token_weight(x.unflatten(1, (grid.frames, grid.tokens)), by).flatten(1)
    if by == "norm":
        return token_weight(x, by)
    frames = torch.arange(grid.frames, device=x.device).view(-1, 1)
    member = (frame.unsqueeze(1) == frames).float()
    share = member / member.sum(-1, keepdim=True).clamp(min=1)  # (B, T, n)
    mean = share.to(x.dtype) @ x  # (B, T, D)
    many = x.shape[1]  # rows at once, so that they do not leave the cache; compilers fuse it all
    if not torch.compiler.is_compiling():
        many = max(1, IN_CACHE // (x.shape[0] * x.shape[2]))
    parts = zip(x.split(many, 1), frame.split(many, 1), strict=True)
    weights = [(part - take(mean, of)).abs_().sum(-1, dtype=torch.float32) for part, of in parts]
    return torch.cat(weights, 1)


def _chain(
    features: Tensor,
    present: Tensor,
    insignificance: Tensor,
    *,
    share: tuple[int, int],
    rank: partial[Tensor],
    temperature: float,
) -> Tensor:
    """The accumulation chain (Eq. 3) over frames with any number of tokens: (B, T, N).

    It starts uniform over the first frame that has tokens, passes over those that have none, and
    goes on from the tokens of each frame that would stay if every frame kept the same share.

    Args:
        features: L2-normalised, (B, T, N, C).
        present: Which places have a token, (B, T, N).
        insignificance: 1 - F of Eq. 4, (B, T, N).
        share: How many tokens of a clip stay, and of how many.
        rank: `rank_score` with its options.

    Returns:
        A of Eq. 3 times the tokens of the frame: 1 on average, in every frame.
    """
    keep, rows = share
    counts = present.sum(-1, keepdim=True)  # (B, T, 1)
    uniform = present / counts.clamp(min=1)
    limits = (counts * keep + rows - 1) // rows
    a, old, begun = uniform[:, 0], features[:, 0], counts[:, 0] > 0
    flow = [a]
    for t in range(1, features.shape[1]):
        here, new, some = present[:, t], features[:, t], counts[:, t] > 0
        logits = (old / temperature) @ new.transpose(-1, -2)
        joint = logits.masked_fill(~here.unsqueeze(1), -torch.inf).softmax(-1)
        moved = torch.bmm(a.unsqueeze(1), joint).squeeze(1)
        moved = torch.where(begun & some, moved, uniform[:, t])
        normalise = partial(min_max_of, present=here, budget="frame")
        ranked = rank(moved, insignificance[:, t], normalise=normalise)
        ranked = ranked.masked_fill(~here, torch.inf)
        stays = ranked.argsort(dim=-1, stable=True).argsort(dim=-1) < limits[:, t]
        left = moved * stays
        total = left.sum(-1, keepdim=True)
        cut = torch.where(total > 0, left / total, stays / limits[:, t].clamp(min=1))
        cut = torch.where(begun, cut, moved)  # nothing is redundant in the first frame
        a, old = torch.where(some, cut, a), torch.where(some.unsqueeze(-1), new, old)
        flow.append(moved)
        begun = begun | some
    return torch.stack(flow, 1) * counts
