"""Scores at their places: references by plain loops, over frames with any number of tokens."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import sta
from backbones import BACKBONES, output
from sta.backbones import find
from sta.core.difference import keep_changed, tubelet_change
from sta.core.ragged import explain_ragged, place_change
from sta.core.step import explain_step
from sta.core.tokens import Grid

GRID = Grid(4, 2, 3)
VIDEOMAE = next(b for b in BACKBONES if b.name == "videomae")


def clip(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, metric and positions of two clips with 13 tokens each; frames have 0 to 6."""
    generator = torch.Generator().manual_seed(seed)
    frames = ([0, 6, 4, 3], [6, 0, 2, 5])
    positions = []
    for counts in frames:
        places = [
            t * 6 + n
            for t, count in enumerate(counts)
            for n in sorted(torch.randperm(6, generator=generator)[:count].tolist())
        ]
        positions.append(places)
    x = torch.randn(2, 13, 5, generator=generator)
    metric = torch.randn(2, 13, 4, generator=generator)
    return x, metric, torch.tensor(positions)


def normalised(values: dict[int, float], competing: list[list[int]]) -> dict[int, float]:
    """Min-max over each group of places."""
    out = {}
    for places in competing:
        if not places:
            continue
        low, high = min(values[p] for p in places), max(values[p] for p in places)
        for p in places:
            out[p] = (values[p] - low) / (high - low) if high > low else 0.0
    return out


def reference(
    x: Tensor,
    metric: Tensor,
    positions: list[int],
    drop: int,
    *,
    budget: str,
    temporal: str,
    order: str = "F",
    score: str = "sta",
    semantic: str = "deviation",
    combine: str = "either",
    temperature: float = 1.0,
    change: Tensor | None = None,
) -> tuple[list[int], dict[int, float]]:
    """Kept places of one clip and what they were ranked by, token by token."""
    token = {p: x[i] for i, p in enumerate(positions)}
    key = {p: F.normalize(metric[i], dim=0) for i, p in enumerate(positions)}
    frames = [[p for p in positions if p // 6 == t] for t in range(4)]
    competing = frames if budget == "frame" else [positions]
    weight = {}
    for places in frames:
        for p in places:
            mean = torch.stack([token[q] for q in places]).mean(0)
            weight[p] = float((token[p] - (mean if semantic == "deviation" else 0)).abs().sum())
    meaning = normalised(weight, competing)
    keep = len(positions) - drop

    def rank(redundancy: dict[int, float], groups: list[list[int]]) -> dict[int, float]:
        if score == "temporal":
            return redundancy
        if score == "semantic":
            return {p: 1 - meaning[p] for p in redundancy}
        if combine == "either":
            return {p: redundancy[p] * (1 - meaning[p]) for p in redundancy}
        old = normalised(redundancy, groups)
        return {p: -(1 - old[p] + 0.1) * (meaning[p] + 0.1) for p in redundancy}

    if temporal == "chain":
        redundancy = {}
        before: dict[int, float] = {}
        for places in frames[:: 1 if order == "F" else -1]:
            if not places:
                continue
            if not before:
                now = left = {p: 1 / len(places) for p in places}
            else:
                now = dict.fromkeys(places, 0.0)
                for q, flow in before.items():
                    affinity = {p: math.exp(float(key[q] @ key[p]) / temperature) for p in places}
                    for p in places:
                        now[p] += flow * affinity[p] / sum(affinity.values())
                ranked = rank(now, [places])
                stay = sorted(places, key=ranked.__getitem__)
                stay = stay[: math.ceil(len(places) * keep / len(positions))]
                left = {p: now[p] / sum(now[q] for q in stay) for p in stay}
            redundancy |= {p: now[p] * len(places) for p in places}
            before = left
    else:
        moved = {}
        for p in positions:
            if change is not None:
                moved[p] = float(change.flatten()[p])
                continue
            column = [q for q in positions if q % 6 == p % 6 and q != p]
            earlier, later = [q for q in column if q < p], [q for q in column if q > p]
            if order == "B":
                earlier, later = later[::-1], earlier[::-1]
            nearest = earlier[-1:] or later[:1]
            moved[p] = 1 - float(key[p] @ key[nearest[0]]) if nearest else -1.0
        most = max(moved.values())
        moved = {p: most if value < 0 else value for p, value in moved.items()}
        redundancy = {p: 1 - value for p, value in normalised(moved, competing).items()}
    ranked = rank(redundancy, competing)
    if budget == "clip":
        return sorted(sorted(positions, key=ranked.__getitem__)[:keep]), ranked
    kept = []
    for places in frames:
        kept += sorted(places, key=ranked.__getitem__)[: keep // 4]
    return sorted(kept), ranked


CHOICES = [
    {"order": order, "score": score, "combine": combine, "semantic": semantic}
    for order, score, combine, semantic in product(
        "FB", ("sta", "temporal", "semantic"), ("either", "both"), ("deviation", "norm")
    )
]


@pytest.mark.parametrize("temporal", ["chain", "place", "pixels"])
def test_tokens_of_a_clip_compete_as_in_the_reference(temporal: str) -> None:
    x, metric, positions = clip()
    pixels = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(1))
    for how in CHOICES:
        change = None
        if temporal == "place":
            change = place_change(metric, positions, GRID, how["order"])
        elif temporal == "pixels":
            change = pixels
        step = explain_ragged(
            x,
            positions,
            GRID,
            1,
            metric=metric,
            change=change,
            budget="clip",
            temperature=0.5,
            **how,
        )
        assert step.kept.shape == (2, 9)
        for b in range(2):
            kept, ranked = reference(
                x[b],
                metric[b],
                positions[b].tolist(),
                4,
                budget="clip",
                temporal=temporal,
                temperature=0.5,
                change=pixels[b] if temporal == "pixels" else None,
                **how,
            )
            found = step.score[b].flatten()
            assert found.isnan().sum() == 24 - 13
            torch.testing.assert_close(
                found[list(ranked)], torch.tensor(list(ranked.values())), rtol=1e-4, atol=1e-5
            )
            assert positions[b][step.kept[b]].tolist() == kept


@pytest.mark.parametrize("combine", ["either", "both"])
def test_each_frame_keeps_as_many_by_change_at_its_places(combine: str) -> None:
    """Four tokens a frame are left of six, at other places in every frame."""
    generator = torch.Generator().manual_seed(3)
    rows = [
        [t * 6 + n for t in range(4) for n in sorted(torch.randperm(6, generator=generator)[:4])]
        for _ in range(2)
    ]
    positions = torch.tensor(rows)
    x = torch.randn(2, 16, 5, generator=generator)
    metric = torch.randn(2, 16, 4, generator=generator)
    change = place_change(metric, positions, GRID)
    step = explain_ragged(x, positions, GRID, 1, metric=None, change=change, combine=combine)
    assert step.kept.shape == (2, 4, 3)
    flat = (step.kept + torch.arange(4).view(-1, 1) * 4).flatten(1)
    for b in range(2):
        how = {"budget": "frame", "temporal": "place", "combine": combine}
        kept, _ = reference(x[b], metric[b], rows[b], 4, **how)
        assert positions[b][flat[b]].tolist() == kept


def test_frame_by_frame_both_is_the_product_of_novelty_and_meaning() -> None:
    """The first frame of a chain aside, which is pruned by itself."""
    generator = torch.Generator().manual_seed(0)
    x, metric = (torch.randn(1, 3, 8, 4, generator=generator) for _ in range(2))
    step = explain_step(x, metric, 3, combine="both")
    for t in (1, 2):
        a, meaning = step.accumulation[0, t], step.semantic[0, t]
        new = (a.max() - a) / (a.max() - a.min())
        product = (new + 0.1) * (meaning + 0.1)
        assert step.kept[0, t].tolist() == sorted(product.topk(5).indices.tolist())


def test_a_busy_frame_keeps_more_than_a_still_one() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.zeros(1, 8, 3, 8, 8)
    pixels[:, 4:6] = torch.rand(1, 2, 3, 8, 8, generator=generator)  # tubelets 2 and 3 differ
    pixels[:, 6:] = pixels[:, 5:6]
    change = tubelet_change(pixels, (2, 4, 4))
    assert (change[0, 1] == 0).all()
    kept = keep_changed(change, 2, "clip")  # 8 of 16
    assert kept.tolist() == [[*range(8, 16)]]
    assert keep_changed(change, 2).shape == (1, 4, 2)
    backward = tubelet_change(pixels, (2, 4, 4), "B")
    assert torch.equal(backward[:, :3], change[:, 1:])


@torch.no_grad()
def test_random_over_the_clip_drops_the_same_total() -> None:
    model = sta.apply(VIDEOMAE.make(), sta.RandomConfig(r=4, budget="clip"))
    output(model, VIDEOMAE.clip())
    counts = [torch.bincount(kept[0] // 16, minlength=4) for kept in sta.kept(model)]
    assert [int(count.sum()) for count in counts] == [48, 40, 36]
    assert any(len(set(count.tolist())) > 1 for count in counts)


@torch.no_grad()
@pytest.mark.parametrize("name", ["videomae", "vjepa2", "vivit"])
def test_a_model_chooses_by_its_own_keys_at_their_places(name: str) -> None:
    """The third step sees what two others left, and chooses as the pure function does."""
    backbone = next(b for b in BACKBONES if b.name == name)
    for temporal in ("chain", "place", "pixels"):
        config = sta.STAConfig(r=4, budget="clip", temporal=temporal, combine="both")
        model = sta.apply(backbone.make(), config)
        seen = []
        last = find(model).steps[-1]
        last.observe = lambda site, seen=seen: seen.append(
            (site.tokens, site.features("key"), site.positions())
        )
        output(model, backbone.clip())
        x, metric, positions = seen[0]
        change = {
            "chain": None,
            "place": place_change(metric, positions, Grid(4, 4, 4)),
            "pixels": tubelet_change(backbone.clip(), (2, 8, 8)),
        }[temporal]
        step = explain_ragged(
            x,
            positions,
            Grid(4, 4, 4),
            1,
            metric=metric,
            change=change,
            budget="clip",
            combine="both",
        )
        kept = sta.kept(model)
        assert torch.equal(positions, kept[1])
        assert torch.equal(positions.gather(1, step.kept), kept[2])
