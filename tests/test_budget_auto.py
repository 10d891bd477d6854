"""`budget="auto"`: as many tokens as the clip needs, in batches of unequal clips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import sta
from backbones import BACKBONES, Backbone, output
from sta.backbones.copies import shared_copy
from sta.backbones.zoo.video_model import VideoModel
from sta.core.difference import tubelet_change
from sta.explain.scores import recompute_scores
from sta.inference.metrics import cell
from sta.tuning.thresholds import ThresholdCurve, threshold_families
from sta.video.clips import drawn_clips

COLUMNAR = [b for b in BACKBONES if b.name in ("videomae", "vjepa2", "vivit", "videomae-eager")]
BOTH: dict[str, Any] = {"budget": "auto", "combine": "both"}
CONFIGS = (
    sta.FrameDifferenceConfig(budget="auto", threshold=0.5),
    sta.STAConfig(threshold=0.05, temporal="pixels", **BOTH),
    sta.STAConfig(threshold=0.01, temporal="place", **BOTH),
    sta.STAConfig(threshold=0.01, temporal="place", blocks=(1,), **BOTH),
    sta.STAConfig(threshold=0.1, temporal="pixels", score="temporal", budget="auto", order="B"),
    sta.PatchChangeConfig(budget="auto", threshold=5.0),
)


@torch.no_grad()
@pytest.mark.parametrize("buckets", [None, (20, 40, 64)])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.method}-{CONFIGS.index(c)}")
@pytest.mark.parametrize("backbone", COLUMNAR, ids=str)
def test_a_clip_in_a_batch_of_unequal_ones_is_as_alone(
    backbone: Backbone, config: sta.STAConfig, buckets: tuple[int, ...] | None
) -> None:
    model, batch = sta.apply(backbone.make(), replace(config, buckets=buckets)), backbone.unequal()
    together = output(model, batch)
    (kept,) = sta.kept(model)
    lengths = [len(row.unique()) for row in kept]
    if not any(getattr(config, "blocks", None) or ()):  # at the input a still clip is a frame
        assert lengths[0] == 16
    assert lengths[0] <= lengths[1] < lengths[2]
    for number in range(3):
        alone = output(model, batch[number : number + 1])
        torch.testing.assert_close(together[number : number + 1], alone, rtol=0, atol=1e-5)
        (own,) = sta.kept(model)
        assert torch.equal(own[0].unique(), kept[number].unique())
        dense = sta.restore(model, torch.randn(1, own.shape[1], 4))
        assert dense.shape == (1, 4, 16, 4)


@torch.no_grad()
@pytest.mark.parametrize(
    "config", [sta.RLTConfig(), CONFIGS[0], CONFIGS[1], CONFIGS[5]], ids=lambda c: c.name
)
def test_a_compiled_model_sees_as_many_shapes_as_there_are_buckets(config: sta.Config) -> None:
    torch._dynamo.reset()
    backbone = COLUMNAR[0]
    config = replace(config, buckets=(16, 32, 64))  # type: ignore[call-arg]
    model = sta.apply(backbone.make(), config)
    batch, graphs = backbone.unequal(), []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    compiled = torch.compile(model, backend=backend, dynamic=False)
    for number in (0, 1, 2):
        expected = output(model, batch[number : number + 1])
        found = output(compiled, batch[number : number + 1])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert sum(nodes > 100 for nodes in graphs) == 3  # all blocks in one graph, for each bucket
    made = len(graphs)
    for size in range(1, 32, 2):  # clips of many lengths
        clip = batch[:1].clone()
        clip[..., :size, :size] = batch[2:, ..., :size, :size]
        output(compiled, clip)
    assert len(graphs) == made
    torch._dynamo.reset()


@torch.no_grad()
def test_what_stays_is_the_first_frame_and_what_changed_by_more_than_the_threshold() -> None:
    backbone = COLUMNAR[0]
    model, batch = backbone.make(), backbone.unequal()
    change = tubelet_change(batch, (2, 8, 8))
    limit = float(change[2, 1:].median())
    for config in (
        sta.FrameDifferenceConfig(budget="auto", threshold=limit),
        sta.STAConfig(budget="auto", threshold=limit, temporal="pixels", score="temporal"),
    ):
        output(sta.apply(model, config), batch)
        (kept,) = sta.kept(model)
        for row, moved in zip(kept, change, strict=True):
            stays = moved > limit
            stays[0] = True
            assert row.unique().tolist() == stays.flatten().nonzero().flatten().tolist()


@torch.no_grad()
def test_change_counts_times_significance() -> None:
    backbone = COLUMNAR[0]
    batch = backbone.unequal()[2:]
    config = sta.STAConfig(threshold=0.2, temporal="pixels", semantic="norm", **BOTH)
    model = sta.apply(backbone.make(), config)
    _, (kept,), (scores,) = recompute_scores(model, lambda: output(model, batch))
    convolution = model.videomae.embeddings.patch_embeddings.projection
    weight = convolution(batch.transpose(1, 2)).flatten(2).abs().sum(1)[0]  # (T * N,)
    significance = (weight - weight.min()) / (weight.max() - weight.min())
    value = tubelet_change(batch, (2, 8, 8)).flatten() * (0.1 + significance)
    stays = value > 0.2
    assert 0 < stays[16:].sum() < 48
    stays[:16] = True
    assert kept[0].tolist() == stays.nonzero().flatten().tolist()
    torch.testing.assert_close(-scores.score.flatten(), value)


@torch.no_grad()
@pytest.mark.parametrize(
    "config", [sta.RLTConfig(), CONFIGS[0], CONFIGS[3], CONFIGS[5]], ids=lambda c: c.name
)
def test_gflops_of_a_clip_are_those_of_what_it_keeps(config: sta.RLTConfig) -> None:
    backbone = COLUMNAR[0]
    model, batch = sta.apply(backbone.make(), config), backbone.unequal()
    whole = sta.gflops(backbone.make(), batch[:1].shape)
    assert sta.gflops(model, batch[:1].shape) == whole  # the most it can cost
    counts = []
    for clip in batch.split(1):
        output(model, clip)
        kept = sta.kept(model)[0].shape[1]
        counts.append(sta.gflops(model, clip))
        assert sta.kept(model)[0].shape[1] == kept  # looking changes nothing
        static = sta.apply(backbone.make(), replace(config, buckets=(kept,)))
        assert counts[-1] == sta.gflops(static, clip.shape)
    assert counts[0] <= counts[1] < counts[2]
    # In a batch, all cost as much as the longest.
    assert sta.gflops(model, batch) == pytest.approx(3 * counts[2])


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[1]], ids=lambda c: c.method)
def test_swin_refuses_it_with_the_reason(config: sta.Config) -> None:
    swin = next(b for b in BACKBONES if b.name == "swin").make()
    with pytest.raises(ValueError, match=r'budget="auto"\) .* same number of tokens'):
        sta.apply(swin, config)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "needs a threshold"),
        ({"threshold": -1}, "threshold=-1"),
        ({"threshold": 0.1, "r": 8}, "r=8"),
        ({"threshold": 0.1, "schedule": (8, 4)}, "schedule="),
        ({"threshold": 0.1, "blocks": (1, 3)}, "chooses once"),
        ({"threshold": 0.1, "buckets": (40, 20)}, "rising numbers"),
        ({"threshold": 0.1, "merge": True}, "merge=True"),
        ({"threshold": 0.1, "temporal": "chain"}, "the same in every clip"),
        ({"threshold": 0.1, "combine": "either"}, "the same in every clip"),
        ({"threshold": 0.1, "budget": "clip"}, 'budget="auto"'),
    ],
)
def test_settings_that_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sta.STAConfig(**{"temporal": "place", **BOTH, **wrong})


def test_random_dropping_has_no_score_for_it() -> None:
    with pytest.raises(ValueError, match="budget='auto' is unknown"):
        sta.RandomConfig(budget="auto", threshold=0.1)
    with pytest.raises(ValueError, match=r"blocks=\(9,\)"):
        sta.apply(COLUMNAR[0].make(), replace(CONFIGS[2], blocks=(9,)))


def test_its_rows_are_not_those_of_the_unpruned_model() -> None:
    result = sta.evaluate("digits", r=[0], config=CONFIGS[2], clips=2, progress=False)
    assert [row["method"] for row in result.table] == ["sta", "sta, auto"]
    assert result.table[1]["difference"] is not None


@pytest.mark.parametrize(
    ("method", "bounded"), [("sta, auto", True), ("rlt", True), ("sta", False), ("tome", False)]
)
def test_a_cost_that_follows_the_clip_is_shown_as_a_bound(method: str, bounded: bool) -> None:
    assert cell({"method": method, "gflops": 5.714}, "gflops") == "<= " * bounded + "5.714"


def test_tuning_finds_the_threshold_that_meets_a_target(opened: VideoModel) -> None:
    clips = drawn_clips(range(6), opened.clip.views)
    clips[0] = clips[0, :1]  # one that stands still
    found = threshold_families(opened, clips)
    pixels = opened.pixels(clips)
    for family in found[1:4]:
        config = family.make(40)
        model = sta.apply(shared_copy(opened.model), config)
        costs = [sta.gflops(model, clip) for clip in pixels.split(1)]
        assert family.gflops(config) == pytest.approx(sum(costs) / 6)
        assert costs[0] == min(costs) < max(costs)
        falling = [family.costs.gflops(level) for level in range(0, 65, 8)]
        assert falling == sorted(falling, reverse=True)
    budget = 0.7 * (found[0].costs.gflops(0) or 0)
    how: dict[str, Any] = {"budget": "auto", "rounds": 1, "progress": False}
    tuned = sta.tune(clips, opened, gflops=budget, **how)
    assert tuned.chosen.gflops <= budget
    assert tuned.config.budget == "auto"
    assert f"threshold={tuned.config.threshold:.3g}" in str(tuned)
    within = [p for p in tuned.tuned.points if p.gflops <= budget and p.fidelity.clips == 6]
    assert tuned.chosen.fidelity.kl == min(p.fidelity.kl for p in within)
    agreeing = sta.tune(clips, opened, agreement=0.5, **how)
    assert agreeing.chosen.fidelity.low >= 0.5
    assert agreeing.config.threshold is not None


@torch.no_grad()
@pytest.mark.parametrize("buckets", [None, (20, 26, 99), (10, 16, 24), (24,)])
@pytest.mark.parametrize("config", [sta.RLTConfig(), CONFIGS[2]], ids=lambda c: c.name)
def test_the_cost_of_a_threshold_is_that_of_the_buckets(
    opened: VideoModel, config: sta.STAConfig, buckets: tuple[int, ...] | None
) -> None:
    clips = drawn_clips(range(6), opened.clip.views)
    config, model = replace(config, buckets=buckets), shared_copy(opened.model)
    curve = ThresholdCurve(opened, config, [clips])
    for threshold in torch.tensor(curve.values[:, 16:]).unique()[::20].tolist():
        sta.apply(model, replace(config, threshold=threshold))
        costs, dropped = [], []
        for clip in opened.pixels(clips).split(1):
            costs.append(sta.gflops(model, clip))
            model(clip)
            dropped.append((32 - len(sta.kept(model)[0].unique())) / 2)
        assert curve.gflops(threshold) == pytest.approx(sum(costs) / 6)
        assert curve.dropped(threshold) == pytest.approx(sum(dropped) / 6)


def test_nothing_is_dropped_for_nothing(opened: VideoModel) -> None:
    clips = drawn_clips(range(6), opened.clip.views)
    static = ThresholdCurve(opened, replace(CONFIGS[2], buckets=(24,)), [clips])
    assert static.lowest() == static.gflops(0.0)
    for target in (2 * static.lowest(), static.lowest(), 0.0):
        assert static.nearest(target) == 0.0
        assert static.dropped(0.0) == 4


def test_still_clips_suggest_no_threshold_below_0(opened: VideoModel) -> None:
    clips = drawn_clips(range(6), opened.clip.views)
    clips[:] = clips[:, :1]  # 1 - cos of what did not change is a little above 0, or below
    for family in threshold_families(opened, clips):
        levels = [family.make(level).threshold or 0.0 for level in range(1, 65)]
        assert levels == sorted(levels)
        assert levels[0] >= 0


def test_tuning_for_it_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="same number of tokens"):
        sta.tune("digits", "swin-digits", gflops=0.2, budget="auto", fidelity_clips=2)
    with pytest.raises(ValueError, match="budget='clip'"):
        sta.tune("digits", gflops=0.2, budget="clip")  # type: ignore[arg-type]
