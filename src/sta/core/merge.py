"""Merging tokens: similar ones become their weighted mean."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sta.core.first_frame import bipartite_match
from sta.core.tokens import Grid, slot_of, take


def match_step(metric: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """ToMe's choice: the r even-numbered tokens with the most similar match go into that match.

    Args:
        metric: Similarity features, (B, n, C); normalised here.
        r: How many to merge away, at most n // 2.

    Returns:
        Kept tokens, (B, n - r), ascending; and the number of the kept token that each goes into,
        (B, n).
    """
    similarity, match = bipartite_match(F.normalize(metric.detach().float(), dim=-1))
    return merge_best(similarity, match, r, metric.shape[1])


def ward_step(x: Tensor, sizes: Tensor | None, r: int) -> tuple[Tensor, Tensor]:
    """The r even-numbered tokens that cost least go into the odd-numbered one where they do.

    The cost is Ward's, of tokens centred and scaled to the same length, times how far the token
    that goes is from the clip's mean.

    Args:
        x: Tokens, (B, n, D).
        sizes: How many original tokens each stands for, (B, n, 1); None if all are single.
        r: How many to merge away, at most n // 2.

    Returns:
        Kept tokens, (B, n - r), ascending; and the number of the kept token that each goes into,
        (B, n).
    """
    x = x.detach().float()
    least, match = ward_cost(x, sizes).min(-1)
    return merge_best(-least * clip_deviation(x), match, r, x.shape[1])


def ward_cost(x: Tensor, sizes: Tensor | None) -> Tensor:
    """What merging an even-numbered token into an odd one adds to the squared error (Ward).

    Tokens, (B, n, D), are centred and scaled to length 1 here; `sizes` is how many original ones
    each stands for, (B, n, 1), None if all are single. -> (B, ceil(n / 2), n // 2).
    """
    x = x.detach().float()
    unit = F.normalize(x - x.mean(-1, keepdim=True), dim=-1)
    even, odd = unit[:, ::2], unit[:, 1::2].transpose(-1, -2)
    single = torch.baddbmm(unit.new_ones(1, 1, 1), even, odd, alpha=-1)  # 1 - cosine
    if sizes is None:
        return single
    inverse = 0.5 / sizes.detach().float()
    return single / (inverse[:, ::2] + inverse[:, 1::2].transpose(-1, -2))


def ward_regions(x: Tensor, grid: Grid, keep: int) -> tuple[Tensor, Tensor]:
    """Regions of a full grid of tokens: neighbours in space and time that lose least as their mean.

    As in region merging of images, every token begins as a region of its own, and the two
    neighbouring ones whose union costs least (Ward) become one. That is done for many at a time:
    half of the regions may go into any neighbour of the other half; of these the cheapest go, at
    most a quarter of all, and then regions take sides anew. The work is linear in the tokens.

    Args:
        x: Tokens of all places, (B, T * H * W, D).
        grid: T, H, W.
        keep: How many regions are left.

    Returns:
        A place of each region, (B, keep), ascending; and the number of the region that each place
        belongs to, (B, T * H * W).
    """
    batch, count, _ = x.shape
    means, sizes = x.detach().float(), x.new_ones(batch, count, 1, dtype=torch.float32)
    places = torch.arange(count, device=x.device)
    height, width = grid.frame
    side = (places // (height * width) + places // width % height + places % width) % 2
    places = region = places.expand(batch, -1)
    while count > keep:
        gone = min(count - keep, max(1, count // 4))
        kept, into = _merge_neighbours(means, sizes, region.view(batch, *grid), side, gone)
        means, sizes = merge_tokens(means, kept, into, sizes)
        places, region = places.gather(1, kept), into.gather(1, region)
        count -= gone
        side = torch.arange(count, device=x.device) % 2
    return places, region


def _merge_neighbours(
    means: Tensor, sizes: Tensor, region: Tensor, side: Tensor, r: int
) -> tuple[Tensor, Tensor]:
    """The r regions of side 0 that cost least go into the neighbour of side 1 where they do.

    Regions count as neighbours, too, if their numbers are: so everyone has one on the other side.

    Args:
        means: Of the regions, (B, n, D).
        sizes: Places of each, (B, n, 1).
        region: Of every place, (B, T, H, W).
        side: Of each region, 0 or 1, (n,).
        r: How many go.

    Returns:
        Kept regions, (B, n - r), ascending; and the number of the kept one that each goes into,
        (B, n).
    """
    batch, count, _ = means.shape
    everywhere = take(means, region.flatten(1)).view(*region.shape, -1)
    own = torch.arange(count, device=means.device).expand(batch, -1)
    pairs = [(own[:, :-1], own[:, 1:])]
    apart = [(means[:, :-1] - means[:, 1:]).norm(dim=-1)]
    for axis in (1, 2, 3):
        last = region.shape[axis] - 1
        ends = [(region.narrow(axis, at, last), everywhere.narrow(axis, at, last)) for at in (0, 1)]
        pairs.append((ends[0][0].flatten(1), ends[1][0].flatten(1)))
        apart.append((ends[0][1] - ends[1][1]).norm(dim=-1).flatten(1))
    one, other = (torch.cat(end, 1) for end in zip(*pairs, strict=True))  # (B, pairs)
    inverse = 1 / sizes.squeeze(-1)
    cost = torch.cat(apart, 1).square() / (inverse.gather(1, one) + inverse.gather(1, other))
    facing = side[one] != side[other]
    leaves = side[one] == 0
    source, target = torch.where(leaves, one, other), torch.where(leaves, other, one)
    cost = cost.masked_fill(~facing, torch.inf)
    least = torch.full_like(inverse, torch.inf).scatter_reduce(1, source, cost, "amin")
    cheapest = facing & (cost == least.gather(1, source))
    target = target.masked_fill(~cheapest, count - 1)
    match = torch.full_like(own, count - 1).scatter_reduce(1, source, target, "amin")
    order = least.argsort(dim=-1, stable=True)
    gone, kept = order[:, :r], order[:, r:].sort(-1).values
    slot = slot_of(kept, count)
    return kept, slot.scatter(-1, gone, slot.gather(-1, match.gather(-1, gone)))


def clip_deviation(x: Tensor) -> Tensor:
    """L1 distance of even-numbered tokens from the clip's mean: (B, n, D) -> (B, ceil(n / 2))."""
    x = x.detach().float()
    return (x - x.mean(1, keepdim=True))[:, ::2].abs().sum(-1)


def merge_best(score: Tensor, match: Tensor, r: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Merge the r best-scored even tokens into the odd tokens they match: kept, and into."""
    batch = score.shape[0]
    order = score.argsort(dim=-1, descending=True, stable=True)
    gone, stays = order[:, :r], order[:, r:]  # numbers among the even tokens
    odd = torch.arange(1, tokens, 2, device=score.device).expand(batch, -1)
    kept = torch.cat([stays * 2, odd], -1).sort(-1).values
    slot = slot_of(kept, tokens)
    target = match.gather(-1, gone) * 2 + 1  # (B, r)
    return kept, slot.scatter(-1, gone * 2, slot.gather(-1, target))


def most_similar(metric: Tensor, kept: Tensor) -> Tensor:
    """The most similar kept token that each goes into (ties: the first), (B, n); kept ones stay.

    `metric` are similarity features, (B, n, C), normalised here; `kept` is which stay, (B, K).
    """
    metric = F.normalize(metric.detach().float(), dim=-1)
    gone = _dropped(kept, metric.shape[1])
    match = (take(metric, gone) @ take(metric, kept).transpose(-1, -2)).argmax(-1)
    return slot_of(kept, metric.shape[1]).scatter(-1, gone, match)


def weighted_mean(x: Tensor, sizes: Tensor) -> Tensor:
    """The mean of tokens, each as many times as it stands for: (B, n, D), (B, n, 1) -> (B, D)."""
    sizes = _exact(sizes)
    return ((x * sizes).sum(1) / sizes.sum(1)).to(x.dtype)


def merge_tokens(x: Tensor, kept: Tensor, into: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Kept tokens as the weighted mean of those that go into them, and the sums of the weights.

    Args:
        x: Tokens, (B, n, D).
        kept: Which stay, (B, K), ascending.
        into: Number of the kept token that each goes into, (B, n).
        weights: What each counts, (B, n, 1): its size, or less.

    Returns:
        (B, K, D), and (B, K, 1) in float32 or better.
    """
    gone, weights = _dropped(kept, x.shape[1]), _exact(weights)
    target, heavy, light = into.gather(-1, gone), take(weights, kept), take(weights, gone)
    total = _add_rows(heavy, target, light)
    summed = _add_rows(take(x, kept) * heavy, target, take(x, gone) * light)
    return summed.div_(total).to(x.dtype), total


def _exact(sizes: Tensor) -> Tensor:
    """In float32 or better, and so is what is made of them: half precision counts no further than
    256 or 2048, and sums of many tokens overflow."""
    return sizes.to(torch.promote_types(sizes.dtype, torch.float32))


def _dropped(kept: Tensor, tokens: int) -> Tensor:
    """The tokens that do not stay, ascending: (B, K) -> (B, tokens - K)."""
    stays = torch.zeros(kept.shape[0], tokens, device=kept.device).scatter(-1, kept, 1.0)
    return stays.argsort(dim=-1, stable=True)[:, : tokens - kept.shape[1]]


def _add_rows(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """x with rows[b, i] added to row index[b, i]: (B, n, D), (B, r), (B, r, D)."""
    batch, tokens, dim = x.shape
    offset = torch.arange(batch, device=x.device).unsqueeze(1) * tokens
    flat = (index + offset).flatten()
    return x.reshape(-1, dim).index_add(0, flat, rows.reshape(-1, dim)).view(batch, tokens, dim)
