"""Methods by hand: plain loops over numbers, beside what the package chooses."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from operator import mul

import pytest
import torch
from torch import Tensor, nn

import sta
from backbones import BACKBONES
from sta.core.merge import match_step, merge_tokens

VIDEOMAE = next(b for b in BACKBONES if b.name == "videomae")  # 4 frames of 4 x 4 tokens
FRAMES, SIDE = 4, 4
PLACES = [(t, y, x) for t in range(FRAMES) for y in range(SIDE) for x in range(SIDE)]
Vector = list[float]


def dot(one: Vector, other: Vector) -> float:
    return math.fsum(map(mul, one, other))


def unit(vector: Vector) -> Vector:
    return [value / math.hypot(*vector) for value in vector]


def patch(clip: list, t: int, y: int, x: int) -> Vector:
    """The pixels of a place, out of nested lists (F, C, H, W): two frames of 8 x 8."""
    return [
        clip[frame][channel][row][column]
        for frame in (2 * t, 2 * t + 1)
        for channel in range(3)
        for row in range(8 * y, 8 * y + 8)
        for column in range(8 * x, 8 * x + 8)
    ]


# Token merging


def tome(tokens: list[Vector], r: int) -> dict[int, int]:
    """Which token each one goes into, by ToMe's rules; those that stay, into themselves."""
    units = [unit(token) for token in tokens]
    best = {}
    for even in range(0, len(tokens), 2):
        similar = {odd: dot(units[even], units[odd]) for odd in range(1, len(tokens), 2)}
        target = max(similar, key=similar.__getitem__)  # the first of equal ones
        best[even] = similar[target], target
    gone = sorted(best, key=lambda even: -best[even][0])[:r]
    return {token: best[token][1] if token in gone else token for token in range(len(tokens))}


def merged_by_hand(
    x: list[Vector], goes: dict[int, int], counts: Vector, sizes: Vector
) -> tuple[list[Vector], Vector]:
    """The tokens that stay as weighted means, and their sizes; `counts` is what each one counts."""
    out, total = [], []
    for target in sorted(set(goes.values())):
        members = {token: sizes[token] for token in goes if goes[token] == target}
        for token in members:
            members[token] *= counts[token]
        weight = sum(members.values())
        columns = range(len(x[target]))
        out.append([sum(w * x[token][c] for token, w in members.items()) / weight for c in columns])
        total.append(weight)
    return out, total


@pytest.mark.parametrize(
    ("r", "goes"),
    [
        (0, {}),
        (1, {0: 1}),
        (2, {0: 1, 2: 3}),  # three are equally similar to an odd one, one of them to two
        (3, {0: 1, 2: 3, 4: 1}),
    ],
)
def test_tome_merges_the_most_similar_even_tokens_first(r: int, goes: dict[int, int]) -> None:
    right, up = [2.0, 0.0], [0.0, 3.0]
    tokens = [right, right, up, up, right, right, [1.0, 1.0]]
    everyone = {token: goes.get(token, token) for token in range(7)}
    assert tome(tokens, r) == everyone
    kept, into = match_step(torch.tensor([tokens]), r)
    assert kept.tolist() == [[token for token in range(7) if token not in goes]]
    assert kept[0, into[0]].tolist() == [*everyone.values()]


def test_tomes_mean_is_weighed_by_sizes() -> None:
    x = torch.tensor([[[1.0, 0.0], [4.0, 0.0], [0.0, 5.0], [0.0, 1.0]]])
    kept, into = match_step(x, 2)
    merged, sizes = merge_tokens(x, kept, into, torch.tensor([[[2.0], [1.0], [1.0], [3.0]]]))
    assert merged.tolist() == [[[2.0, 0.0], [0.0, 2.0]]]
    assert sizes.flatten().tolist() == [3.0, 4.0]


Chooses = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[dict[int, int], Vector]]


def forward_by_hand(
    model: nn.Module, clip: Tensor, choose: list[Chooses]
) -> tuple[list[list[int]], Tensor]:
    """A clip through a stock VideoMAE that merges between attention and MLP.

    `choose` has a function for each block that does so. It receives the tokens and the block's
    queries, keys (n, heads, head dim) and attention without sizes, (heads, n, n), and says which
    token each goes into and what it counts. Gives the places that are left by each, and logits.
    """
    x = model.videomae.embeddings(clip, None)[0]
    sizes, places, left = torch.ones(len(x)), [*range(len(x))], []
    for number, block in enumerate(model.videomae.encoder.layer):
        attention = block.attention.attention
        normed = block.layernorm_before(x)
        query, key, value = (
            linear(normed).view(len(x), 2, 16)
            for linear in (attention.query, attention.key, attention.value)
        )
        logits = torch.einsum("ihc,jhc->hij", query, key) / 4  # the root of 16
        attended = (logits + sizes.log()).softmax(-1)
        mixed = torch.einsum("hij,jhc->ihc", attended, value).flatten(1)
        x = x + block.attention.output.dense(mixed)
        if number < len(choose):
            goes, counts = choose[number](x, query, key, logits.softmax(-1))
            merged, total = merged_by_hand(x.tolist(), goes, counts, sizes.tolist())
            x, sizes = torch.tensor(merged), torch.tensor(total)
            places = [places[token] for token in goes if goes[token] == token]
            left.append(places)
        x = block.output(block.intermediate(block.layernorm_after(x)), x)
    mean = (x * sizes.unsqueeze(1)).sum(0) / sizes.sum()
    return left, model.classifier(model.fc_norm(mean))


def assert_as_by_hand(config: sta.Config, choose: list[Chooses]) -> None:
    model, clips = VIDEOMAE.make(), VIDEOMAE.clip()
    expected = [forward_by_hand(model, clip.unsqueeze(0), choose) for clip in clips]
    found = sta.apply(model, config)(clips).logits
    for step, kept in enumerate(sta.kept(model)):
        assert kept.tolist() == [left[step] for left, _ in expected]
    torch.testing.assert_close(found, torch.stack([logits for _, logits in expected]))


@torch.no_grad()
def test_tome_through_a_model() -> None:
    """By keys that are averaged over heads, in every block; sizes weigh in attention."""

    def choose(x: Tensor, query: Tensor, key: Tensor, attention: Tensor) -> tuple:
        return tome(key.mean(1).tolist(), 6), [1.0] * len(x)

    assert_as_by_hand(sta.ToMeConfig(r=6), [choose] * 4)


# vid-TLDR


@torch.no_grad()
def test_vid_tldr_through_a_model() -> None:
    """What goes into what by hidden states; blurred tokens count nothing, so they are dropped."""
    merges = {"dropped": 0, "faded": 0}

    def choose(r: int) -> Chooses:
        def chosen(x: Tensor, query: Tensor, key: Tensor, attention: Tensor) -> tuple:
            goes = tome(x.tolist(), r)
            sharp = [dot(row, [math.log(a) for a in row]) for row in attention.mean(0).tolist()]
            low, high = min(sharp), max(sharp)
            scaled = [(value - low) / (high - low) for value in sharp]
            above = [value - sum(scaled) / len(scaled) for value in scaled]
            weight = [max(0.0, value) / max(above) for value in above]
            gone = [token for token in goes if goes[token] != token]
            merges["dropped"] += sum(weight[token] == 0 for token in gone)
            merges["faded"] += sum(weight[token] > 0 for token in gone)
            return goes, [weight[token] if token in gone else 1.0 for token in goes]

        return chosen

    assert_as_by_hand(sta.VidTLDRConfig(r=12), [choose(12), choose(4), choose(2)])
    assert min(merges.values()) > 0
    assert sum(merges.values()) == 2 * (12 + 4 + 2)


# Pixels


@pytest.mark.parametrize("budget", ["frame", "clip"])
@torch.no_grad()
def test_frame_difference_keeps_what_changed_most(budget: str) -> None:
    """A still clip, one where a corner moves, and one where all does."""
    model, clips = VIDEOMAE.make(), VIDEOMAE.unequal()
    sta.apply(model, sta.FrameDifferenceConfig(r=5, budget=budget))
    model(clips)
    (kept,) = sta.kept(model)
    for clip, found in zip(clips.tolist(), kept.tolist(), strict=True):
        change = {}
        for t, y, x in PLACES:
            now = max(t, 1)  # the first frame as the second
            pairs = zip(patch(clip, now, y, x), patch(clip, now - 1, y, x), strict=True)
            change[t, y, x] = math.fsum(abs(one - other) for one, other in pairs) / (2 * 3 * 8 * 8)

        def most(places: list, count: int, change: dict = change) -> list[int]:
            best = sorted(places, key=lambda place: -change[place])[:count]
            return sorted(places.index(place) for place in best)

        if budget == "clip":
            assert found == most(PLACES, 4 * 11)
        else:
            assert found == [most([p for p in PLACES if p[0] == t], 11) for t in range(FRAMES)]


def farthest_first(points: list[Vector], start: int, count: int) -> list[int]:
    """From one point on, again and again the one whose nearest chosen point is farthest."""
    taken, nearest = [], [math.inf] * len(points)
    while len(taken) < count:
        taken.append(max(range(len(points)), key=nearest.__getitem__) if taken else start)
        apart = (math.dist(points[taken[-1]], point) for point in points)
        nearest = [min(old, new) for old, new in zip(nearest, apart, strict=True)]
    return sorted(taken)


@torch.no_grad()
def test_k_centre_keeps_the_farthest_patches() -> None:
    time, space, count = 5.0, 3.0, FRAMES * (16 - 9)
    model, clips, results = VIDEOMAE.make(), VIDEOMAE.clip(), []
    by_start = []  # what each first patch leads to, for each clip
    for clip in clips.tolist():
        points = [[*patch(clip, t, y, x), time * t, space * y, space * x] for t, y, x in PLACES]
        by_start.append([farthest_first(points, start, count) for start in range(len(points))])
    for seed in range(4):
        sta.apply(model, sta.KCentreConfig(r=9, time=time, space=space, seed=seed))
        model(clips)
        results.append(sta.kept(model)[0].tolist())
        assert results[-1] in [[*both] for both in zip(*by_start, strict=True)]
    assert any(result != results[0] for result in results)


# STA


def first_by_hand(metric: list[Vector], r: int) -> list[int]:
    """ToMe-prune: again and again, even tokens are dropped that are most like an odd one."""
    left = [*range(len(metric))]
    while r:
        even, odd = left[::2], left[1::2]
        match = {i: max(dot(metric[i], metric[j]) for j in odd) for i in even}
        gone = sorted(even, key=lambda i: (-match[i], -i))[:r]
        left = [i for i in left if i not in gone]
        r -= len(gone)
    return left


def sta_by_hand(
    x: list[list[Vector]],
    metric: list[list[Vector]],
    r: int,
    *,
    order: str,
    semantic: str,
    temperature: float,
) -> list[list[int]]:
    """Algorithm 1 of the paper: the tokens of each frame that stay."""
    frames, tokens = len(x), len(x[0])
    units = [[unit(token) for token in frame] for frame in metric]
    times = [*range(frames)] if order == "F" else [*range(frames)][::-1]
    kept = {times[0]: first_by_hand(units[times[0]], r)}
    a = dict.fromkeys(kept[times[0]], 1 / (tokens - r))
    for before, now in pairwise(times):
        flow = [0.0] * tokens
        for old, share in a.items():
            near = [math.exp(dot(units[before][old], new) / temperature) for new in units[now]]
            flow = [f + share * n / sum(near) for f, n in zip(flow, near, strict=True)]
        mean = [0.0] * len(x[now][0])
        if semantic == "deviation":
            mean = [sum(column) / tokens for column in zip(*x[now], strict=True)]
        weight = [sum(abs(v - m) for v, m in zip(x_i, mean, strict=True)) for x_i in x[now]]
        span = max(weight) - min(weight)
        meaning = [(w - min(weight)) / span if span else 0.0 for w in weight]
        score = [flow[i] * (1 - meaning[i]) for i in range(tokens)]
        stay = sorted(range(tokens), key=score.__getitem__)[: tokens - r]
        a = {i: flow[i] / sum(flow[j] for j in stay) for i in stay}
        kept[now] = sorted(stay)
    return [kept[t] for t in range(frames)]


@pytest.mark.parametrize("order", ["F", "B"])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("semantic", ["norm", "deviation"])
@pytest.mark.parametrize("r", [3, 4, 6])  # 6 is more than the even-numbered half of 9
def test_sta_is_the_papers_algorithm_one(
    r: int, semantic: str, temperature: float, order: str
) -> None:
    generator = torch.Generator().manual_seed(r)
    x = torch.randn(3, 5, 9, 6, generator=generator) + 0.5
    metric = torch.randn(3, 5, 9, 4, generator=generator)
    how = {"order": order, "temperature": temperature}
    given = {} if semantic == "deviation" else {"semantic": semantic}  # that is the default
    kept = sta.prune_step(x, metric, r, **how, **given)
    assert kept.tolist() == [
        sta_by_hand(frames, features, r, semantic=semantic, **how)
        for frames, features in zip(x.tolist(), metric.tolist(), strict=True)
    ]


@pytest.mark.parametrize("order", ["F", "B"])
def test_equal_scores_keep_the_lower_index(order: str) -> None:
    """All features equal: in the first frame odd tokens stay, and then what weighs most."""
    norms = [0.0, 2.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0]
    x = [[[norm, 0.0] for norm in norms]] * 4
    metric = [[[1.0] * 4] * 8] * 4
    chain = [[1, 2, 3, 6]] * 3
    expected = [[1, 3, 5, 7], *chain] if order == "F" else [*chain, [1, 3, 5, 7]]
    how = {"order": order, "semantic": "norm", "temperature": 1.0}
    assert sta_by_hand(x, metric, 4, **how) == expected
    assert sta.prune_step(torch.tensor([x]), torch.tensor([metric]), 4, **how).tolist() == [
        expected
    ]
    half = sta.prune_step(torch.tensor([x]), torch.tensor([metric]), 2, **how)
    assert half.tolist() == [sta_by_hand(x, metric, 2, **how)]
    assert half[0, 0 if order == "F" else 3].tolist() == [0, 1, 2, 3, 5, 7]


# Random dropping


@torch.no_grad()
def test_random_drops_every_token_and_every_pair_as_often() -> None:
    """After one, two and three steps, in each frame; all clips alike, and no two seeds."""
    model, clips, seeds = VIDEOMAE.make(), VIDEOMAE.clip(), 200
    both, seen = torch.zeros(3, FRAMES, 16, 16), set()  # how often both tokens of a pair stayed
    for seed in range(seeds):
        sta.apply(model, sta.RandomConfig(r=4, seed=seed))(clips)
        for step, kept in enumerate(sta.kept(model)):
            assert kept.shape == (2, FRAMES, (12, 10, 9)[step])
            assert torch.equal(kept[0], kept[1])
            stays = torch.zeros(FRAMES, 16).scatter(1, kept[0], 1.0)
            both[step] += stays.unsqueeze(1) * stays.unsqueeze(2)
        seen.add(str(sta.kept(model)))
    assert len(seen) == seeds
    alone = torch.eye(16, dtype=torch.bool)
    for often, left in zip(both, (12, 10, 9), strict=True):
        for found, share in (
            (often[:, alone], left / 16),
            (often[:, ~alone], left * (left - 1) / (16 * 15)),
        ):
            deviation = math.sqrt(seeds * share * (1 - share))
            assert (found - seeds * share).abs().max() < 5 * deviation
