"""The method itself: properties of the score, the chain, the first frame and the step."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import sta
from sta.core.first_frame import grid_prune, prune_first_frame, random_prune, tome_prune
from sta.core.merge import match_step, merge_tokens, weighted_mean
from sta.core.noise import noise
from sta.core.score import accumulate, semantic_score, transition
from sta.core.step import explain_step, prune_step, random_step


@st.composite
def clips(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Tokens, metric and a drop that fits, of any size; sometimes a still or an empty clip."""
    batch, frames, tokens = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 6)),
        draw(st.integers(1, 20)),
    )
    r = draw(st.integers(0, tokens - 1))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(batch, frames, tokens, 5, generator=generator)
    metric = torch.randn(batch, frames, tokens, 4, generator=generator)
    kind = draw(st.sampled_from(["random", "still", "flat", "zero"]))
    if kind == "still":  # all frames equal
        x, metric = x[:, :1].expand_as(x), metric[:, :1].expand_as(metric)
    elif kind == "flat":  # all tokens equal
        x, metric = torch.ones_like(x), torch.ones_like(metric)
    elif kind == "zero":
        x, metric = torch.zeros_like(x), torch.zeros_like(metric)
    return x, metric, r


options = st.fixed_dictionaries(
    {
        "order": st.sampled_from("FB"),
        "score": st.sampled_from(["sta", "temporal", "semantic"]),
        "first_frame": st.sampled_from(["tome", "grid", "random"]),
        "semantic": st.sampled_from(["norm", "deviation"]),
        "temperature": st.sampled_from([1.0, 0.1, 0.01, 0.001]),
        "seed": st.integers(-5, 5),
    }
)


@given(clips(), options)
def test_kept_are_unique_in_range_ascending_and_exactly_as_many(
    clip: tuple[Tensor, Tensor, int], chosen: dict
) -> None:
    x, metric, r = clip
    kept = prune_step(x, metric, r, **chosen)
    batch, frames, tokens, _ = x.shape
    assert kept.shape == (batch, frames, tokens - r)
    assert kept.dtype == torch.int64
    assert kept.min() >= 0
    assert kept.max() < tokens
    assert (kept.diff(dim=-1) > 0).all()


@given(clips(), options)
def test_scores_are_finite_and_the_accumulation_is_a_distribution(
    clip: tuple[Tensor, Tensor, int], chosen: dict
) -> None:
    x, metric, r = clip
    step = explain_step(x, metric, r, **chosen)
    total = step.accumulation.sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-4)
    assert (step.accumulation >= 0).all()
    assert ((step.semantic >= 0) & (step.semantic <= 1)).all()
    assert step.score.isfinite().all()


@given(clips(), options)
def test_permuting_the_batch_permutes_the_result(
    clip: tuple[Tensor, Tensor, int], chosen: dict
) -> None:
    x, metric, r = clip
    order = torch.arange(x.shape[0]).flip(0)
    kept = prune_step(x, metric, r, **chosen)
    assert torch.equal(prune_step(x[order], metric[order], r, **chosen), kept[order])


@given(clips(), options)
def test_backward_is_forward_on_the_reversed_clip(
    clip: tuple[Tensor, Tensor, int], chosen: dict
) -> None:
    x, metric, r = clip
    forward = prune_step(x, metric, r, **{**chosen, "order": "F"})
    backward = prune_step(x.flip(1), metric.flip(1), r, **{**chosen, "order": "B"})
    assert torch.equal(backward.flip(1), forward)


def test_the_lowest_scores_stay_and_ties_go_to_the_lower_index() -> None:
    x, metric = torch.randn(2, 5, 16, 8), torch.randn(2, 5, 16, 6)
    step = explain_step(x, metric, 6)
    for t, b in product(range(1, 5), range(2)):
        score = step.score[b, t]
        stays = score[step.kept[b, t]].max()
        gone = [i for i in range(16) if i not in step.kept[b, t].tolist()]
        assert stays <= score[gone].min()
    flat = prune_step(torch.ones(1, 4, 9, 3), torch.ones(1, 4, 9, 3), 5)
    assert flat[:, 1:].tolist() == [[[0, 1, 2, 3]] * 3]


def test_the_chain_is_the_papers_algorithm_one_by_hand() -> None:
    """Alg. 1 on two tokens per frame, in numbers small enough for pencil and paper."""
    metric = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]]])
    x = torch.tensor([[[[0.0], [0.0]], [[2.0], [1.0]]]])
    joint = transition(metric[:, 0], metric[:, 1])
    e = torch.e
    rows = torch.tensor([[e / (e + 1), 1 / (e + 1)], [1 / (e + 1), e / (e + 1)]])
    torch.testing.assert_close(joint[0], rows)
    assert semantic_score(x, "norm").tolist() == [[[0.0, 0.0], [1.0, 0.0]]]
    chain = accumulate(x, metric, torch.tensor([[0]]), semantic="norm")
    torch.testing.assert_close(chain.accumulation[0, 1], rows[0])
    torch.testing.assert_close(chain.score[0, 1], torch.tensor([0.0, 1 / (1 + e)]))
    assert chain.kept.tolist() == [[[0], [0]]]
    temporal = accumulate(x, metric, torch.tensor([[0]]), score="temporal")
    assert temporal.kept.tolist() == [[[0], [1]]]  # the repeated one goes


def test_semantic_score_of_a_flat_frame_is_zero() -> None:
    assert semantic_score(torch.full((1, 2, 4, 3), 7.0), "norm").eq(0).all()


def test_what_all_tokens_share_sets_none_apart() -> None:
    x = torch.randn(2, 3, 9, 16, generator=torch.Generator().manual_seed(0))
    shared = 50 * torch.randn(2, 3, 1, 16, generator=torch.Generator().manual_seed(1))
    apart = semantic_score(x, "deviation")
    torch.testing.assert_close(semantic_score(x + shared, "deviation"), apart, rtol=0, atol=1e-3)
    assert (semantic_score(x + shared, "norm") - semantic_score(x, "norm")).abs().max() > 0.5
    odd = torch.ones(1, 1, 6, 4)
    odd[..., 2, :] = 0.0  # the least by norm, and the only one that is different
    assert semantic_score(odd, "norm").argmin() == 2
    assert semantic_score(odd, "deviation").argmax() == 2


def test_what_repeats_is_dropped_and_what_is_new_stays() -> None:
    """One new direction appears in the second frame; at a low temperature it must stay."""
    base = torch.eye(8)[:6].repeat(3, 1, 1)
    base[1:, 3] = torch.eye(8)[7]
    x = torch.ones(1, 3, 6, 2)
    kept = prune_step(x, base.unsqueeze(0), 3, score="temporal", temperature=0.05)
    assert 3 in kept[0, 1].tolist()


@given(st.integers(2, 40), st.data())
def test_tome_prune_drops_the_most_similar_and_repeats_beyond_half(
    n: int, data: st.DataObject
) -> None:
    r = data.draw(st.integers(0, n - 1))
    metric = F.normalize(torch.randn(2, n, 6, generator=torch.Generator().manual_seed(n)), dim=-1)
    kept = tome_prune(metric, r)
    assert kept.shape == (2, n - r)
    assert (kept.diff(dim=-1) > 0).all()
    if r <= (n + 1) // 2:
        similarity = (metric[:, ::2] @ metric[:, 1::2].mT).amax(-1)
        for b in range(2):
            stays = set(kept[b].tolist())
            assert stays >= set(range(1, n, 2))  # the odd ones all stay
            gone = [i for i in range(0, n, 2) if i not in stays]
            left = [i for i in range(0, n, 2) if i in stays]
            if gone and left:
                assert (
                    similarity[b, [i // 2 for i in gone]].min()
                    >= similarity[b, [i // 2 for i in left]].max()
                )


@pytest.mark.parametrize("method", ["tome", "grid", "random"])
def test_beyond_half_every_method_still_leaves_exactly_what_is_asked(method: str) -> None:
    metric = torch.randn(1, 49, 8)
    assert prune_first_frame(metric, 40, method, grid=(7, 7)).shape == (1, 9)  # Swin at r1=320


def test_grid_drops_one_per_cell() -> None:
    kept = grid_prune(196, 49, grid=(14, 14), seed=3)  # 7 x 7 cells of 2 x 2
    gone = sorted(set(range(196)) - set(kept.tolist()))
    cells = {(i // 14 // 2, i % 14 // 2) for i in gone}
    assert len(gone) == len(cells) == 49
    assert not torch.equal(kept, grid_prune(196, 49, grid=(14, 14), seed=4))


@given(st.integers(1, 60), st.data())
def test_random_drops_are_seeded_and_fair(n: int, data: st.DataObject) -> None:
    r = data.draw(st.integers(0, n - 1))
    seed = data.draw(st.integers(-(2**40), 2**40))
    kept = random_prune(n, r, seed=seed)
    assert torch.equal(kept, random_prune(n, r, seed=seed))
    assert len(set(kept.tolist())) == n - r


def test_noise_is_uniform_and_differs_between_seeds_and_frames() -> None:
    values = noise((200, 500), seed=1).double() / 2**32
    assert abs(values.mean() - 0.5) < 0.01
    assert (values.mean(1) - 0.5).abs().max() < 0.08
    assert not torch.equal(noise((9,), seed=1), noise((9,), seed=2))
    frames = random_step(1, 8, 32, 16, seed=0)[0]
    assert len({tuple(f.tolist()) for f in frames}) == 8
    often = torch.stack([random_step(1, 1, 16, 8, seed=s)[0, 0] for s in range(400)])
    counts = torch.bincount(often.flatten(), minlength=16)
    assert counts.min() > 140  # each expected 200 times
    assert counts.max() < 260


def test_merging_keeps_the_weighted_sum() -> None:
    x, metric = torch.randn(2, 11, 4), torch.randn(2, 11, 3)
    size = torch.randint(1, 5, (2, 11, 1)).float()
    kept, into = match_step(metric, 4)
    merged, sizes = merge_tokens(x, kept, into, size)
    assert torch.equal(sizes.sum(1), size.sum(1))
    assert merged.shape == (2, 7, 4)
    torch.testing.assert_close((merged * sizes).sum(1), (x * size).sum(1))
    weights = torch.rand(2, 11, 1)
    weighted, _ = merge_tokens(x, kept, into, weights)
    for b in range(2):
        for slot in range(7):
            members = (into[b] == slot).nonzero().flatten()
            assert kept[b, slot] in members
            for values, found in ((size, merged), (weights, weighted)):
                mean = (x[b, members] * values[b, members]).sum(0) / values[b, members].sum()
                torch.testing.assert_close(found[b, slot], mean)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_holds_the_sums_of_a_merge(dtype: torch.dtype) -> None:
    """In half, whole numbers end at 256 or 2048, and 599 times 300 is infinite."""
    x = torch.full((2, 3000, 4), 300, dtype=dtype, requires_grad=True)
    kept, into = torch.tensor([[7, 2900]] * 2), torch.arange(3000).ge(2401).long().expand(2, -1)
    ones = x.detach().new_ones(2, 3000, 1)
    merged, sizes = merge_tokens(x, kept, into, ones)
    assert sizes.tolist() == [[[2401.0], [599.0]]] * 2
    mean = weighted_mean(merged, sizes)
    for found in (merged, mean):
        assert found.dtype == dtype
        assert torch.equal(found, torch.full_like(found, 300))
    mean.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 3000))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"r": -1}, "negative"),
        ({"r": 9}, "r <= 8"),
        ({"order": "FB"}, "'F', 'B'"),
        ({"score": "magic"}, "'sta', 'temporal', 'semantic'"),
        ({"first_frame": "dice"}, "'tome', 'grid', 'random'"),
        ({"semantic": "rank"}, "'norm', 'deviation'"),
        ({"temperature": 0.0}, "above 0"),
        ({"grid": (2, 4)}, "9 tokens"),
        ({"metric": torch.zeros(1, 2, 8, 3)}, r"\(B, T, N, C\)"),
    ],
)
def test_bad_arguments_say_what_is_allowed(wrong: dict, says: str) -> None:
    arguments = {"metric": torch.zeros(1, 2, 9, 3), "r": 2, **wrong}
    with pytest.raises(ValueError, match=says):
        sta.prune_step(torch.zeros(1, 2, 9, 5), arguments.pop("metric"), **arguments)
