"""`sta tune`: targets are met, with real models and with times that a test makes up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import sta
from backbones import BACKBONES
from inference_runs import make_videos
from sta.cli import app, main
from sta.measure.stats import wilson_low
from sta.methods import STAConfig
from sta.tuning.families import Family, families, placements
from sta.tuning.fidelity import Fidelity, FidelityMeter
from sta.tuning.scores import choices, compare, shared_r
from sta.tuning.search import TargetError, Tuner, videos_needed
from sta.video.clips import drawn_clips

# Families: r for a budget


@given(
    falls=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=60),
    share=st.floats(0.0, 1.1),
    start=st.integers(1, 80),
)
def test_the_smallest_r_within_a_budget(falls, share, start):
    costs = [100.0, *(100.0 * math.exp(-x / 10) for x in np.cumsum(falls))]

    def count(config: STAConfig) -> float:
        if config.r >= len(costs):
            raise ValueError("too many")
        return costs[config.r]

    family = Family("f", lambda r: STAConfig(r=r), count, start)
    target = share * 100
    assert family.costs.within(target) == next(
        (r for r, c in enumerate(costs) if c <= target), None
    )
    assert family.costs.largest() == len(costs) - 1


def test_placements_are_different_blocks():
    assert placements(12) == {"spread": None, "early": (1, 3, 5), "late": (3, 7, 11)}
    for depth in range(1, 40):
        for blocks in placements(depth).values():
            assert blocks is None or (
                list(blocks) == sorted(set(blocks)) and blocks[0] >= 1 and blocks[-1] < depth
            )


@pytest.mark.parametrize(("name", "first"), [("videomae", 9), ("swin", 1)])
def test_families_can_be_applied(name, first):
    backbone = next(b for b in BACKBONES if b.name == name)
    model = backbone.make()
    found = families(model, (1, *backbone.shape), STAConfig(temperature=0.1))
    assert found[0].make(4) == STAConfig(r=4, temperature=0.1)
    whole = sta.gflops(model, (1, *backbone.shape))
    for family in found[:first]:
        r = family.costs.within(0.9 * whole)
        if r is None:
            continue
        config = family.make(r)
        cost = sta.gflops(sta.apply(backbone.make(), config), (1, *backbone.shape))
        assert cost == family.costs.gflops(r)
        assert cost <= 0.9 * whole < (family.costs.gflops(r - 1) or 0)
    assert found[0].costs.within(0.9 * whole) is not None
    sta.apply(model, found[1].make(16 if name == "swin" else 4))


# Fidelity


def test_fidelity_compares_with_the_unpruned_model(folder, opened):
    clips = drawn_clips(range(7), opened.clip.views)
    measure = FidelityMeter(opened, clips, batch_size=3)
    assert measure(STAConfig(r=0)) == Fidelity(7, 7, 0.0)
    config = STAConfig(r=6)
    part = measure(config, 2)
    found = measure(config)
    model = sta.load(folder)
    pixel_values = opened.clip.pixels(clips)
    with torch.no_grad():
        whole = model(pixel_values).logits.double().log_softmax(-1)
        ours = sta.apply(model, config)(pixel_values).logits.double().log_softmax(-1)
        again = opened.model(pixel_values).logits.double().log_softmax(-1)
    divergence = torch.nn.functional.kl_div(ours, whole, reduction="none", log_target=True).sum(-1)
    assert found.agree == int((ours.argmax(-1) == whole.argmax(-1)).sum())
    assert found.kl == pytest.approx(float(divergence.mean()), rel=1e-4)
    assert part.kl == pytest.approx(float(divergence[:2].mean()), rel=1e-4)
    torch.testing.assert_close(again, whole)  # the model is left as it was


def test_several_views_are_one_video_whose_probabilities_are_averaged(opened):
    clips = drawn_clips(range(8), opened.clip.views)
    config = STAConfig(r=6)
    each = FidelityMeter(opened, clips)
    each(config)
    whole, ours = (each._probabilities(one, 8).reshape(4, 2, 6).mean(1) for one in (None, config))
    for batch in (1, 3, 8):
        found = FidelityMeter(opened, clips, batch_size=batch, views=2)(config)
        assert (found.clips, found.agree) == (4, (whole.argmax(1) == ours.argmax(1)).sum())
        assert found.kl == pytest.approx((whole * np.log(whole / ours)).sum(1).mean(), rel=1e-4)
    assert FidelityMeter(opened, clips, views=3)(config).clips == 2  # of the third, one is missing


def test_agreement_is_of_videos_not_of_their_views(folder, tmp_path):
    videos = make_videos(tmp_path / "v", 3)
    how = {"views": "2x1", "rounds": 1, "progress": False}
    assert wilson_low(6, 6) > 0.6 > wilson_low(3, 3)
    with pytest.raises(TargetError, match=r"with 3 videos: .* 5 videos and fidelity_clips=10"):
        sta.tune(videos, folder, agreement=0.6, **how)
    for most, read in ((9, 6), (5, 4), (1, 2)):  # of each video all views, of one at least
        tuned = sta.tune(videos, folder, gflops=0.0012, fidelity_clips=most, **how)
        assert tuned.clips == read
        assert tuned.videos == tuned.chosen.fidelity.clips == read // 2
    drawn = sta.tune("digits", folder, gflops=0.0012, fidelity_clips=3, **how)
    assert drawn.videos == drawn.chosen.fidelity.clips == 3  # one view each


def test_fidelity_stops_when_too_many_disagree(opened):
    clips = drawn_clips(range(8), opened.clip.views)
    measure = FidelityMeter(opened, clips, batch_size=2)
    whole = np.eye(6)[np.zeros(8, int)]
    measure._probabilities_of = {None: whole, STAConfig(r=2): np.eye(6)[np.ones(8, int)]}
    assert measure(STAConfig(r=2), None, 3).clips == 4
    assert measure(STAConfig(r=2)).clips == 8


def test_the_most_faithful_score_is_chosen_at_the_cost_that_all_share():
    vit, swin = (next(b for b in BACKBONES if b.name == name) for name in ("videomae", "swin"))
    columnar = choices(vit.make())
    assert columnar[0] == STAConfig.paper(0)
    assert len(set(columnar)) == len(columnar)
    for wanted in ({"merge": True, "proportional": True}, {"budget": "clip"}):
        assert STAConfig(**wanted) in columnar
    assert {base.temporal for base in columnar} == {"chain", "place", "pixels"}
    found = choices(swin.make())
    assert found[0] == STAConfig.paper(0)
    assert len(set(found)) == 8
    family = Family("f", lambda r: STAConfig(r=r), lambda config: 100.0 - config.r, 20)
    asked = []

    def measure(config: STAConfig, clips: int) -> Fidelity:
        asked.append((config.r, clips))
        bad = (config.semantic == "norm") + config.temperature + (config.fill == "frame")
        return Fidelity(clips, clips - 1, bad)

    r = shared_r(family.costs)
    ranked = compare([replace(base, r=r) for base in found], measure, 20)
    assert set(asked) == {(40, 20)}
    best = STAConfig(r=40, semantic="deviation", temperature=0.1, fill="clip")
    assert ranked[0].config == best
    assert ranked[0].name == "fill=clip, temperature=0.1, semantic=deviation"
    assert ranked[-1].name == "the paper's"


# The search, on a made-up model: 100 GFLOPs, each family with its own cost, harm and speed

COST = {"a": 1.0, "b": 1.2, "c": 0.8, "d": 1.0, "e": 0.9}
HARM = {"a": 1.0, "b": 0.4, "c": 1.5, "d": 2.0, "e": 3.0}
LAG = {"a": 1.0, "b": 1.12, "c": 1.0, "d": 0.9, "e": 1.0}
ORDER = "abcde"


def _cost(name: str, r: int) -> float:
    if r > 80:
        raise ValueError("too many")
    return 100 - COST[name] * r


def _name(config: STAConfig) -> str:
    return ORDER[config.seed]


def _made_up(clips: int = 400, misses: Callable[[str, int], int] | None = None) -> Tuner:
    def make(name: str) -> Family:
        return Family(
            name,
            lambda r: STAConfig(r=r, seed=ORDER.index(name)),
            lambda config: _cost(name, config.r),
            start=20,
        )

    def measure(
        config: STAConfig, count: int | None = None, allowed: int | None = None
    ) -> Fidelity:
        n = clips if count is None else count
        name = _name(config)
        missed = misses(name, config.r) if misses else int(HARM[name] * config.r / 4)
        return Fidelity(n, max(0, n - missed), HARM[name] * (100 - _cost(name, config.r)))

    def clock(configs: Sequence[STAConfig]) -> list[float]:
        return [1 / _time(c) for c in configs]

    return Tuner([make(name) for name in ORDER], measure, clips, clock)


def _time(config: STAConfig) -> float:
    """Of the unpruned model's, whose is 1: a constant part and one that follows GFLOPs."""
    pruned = 0.1 + 0.009 * _cost(_name(config), config.r)
    return pruned * (LAG[_name(config)] if config.r else 1.0)


def test_gflops_are_never_above_the_target_and_the_most_faithful_win():
    tuned = _made_up().for_gflops(61.5)
    assert tuned.chosen.family == "b"
    assert tuned.chosen.config.r == 33  # 100 - 1.2 * 33 = 60.4; 32 would be 61.6
    assert tuned.chosen.gflops <= 61.5
    assert tuned.chosen.speedup == pytest.approx(1 / _time(tuned.chosen.config))


@pytest.mark.parametrize("target", [1.2, 1.5, 2.0])
def test_the_measured_speedup_counts_not_the_predicted(target):
    tuned = _made_up().for_speedup(target)
    assert tuned.chosen.family == "b"  # which is slower than its GFLOPs say
    reached = 1 / _time(tuned.chosen.config)
    assert tuned.chosen.speedup == reached
    assert 0.97 * target <= reached <= 1.05 * target


def test_of_those_fast_enough_the_most_faithful_wins():
    tuned = _made_up().for_speedup(2.0)
    fast = [
        p for p in tuned.points if p.speedup and p.speedup >= 0.97 * 2 and p.fidelity.clips > 100
    ]
    assert len(fast) >= 2
    assert tuned.chosen.fidelity.kl == min(p.fidelity.kl for p in fast)


@pytest.mark.parametrize(("missed", "met"), [(3, True), (4, False)])
def test_settings_corrected_to_the_last_are_measured_too(missed, met):
    tuner = _made_up()
    calm, speeds = tuner.clock, []

    def clock(configs: Sequence[STAConfig]) -> list[float]:
        """Ever slower, until it has missed often enough."""
        speeds.extend(0.9 ** min(len(speeds) + 1, missed) * speed for speed in calm(configs))
        return speeds[-1:]

    tuner.clock = clock
    best = tuner.families[0], STAConfig(r=57)
    if met:
        config = tuner._verified(best, 2.0, slope=0.009)
        assert config != best[1]
        assert 0.97 * 2 <= tuner._points[config].speedup == speeds[-1]
    else:
        with pytest.raises(TargetError, match="speedup=2 cannot be reached"):
            tuner._verified(best, 2.0, slope=0.009)
    assert len(speeds) == 4


def test_a_speedup_out_of_reach_says_the_best():
    with pytest.raises(TargetError, match=r"speedup=20 cannot be reached .* best was \d\.\d\d"):
        _made_up().for_speedup(20)
    with pytest.raises(TargetError, match="above 1"):
        _made_up().for_speedup(1.0)


def test_gflops_out_of_reach_say_the_lowest():
    with pytest.raises(TargetError, match=r"lowest .* is 4 of the model's 100"):
        _made_up().for_gflops(3.0)
    with pytest.raises(TargetError, match="without pruning"):
        _made_up().for_gflops(100.0)


def test_agreement_is_guaranteed_and_the_fastest_wins():
    clips, target = 400, 0.95
    allowed = max(n for n in range(clips) if wilson_low(clips - n, clips) >= target)
    tuned = _made_up(clips, lambda name, r: int(HARM[name] * r)).for_agreement(target)
    chosen = tuned.chosen
    assert chosen.fidelity.low >= target
    # One more token per frame would not have been guaranteed.
    harm = HARM[chosen.family]
    assert int(harm * chosen.config.r) <= allowed < int(harm * (chosen.config.r + 1))
    passed = [p for p in tuned.points if p.fidelity.clips == clips and p.fidelity.low >= target]
    assert chosen.speedup == max(p.speedup for p in passed if p.speedup)


def test_too_few_videos_are_an_error_that_says_how_many_it_takes():
    assert videos_needed(0.99) == 268
    assert wilson_low(268, 268) >= 0.99 > wilson_low(267, 267)
    with pytest.raises(TargetError, match="at least 268 videos"):
        _made_up(100).for_agreement(0.99)


def test_agreement_out_of_reach_says_so():
    with pytest.raises(TargetError, match="cannot be reached"):
        _made_up(400, lambda name, r: 200 if r else 0).for_agreement(0.95)


def test_the_frontier_only_gets_better():
    tuned = _made_up().for_gflops(50)
    edge = tuned.frontier()
    assert [p.gflops for p in edge] == sorted(p.gflops for p in edge)
    assert [p.fidelity.kl for p in edge] == sorted((p.fidelity.kl for p in edge), reverse=True)


# The command


def test_command_meets_gflops_and_its_file_applies(folder, tmp_path):
    out, table, picture = tmp_path / "o" / "tuned.json", tmp_path / "t.json", tmp_path / "f.png"
    stock = sta.load(folder)
    shape = (1, 4, 3, 32, 32)
    target = 0.75 * sta.gflops(stock, shape)
    words = ["tune", "digits", "--model", folder, "--gflops", str(target), "--out", str(out)]
    words += ["--fidelity-clips", "12", "--rounds", "1", "--json", str(table)]
    result = CliRunner().invoke(app, [*words, "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    config = sta.Config.from_file(out)
    cost = sta.gflops(sta.apply(stock, config), shape)
    assert cost <= target
    written = json.loads(table.read_text())
    chosen = [point for point in written["points"] if point["chosen"]]
    assert len(chosen) == 1
    assert chosen[0]["gflops"] == cost
    assert chosen[0]["clips"] == 12
    assert chosen[0]["speedup"] > 0
    assert {"the paper's", "semantic=deviation"} <= {score["name"] for score in written["scores"]}
    assert picture.read_bytes().startswith(b"\x89PNG")
    said = []
    again = sta.tune(
        "digits", folder, gflops=target, fidelity_clips=12, rounds=1, progress=said.append
    )
    assert again.config == config
    same = ("chosen", "frontier", "steps", "settings", "gflops", "clips", "agreement", "kl")
    records = json.loads(json.dumps(again.records()))
    assert [{key: row[key] for key in same} for row in records] == [
        {key: row[key] for key in same} for row in written["points"]
    ]
    assert any("timing" in now.text for now in said)
    assert max(map(len, str(again).splitlines())) <= 80
    assert list(again.to_pandas()["gflops"]) == [row["gflops"] for row in records]


def test_command_reads_videos_and_names_those_it_cannot(folder, tmp_path):
    videos = make_videos(tmp_path / "v", 3)
    (videos / "broken.mp4").write_bytes(b"no video")
    words = ["tune", str(videos), "--model", folder, "--gflops", "0.0012", "--rounds", "1"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "t.json")])
    assert result.exit_code == 1, result.output
    assert "broken.mp4" in result.output
    assert "1 of 4 videos failed" in result.output
    assert (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["digits"], "exactly one target"),
        (["digits", "--speedup", "2", "--gflops", "1"], "exactly one target"),
        (["digits", "--gflops", "1e-9", "--fidelity-clips", "2"], "cannot be reached"),
        (["digits", "--agreement", "0.99", "--fidelity-clips", "4"], "at least 268 videos"),
        (["digits", "--speedup", "2", "--device", "cuda:7"], "cuda:7"),
        (["nowhere.mp4", "--speedup", "2"], "nowhere.mp4"),
        (["{empty}", "--speedup", "2"], "no videos"),
    ],
)
def test_wrong_usage_ends_with_2(folder, words, said, tmp_path, monkeypatch, capsys):
    words = [word.replace("{empty}", str(tmp_path)) for word in words]
    out = str(tmp_path / "t.json")
    monkeypatch.setattr("sys.argv", ["sta", "tune", *words, "--model", folder, "--out", out])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
