"""`sta.compare`: budgets, pairing with random dropping, going on, what is left out."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

import sta
from sta.backbones.zoo.video_model import VideoModel
from sta.measure.flops import gflops
from sta.tuning import entrants as module
from sta.tuning.plots import draw_comparison
from sta.video.digits import DigitActions

FAST = {"rounds": 0, "progress": False}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    return out, sta.compare(
        "digits", methods=["sta", "paper", "tome"], saved=[0.3, 0.5], clips=16, out=out, **FAST
    )


def test_every_method_comes_as_close_to_the_budget_as_its_r_allows(result):
    _, done = result
    model = sta.load("vit-digits")
    shape = (1, 16, 3, 64, 64)
    unpruned = gflops(model, shape)
    names = {"random, seed 0", "random, seed 1", "random, seed 2", "sta", "paper", "tome"}
    assert {row["method"] for row in done.rows[1:]} == names
    for row in done.rows[1:]:
        settings = dict(row["config"])
        target = (1 - row["saved"]) * unpruned

        def cost(r, settings=settings):
            kind = sta.methods.METHODS[settings["method"]]
            rest = {k: v for k, v in settings.items() if k not in ("method", "r")}
            rest = {k: tuple(v) if isinstance(v, list) else v for k, v in rest.items()}
            applied = sta.apply(sta.load("vit-digits"), kind(r=r, **rest))
            return gflops(applied, shape)

        assert row["gflops"] == pytest.approx(cost(row["r"]))
        for other in (row["r"] - 1, row["r"] + 1):
            assert abs(cost(other) - target) >= abs(row["gflops"] - target) - 1e-9


def test_a_budget_that_a_method_cannot_reach_is_said_to_be(result):
    done = sta.compare(
        "digits", methods=["sta", "tome", "rlt"], saved=0.97, clips=2, seeds=2, **FAST
    )
    unpruned, *rows = done.records()
    assert (unpruned["reached"], unpruned["within_reach"]) == (None, True)
    out_of_reach = [row for row in rows if not row["within_reach"]]
    assert {row["method"] for row in out_of_reach} >= {"tome", "random, seed 0", "random, seed 1"}
    for row in rows:
        assert row["reached"] == pytest.approx(1 - row["gflops"] / unpruned["gflops"])
        assert row["within_reach"] or row["reached"] < 0.97
    tome = next(row for row in rows if row["method"] == "tome")
    said = [line for line in str(done).splitlines() if "cannot save" in line]
    share = 100 * tome["reached"]
    line = f"tome cannot save 97 %: it saves {share:.1f} % at most (r={tome['r']})"
    assert line in said
    assert len([line for line in said if line.startswith("random")]) == 1
    within = result[1]
    assert all(row["within_reach"] for row in within.rows)
    assert "cannot save" not in str(within)


def test_random_dropping_is_the_mean_of_its_seeds_on_the_same_clips(result):
    out, done = result
    rows = [json.loads(line) for line in (out / "vit-digits-digits.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "path" in row]
    right = {}
    for row in rows:
        right.setdefault((row["method"], row["r"]), {})[row["path"]] = (
            row["classes"][0] == row["label"]
        )
    ours = next(row for row in done.rows if row["method"] == "sta" and row["saved"] == 0.5)
    drawn = [row for row in done.rows if "random" in row["method"] and row["saved"] == 0.5]
    assert len(drawn) == 3
    expected = np.mean(
        [
            right["sta", ours["r"]][path]
            - np.mean([right[row["method"], row["r"]][path] for row in drawn])
            for path in right["sta", ours["r"]]
        ]
    )
    assert ours["to_random"] == pytest.approx(expected)
    assert ours["to_random_low"] <= ours["to_random"] <= ours["to_random_high"]


def test_a_rival_is_compared_with_at_the_closest_cost(result):
    out, done = result
    given = {"methods": ["sta", "paper", "tome"], "saved": [0.3, 0.5], "clips": 16, "out": out}
    again = sta.compare("digits", rival="tome", **given, **FAST)
    alone = sta.compare("digits", rival="tome", methods="sta", saved=0.3, clips=2, **FAST)
    assert "tome" in {row["method"] for row in alone.rows}  # a rival takes part
    top1 = {(row["method"], row["saved"]): row["top1"] for row in again.rows}
    for row in again.rows[1:]:
        if row["method"] == "tome":
            assert "to_tome" not in row
            continue
        expected = row["top1"] - top1["tome", row["saved"]]
        assert row["to_tome"] == pytest.approx(expected)
        assert row["to_tome_low"] <= row["to_tome"] <= row["to_tome_high"]
    assert "to tome" in str(again)
    without = [{k: v for k, v in row.items() if "to_tome" not in k} for row in again.rows]
    assert without == list(done.rows)


def test_divergence_is_from_the_unpruned_model(result):
    _, done = result
    ours = next(row for row in done.rows if row["method"] == "sta")
    opened = VideoModel.open("vit-digits")
    pixels = opened.pixels(DigitActions("test", size=16).batch(range(16))[0])
    with torch.no_grad():
        whole = opened.model(pixels).logits.log_softmax(-1)
        pruned = sta.apply(opened.model, sta.STAConfig(r=ours["r"]))(pixels).logits.log_softmax(-1)
    expected = torch.nn.functional.kl_div(pruned, whole, log_target=True, reduction="batchmean")
    assert done.rows[0]["kl"] == 0
    assert ours["kl"] == pytest.approx(float(expected), rel=1e-3, abs=1e-5)


def test_the_same_call_goes_on_and_another_is_refused(result, monkeypatch):
    out, done = result
    given = {"methods": ["sta", "paper", "tome"], "clips": 16, "out": out, **FAST}

    def never(*_):
        raise AssertionError("everything is there")

    monkeypatch.setattr("sta.inference.clip_model.Classifier.__call__", never)
    assert sta.compare("digits", saved=[0.3, 0.5], **given).rows == done.rows
    with pytest.raises(ValueError, match="overwrite=True"):
        sta.compare("digits", saved=0.4, **{**given, "methods": ["sta"]})


def test_a_refused_call_leaves_what_an_earlier_one_goes_on_with(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "make_clock", lambda *_: lambda configs: [1.5] * len(configs))
    given = {"methods": ["sta"], "saved": 0.4, "clips": 2, "seeds": 1, "out": tmp_path}
    timed = {**given, "match": "time", "rounds": 1, "progress": False}
    done = sta.compare("digits", **timed)
    (entrants,) = tmp_path.glob("*.entrants.json")
    kept = entrants.read_text()
    for other in (given, {**given, "saved": 0.2}):
        with pytest.raises(ValueError, match="cannot be resumed with other"):
            sta.compare("digits", **other, **FAST)
        assert entrants.read_text() == kept
    assert sta.compare("digits", **timed).rows == done.rows


def test_thresholds_need_a_video_that_can_be_read(tmp_path):
    VideoModel.open("vit-digits").save(tmp_path / "model")
    (tmp_path / "gone.txt").write_text("gone.mp4 0\n")
    with pytest.raises(ValueError, match=r"none of the videos that its threshold .* can be read"):
        sta.compare(tmp_path / "gone.txt", tmp_path / "model", methods=["rlt"], **FAST)


def test_times_of_other_batches_are_not_gone_on_with(monkeypatch, tmp_path):
    speeds = iter((1.5, 1.25))

    def make_clock(*_):
        speed = next(speeds)
        return lambda configs: [speed] * len(configs)

    monkeypatch.setattr(module, "make_clock", make_clock)
    given = {"methods": ["sta"], "saved": 0.3, "clips": 2, "seeds": 1, "out": tmp_path}
    for batch_size, speed in ((4, 1.5), (4, 1.5), (2, 1.25)):
        done = sta.compare("digits", **given, batch_size=batch_size, progress=False)
        assert {row["speedup"] for row in done.rows[1:]} == {speed}


def test_equal_time_follows_the_clock(monkeypatch, tmp_path):
    """With a clock on which time is 0.2 plus 0.8 times the share of GFLOPs."""
    unpruned = gflops(sta.load("vit-digits"), (1, 16, 3, 64, 64))

    def clock(*_):
        def time(config):
            cost = gflops(sta.apply(sta.load("vit-digits"), config), (1, 16, 3, 64, 64))
            return 0.2 + 0.8 * cost / unpruned

        return lambda configs: [1 / time(config) for config in configs]

    monkeypatch.setattr(module, "make_clock", clock)
    given = {"methods": ["sta"], "saved": [0.4], "match": "time", "clips": 2, "seeds": 1}
    done = sta.compare("digits", **given, out=tmp_path, progress=False)
    # What goes on has the same settings, though times are never the same twice.
    monkeypatch.setattr(module, "make_clock", None)
    assert sta.compare("digits", **given, out=tmp_path, progress=False).rows == done.rows
    with pytest.raises(ValueError, match=r"other saved; .* overwrite=True"):
        sta.compare("digits", **{**given, "saved": [0.3]}, out=tmp_path, progress=False)
    for row in done.rows[1:]:
        assert 1 / row["speedup"] == pytest.approx(0.6, abs=0.02)
        assert row["gflops"] == pytest.approx(0.5 * unpruned, rel=0.04)


@pytest.mark.parametrize("power", [0.6, 3])
def test_equal_time_is_met_where_time_does_not_follow_gflops(monkeypatch, power):
    """One measurement at the budget's GFLOPs says little then: settings are corrected by others."""
    unpruned = gflops(sta.load("vit-digits"), (1, 16, 3, 64, 64))

    def clock(*_):
        def time(config):
            cost = gflops(sta.apply(sta.load("vit-digits"), config), (1, 16, 3, 64, 64))
            return 0.2 + 0.8 * (cost / unpruned) ** power

        return lambda configs: [1 / time(config) for config in configs]

    monkeypatch.setattr(module, "make_clock", clock)
    given = {"methods": ["sta"], "saved": [0.2, 0.3], "match": "time", "clips": 2, "seeds": 1}
    done = sta.compare("digits", **given, progress=False)
    for row in done.rows[1:]:
        assert 1 / row["speedup"] == pytest.approx(1 - row["saved"], abs=0.03)
        assert row["within_reach"]


def test_equal_time_shows_what_is_measured_afresh_not_the_luckiest(monkeypatch):
    """A clock with noise: seeds of random get one r, and the shown times do not pick the noise."""
    unpruned = gflops(sta.load("vit-digits"), (1, 16, 3, 64, 64))
    rng, asked = np.random.default_rng(0), []

    def clock(*_):
        def time(config):
            cost = gflops(sta.apply(sta.load("vit-digits"), config), (1, 16, 3, 64, 64))
            return (0.2 + 0.8 * cost / unpruned) * (1 + 0.05 * rng.standard_normal())

        def measure(configs):
            asked.append([1 / time(config) for config in configs])
            return asked[-1]

        return measure

    monkeypatch.setattr(module, "make_clock", clock)
    given = {"methods": ["random"], "saved": 0.4, "match": "time", "clips": 2, "seeds": 3}
    rows = sta.compare("digits", **given, progress=False).rows[1:]
    assert len({row["r"] for row in rows}) == 1
    assert [row["speedup"] for row in rows] == asked[-1]


def test_precision_is_of_all_that_is_computed_and_timed():
    opened, seen = VideoModel.open("vit-digits"), []

    def note(module, inputs):
        if inputs[0].device.type == "cpu":  # GFLOPs are counted without numbers
            seen.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))

    opened.model.get_submodule("videomae.encoder.layer.0").register_forward_pre_hook(note)
    given = {"methods": ["tome"], "saved": 0.5, "clips": 2, "seeds": 1, "progress": False}
    done = sta.compare("digits", opened, precision="bfloat16", rounds=0, **given)
    half = Counter(seen)
    assert half[torch.bfloat16] >= 3  # three models; float32 beside them, to see what differs
    assert done.to_dict()["precision"] == "bfloat16"
    assert "bfloat16" in str(done)
    seen.clear()
    sta.compare("digits", opened, precision="bfloat16", rounds=1, **given)
    assert Counter(seen) - half == {torch.bfloat16: 3 * (2 + 1)}  # two of warm-up and a round


@pytest.mark.parametrize(("saved", "cost"), [(0.35, 0.65), (0.5, 0.6)])
def test_nothing_is_dropped_that_saves_no_time(monkeypatch, saved, cost):
    """A clock that stops at 0.6 of the time: a method stops there, too."""
    unpruned = gflops(sta.load("vit-digits"), (1, 16, 3, 64, 64))
    rng = np.random.default_rng(0)

    def clock(*_):
        def time(config):
            share = gflops(sta.apply(sta.load("vit-digits"), config), (1, 16, 3, 64, 64)) / unpruned
            return max(0.6, share) * (1 + 0.005 * rng.standard_normal())

        return lambda configs: [1 / time(config) for config in configs]

    monkeypatch.setattr(module, "make_clock", clock)
    given = {
        "methods": ["sta"],
        "saved": [0.35, 0.5, 0.65],
        "match": "time",
        "clips": 2,
        "seeds": 1,
    }
    rows = sta.compare("digits", **given, progress=False).rows
    (ours,) = [row for row in rows if row["method"] == "sta" and row["saved"] == saved]
    assert ours["gflops"] / unpruned == pytest.approx(cost, abs=0.11)
    assert ours["gflops"] / unpruned > 0.45


def test_a_time_that_is_missed_is_said(monkeypatch):
    """The first r already saves more than was asked for."""
    monkeypatch.setattr(module, "make_clock", lambda *_: lambda configs: [2.0] * len(configs))
    given = {"methods": ["tome"], "saved": [0.1], "match": "time", "clips": 2, "seeds": 1}
    done = sta.compare("digits", **given, progress=False)
    assert all(row["within_reach"] for row in done.rows)
    assert "tome at 10 %: it saves 50.0 %" in str(done)


@pytest.mark.parametrize(
    ("points", "share", "expected"),
    [
        ({}, 0.5, 0.0),  # nothing but the unpruned model is known
        ({50.0: 0.6}, 0.8, 75.0),
        ({50.0: 0.6}, 0.4, 25.0),
        ({50.0: 1.3}, 1.0, 100.0),  # slower than the unpruned one
        ({50.0: 0.9, 30.0: 0.95}, 0.92, 60.0),  # the lower one drops more for nothing
        ({100.0: 1.1}, 1.0, 100.0),
    ],
)
def test_a_time_curve_goes_by_what_was_measured(points, share, expected):
    curve = module.TimeCurve(100.0)
    for cost, time in points.items():
        curve.add(cost, 1 / time)
    assert curve.gflops_at(share) == pytest.approx(expected, abs=1e-6)


def test_equal_time_that_no_r_reaches_is_said_to_be_out_of_reach(monkeypatch):
    monkeypatch.setattr(module, "make_clock", lambda *_: lambda configs: [1.1] * len(configs))
    given = {"methods": ["tome"], "saved": [0.5], "match": "time", "clips": 2, "seeds": 1}
    done = sta.compare("digits", **given, progress=False)
    assert not any(row["within_reach"] for row in done.rows[1:])
    assert "tome cannot save 50 %" in str(done)


def test_equal_time_goes_on_where_counts_follow_the_clip(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "make_clock", lambda *_: lambda configs: [1.5] * len(configs))
    given = {"methods": ["rlt"], "saved": [0.4], "match": "time", "clips": 2, "seeds": 1}
    done = sta.compare("digits", **given, out=tmp_path, progress=False)
    assert {row["method"] for row in done.rows} == {"unpruned", "random, seed 0", "rlt"}
    assert sta.compare("digits", **given, out=tmp_path, progress=False).rows == done.rows


def test_models_of_one_name_in_two_folders_have_rows_of_their_own(tmp_path):
    folders = [tmp_path / name / "model" for name in ("one", "other")]
    for folder in folders:
        VideoModel.open("vit-digits").save(folder)
    given = {"methods": ["random"], "saved": 0.5, "clips": 2, "seeds": 1, **FAST}
    sta.compare("digits", folders, out=tmp_path / "rows", **given)
    assert len(list((tmp_path / "rows").glob("*.jsonl"))) == 2


def test_a_setting_of_two_budgets_is_within_reach_of_the_nearer_alone():
    near = module.Entrant("sta", 0.5, sta.STAConfig(9), 1.0, r=9, within_reach=True)
    far = module.Entrant("sta", 0.65, sta.STAConfig(9), 1.0, r=9, within_reach=False)
    for both in ((near, far), (far, near)):
        assert module.one_of_each(both) == list(both)


def test_close_budgets_that_drop_as_many_tokens_are_one_setting():
    given = {"methods": ["rlt"], "saved": [0.5, 0.502], "clips": 4, "seeds": 1, **FAST}
    first, second = (row for row in sta.compare("digits", **given).rows if row["method"] == "rlt")
    assert first["r"] == second["r"]
    assert {**first, "saved": None} == {**second, "saved": None}


def test_what_a_model_refuses_is_left_out_with_the_reason():
    done = sta.compare(
        "digits", "swin-digits", methods=["sta", "tome"], saved=0.3, clips=2, seeds=1, **FAST
    )
    assert {row["method"] for row in done.rows} == {"unpruned", "random, seed 0", "sta"}
    assert len(done.left_out) == 1
    assert "tome" in done.left_out[0]
    assert "tome" in str(done)


AUTO = sta.FrameDifferenceConfig(budget="auto", threshold=0.1)


def test_thresholds_meet_the_budget_and_the_mean_cost_is_that_of_the_compared_clips(tmp_path):
    """Three methods whose counts follow the clip, one of them under a name of its own."""
    given = {"methods": ["rlt", "auto"], "configs": {"mine": AUTO}, "saved": [0.3, 0.6]}
    given |= {"clips": 24, "seeds": 1, "out": tmp_path, **FAST}
    done = sta.compare("digits", **given)
    opened = VideoModel.open("vit-digits")
    pixels = opened.pixels(DigitActions("test", size=24).batch(range(24))[0])
    unpruned = gflops(opened.model, (1, 16, 3, 64, 64))
    following = [row for row in done.rows if row["method"] in ("rlt", "auto", "mine")]
    assert len(following) == 6
    for row in following:
        config = sta.Config.from_values(row["config"], "a row")
        sta.apply(opened.model, config)
        costs = [gflops(opened.model, clip[None]) for clip in pixels]
        assert row["gflops"] == pytest.approx(np.mean(costs), rel=0.01)
        assert row["gflops"] == pytest.approx((1 - row["saved"]) * unpruned, rel=0.1)
        assert row["r"] > 0
        assert row["to_random"] is not None
    assert "<=" not in str(done)  # these are what the clips cost, not the most that they can
    assert sta.compare("digits", **given).rows == done.rows


def test_a_method_from_outside_whose_counts_follow_the_clip_has_a_name(monkeypatch):
    class Mine(sta.RLTConfig):
        method = "mine"

    monkeypatch.setitem(sta.methods.METHODS, "mine", Mine)
    assert {"rlt", "mine", "auto", "paper"} <= set(module.comparable_methods())
    assert "dense" not in module.comparable_methods()
    done = sta.compare("digits", methods=["mine", "rlt"], saved=0.5, clips=4, seeds=1, **FAST)
    mine, rlt = (row for row in done.rows if row["method"] in ("mine", "rlt"))
    assert mine["config"] == {**rlt["config"], "method": "mine"}
    assert mine["gflops"] == rlt["gflops"]


def test_thresholds_come_from_other_clips(monkeypatch):
    seen = []
    curve = module.ThresholdCurve

    def spy(opened, base, clips, device):
        parts = list(clips)
        seen.append(np.concatenate(parts))
        return curve(opened, base, parts, device)

    monkeypatch.setattr(module, "ThresholdCurve", spy)
    given = {"methods": ["rlt"], "saved": 0.5, "seeds": 1, "clips": 4, **FAST}
    sta.compare("digits", **given)
    test = DigitActions("test", size=64).batch(range(64))[0]
    np.testing.assert_array_equal(seen[0], test[4 : 4 + module.THRESHOLD_CLIPS])
    np.testing.assert_array_equal(seen[1], test[:4])
    seen.clear()
    train = DigitActions("train", size=8).batch(range(8))[0]
    sta.compare("digits", **given, calibrate=train)
    np.testing.assert_array_equal(seen[0], train)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"methods": ["magic"]}, "magic"),
        ({"saved": 1.5}, "saved=1.5"),
        ({"match": "time"}, "rounds"),
        ({"seeds": 0}, "seeds=0"),
        ({"rival": "magic", "methods": ["sta"]}, "rival='magic' does not take part"),
        ({"precision": "int8"}, "int8"),
        ({"configs": {"mine": sta.DenseConfig()}}, "mine"),
        ({"configs": {"sta": sta.STAConfig(r=2)}, "methods": ["sta"]}, "there is a method"),
    ],
)
def test_wrong_arguments_are_named(given, said):
    with pytest.raises(ValueError, match=said):
        sta.compare("digits", clips=2, **{**FAST, **given})


def test_data_without_a_model_for_them_is_an_error(tmp_path):
    (tmp_path / "list.txt").write_text("a.mp4 900\n")
    with pytest.raises(ValueError, match="nothing could be compared"):
        sta.compare(tmp_path / "list.txt", **FAST)


def test_settings_take_part_with_their_own_r(tmp_path):
    sta.STAConfig(r=1, temperature=0.1).to_file(tmp_path / "sharp.json")
    done = sta.compare(
        "digits", configs=[tmp_path / "sharp.json"], saved=0.5, clips=2, seeds=1, **FAST
    )
    (row,) = [row for row in done.rows if row["method"] == "sharp"]
    assert row["config"]["temperature"] == 0.1
    assert row["r"] > 20


def test_drops_that_are_written_out_are_scaled_to_the_budget():
    configs = {"own": sta.STAConfig(schedule=(20, 10, 4), blocks=(1, 2, 4))}
    done = sta.compare("digits", configs=configs, saved=[0.2, 0.5], clips=2, seeds=1, **FAST)
    less, more = (row for row in done.rows if row["method"] == "own")
    assert less["reached"] == pytest.approx(0.2, abs=0.03)
    assert more["reached"] == pytest.approx(0.5, abs=0.03)
    first, second, third = more["config"]["schedule"]
    assert (second, third) == (round(first / 2), round(first / 5))
    with pytest.raises(ValueError, match="begins with 0"):
        sta.compare("digits", configs={"late": sta.STAConfig(schedule=(0, 10))}, saved=0.2)


def test_random_dropping_takes_as_long_where_time_is_matched(monkeypatch):
    """A method that takes long to choose meets random dropping of as many seconds."""
    unpruned = gflops(sta.load("vit-digits"), (1, 16, 3, 64, 64))

    def clock(*_):
        def time(config):
            cost = gflops(sta.apply(sta.load("vit-digits"), config), (1, 16, 3, 64, 64))
            return cost / unpruned + (0.2 if config.method == "sta" else 0)

        return lambda configs: [1 / time(config) for config in configs]

    monkeypatch.setattr(module, "make_clock", clock)
    given = {"methods": ["sta"], "saved": [0.2, 0.4], "match": "time", "clips": 32, "seeds": 2}
    rows = sta.compare("digits", **given, progress=False).rows
    random = {row["saved"]: [] for row in rows[1:]}
    for row in rows[1:]:
        if row["method"] != "sta":
            random[row["saved"]].append(row["top1"])
    for row in rows[1:]:
        if row["method"] == "sta":
            expected = row["top1"] - np.mean(random[row["saved"]])
            assert row["to_random"] == pytest.approx(expected)


def test_models_with_and_without_times_share_a_picture(tmp_path):
    row = {"data": "digits", "clips": 4, "top1": 0.5, "kl": 0.1, "method": "sta"}
    rows = [
        {**row, "model": model, "saved": saved, "gflops": 1 - (saved or 0), "speedup": speedup}
        for model, speedup in (("a", 1.0), ("b", None))
        for saved in (None, 0.5)
    ]
    draw_comparison(rows, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000


def test_command_draws_and_writes(tmp_path):
    from typer.testing import CliRunner

    from sta.cli import app

    words = ["compare", "--method", "sta", "--saved", "0.3", "0.5", "--clips", "2", "--seeds", "2"]
    files = {name: tmp_path / f"x.{name}" for name in ("json", "csv")}
    for name, file in files.items():
        words += [f"--{name}", str(file)]
    words += ["--plot", str(tmp_path / "x.png"), "--rounds", "1", "--out", str(tmp_path / "rows")]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    written = json.loads(files["json"].read_text())
    assert len(written["rows"]) == 1 + 2 * 3
    assert files["csv"].read_text().count("\n") == 1 + 1 + 2 * 3
    assert (tmp_path / "x.png").stat().st_size > 5000
    assert all(row["speedup"] > 0 for row in written["rows"])
