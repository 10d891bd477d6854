"""Ablations: what is varied, that all of it is measured on the same clips, and what is said."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import sta
from backbones import BACKBONES
from inference_runs import make_videos, run, save_model
from sta.backbones.zoo import embedded
from sta.backbones.zoo.video_model import VideoModel, load_video_model
from sta.inference.clip_model import Classifier
from sta.inference.setup import Setup
from sta.tuning.ablation import Ablation
from sta.tuning.ablation_studies import STUDIES, Subject, make_studies
from sta.video.digits import CLASS_NAMES, DigitActions

VIDEOMAE = next(b for b in BACKBONES if b.name == "videomae")
SWIN = next(b for b in BACKBONES if b.name == "swin")


@pytest.fixture(scope="module")
def vit() -> Subject:
    return Subject(VIDEOMAE.make(), (1, *VIDEOMAE.shape), sta.STAConfig(r=6))


def cost(subject: Subject, config: sta.Config) -> float:
    return sta.gflops(sta.apply(subject.skeleton, config), subject.shape)


# What is varied


@pytest.mark.parametrize("name", ["first-frame", "order", "similarity", "temperature"])
def test_one_setting_is_varied_and_the_default_is_among_it(vit, name):
    (study,) = make_studies([name], vit)
    setting = name.replace("-", "_")
    configs = [variant.config for variant in study.variants]
    assert configs.count(vit.default) == 1
    assert len(set(configs)) == len(configs) > 2
    for config in configs:
        assert replace(config, **{setting: getattr(vit.default, setting)}) == vit.default


def test_orders_are_the_papers(vit):
    (study,) = make_studies(["order"], vit)
    assert [variant.name for variant in study.variants] == ["FBF", "BFB", "FFF", "BBB"]


def test_schedules_cost_the_same(vit):
    (study,) = make_studies(["schedule"], vit)
    decreasing, constant, increasing = (variant.config for variant in study.variants)
    assert decreasing == vit.default
    assert (constant.schedule, increasing.schedule) == ("constant", "increasing")
    assert 0 < increasing.r < constant.r < decreasing.r
    for config in (constant, increasing):  # no other r comes closer
        off = abs(cost(vit, config) - vit.gflops)
        for r in (config.r - 1, config.r + 1):
            other = vit.variant("neighbour", replace(config, r=r))
            assert other.refused or off <= abs(cost(vit, other.config) - vit.gflops)


@pytest.fixture
def unmatched(monkeypatch):
    """Without matching, which takes long and is tested by itself: r is 3 where it would be used."""
    monkeypatch.setattr(
        "sta.tuning.ablation_studies.match_gflops", lambda model, shape, to, make: make(3)
    )


def test_numbers_of_steps_are_what_they_say(vit, unmatched):
    (study,) = make_studies(["steps"], vit)
    model, clip = VIDEOMAE.make(), torch.zeros(1, *VIDEOMAE.shape)
    assert [int(variant.name.split(",")[0]) for variant in study.variants][:3] == [1, 2, 3]
    for variant in study.variants:
        with torch.no_grad():
            sta.apply(model, variant.config)(clip)
        assert len(sta.kept(model)) == int(variant.name.split(",")[0])
        assert (variant.config == vit.default) == (len(sta.kept(model)) == 3)


def test_scores_have_random_dropping_beside_them(vit):
    (study,) = make_studies(["score"], vit)
    methods = [variant.config.method for variant in study.variants]
    assert methods == ["sta"] * 3 + ["random"] * 3
    assert len({variant.config for variant in study.variants}) == 6


def test_what_a_model_or_the_data_do_not_have_is_left_out_with_a_reason(vit):
    pool, views, score = make_studies(["pool", "views", "score"], vit)
    assert "Video Swin" in pool.left_out
    assert "one view" in views.left_out
    assert pool.variants == views.variants == ()
    assert score.left_out is None
    with pytest.raises(ValueError, match=r"nothing to compare; views: .*--takes 4, then DIR"):
        make_studies(["views"], vit)


def test_swin_has_its_own(unmatched):
    subject = Subject(SWIN.make(), (1, *SWIN.shape), sta.STAConfig(r=16))
    program, pool, place, schedule = make_studies(["program", "pool", "place", "schedule"], subject)
    assert "windows need" in program.left_out
    assert [variant.config.pool for variant in pool.variants] == ["kept", "grid"]
    same_share = [(v.config.blocks, v.config.r) for v in place.variants[1::2]]
    assert same_share == [((1, 2), 16), ((1, 3), 16), ((2, 3), 4)]
    assert [v.config.blocks for v in place.variants[2::2]] == [(1, 2), (1, 3), (2, 3)]
    assert [v.config.schedule for v in schedule.variants] == ["decreasing", (3, 0, 0), (6, 1, 0)]
    assert all(variant.refused is None for study in (pool, place) for variant in study.variants)


def test_a_variant_that_does_not_fit_says_why():
    model = VIDEOMAE.make()
    subject = Subject(model, (1, *VIDEOMAE.shape), sta.STAConfig(r=6))
    variant = subject.variant("too many", sta.STAConfig(r=15))
    assert "leaves no tokens" in variant.refused
    with pytest.raises(ValueError, match="r=0 drops nothing"):
        Subject(model, (1, *VIDEOMAE.shape), sta.STAConfig())


# Running


def test_every_setting_runs_once_whatever_the_number_of_studies():
    setup = Setup.make("vit-digits", methods=())
    ablation = Ablation(setup, "digits", sta.STAConfig(r=24), ["first-frame", "order"], 4)
    (only,) = ablation.passes()
    methods = only.evaluation.setup.methods
    assert len(methods) == 1 + 1 + 2 + 3  # unpruned, default, other first frames, other orders
    assert len(set(methods.values())) == len(methods)


def right(config: sta.Config | None, clips: int) -> np.ndarray:
    """Which of the first test clips a model tells right, by hand."""
    opened = load_video_model("vit-digits")
    frames, labels = DigitActions("test").batch(range(clips))
    scores, _ = Classifier(opened.model, opened.clip, [config])(frames)
    return scores[0].argmax(-1) == labels


def test_the_command_measures_what_it_says(tmp_path):
    files = {ending: tmp_path / "new" / f"table.{ending}" for ending in ("json", "csv", "png")}
    words = ("ablate", "score", "pool", "--r", 36, "--clips", 12, "--temperature", 0.1)
    words += ("--json", files["json"], "--csv", files["csv"], "--plot", files["png"])
    result = run(*words, "--out", tmp_path / "rows.jsonl")
    assert result.exit_code == 0, result.output
    report = json.loads(files["json"].read_text())
    default = sta.STAConfig(r=36, temperature=0.1)
    assert report["default"] == json.loads(json.dumps(asdict(default)))
    score, pool = report["studies"]
    assert "Video Swin" in pool["left_out"]
    by_hand = right(default, 12)
    for row in score["rows"]:
        settings = dict(row["config"])
        config = sta.methods.METHODS[settings.pop("method")](**settings)
        hits = right(config, 12)
        assert row["top1"] == pytest.approx(hits.mean())
        assert row["default"] == (config == default)
        if row["default"]:
            assert row["difference"] is None
        else:
            assert row["difference"] == pytest.approx(hits.mean() - by_hand.mean())
            assert row["difference_low"] <= row["difference"] <= row["difference_high"]
        assert {"motion", "colour", "agreement", "gflops"} <= set(row)
    assert report["unpruned"]["top1"] == pytest.approx(right(None, 12).mean())
    with files["csv"].open() as file:
        table = list(csv.DictReader(file))
    assert [row["variant"] for row in table] == [
        "unpruned",
        *(row["variant"] for row in score["rows"]),
    ]
    with Image.open(files["png"]) as picture:
        assert picture.width > 300
    assert "random, seed 2" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    by_function = sta.ablate(["score", "pool"], r=36, clips=12, temperature=0.1)
    for row, other in zip(by_function.report["studies"][0]["rows"], score["rows"], strict=True):
        assert {key: row[key] for key in ("variant", "top1", "difference", "gflops")} == {
            key: other[key] for key in ("variant", "top1", "difference", "gflops")
        }
    assert [row["variant"] for row in by_function.records()] == [row["variant"] for row in table]
    # A run that was stopped goes on: the same table, from the rows that are there.
    again = run(*words, "--out", tmp_path / "rows.jsonl", "--resume")
    assert again.exit_code == 0, again.output
    assert json.loads(files["json"].read_text()) == report


def test_views_of_videos_are_compared_with_the_unpruned_model(tmp_path):
    model = save_model(tmp_path / "model")
    videos = make_videos(tmp_path / "videos", 3)
    words = ("ablate", "views", "--model", model, "--data", videos / "list.txt", "--r", 4)
    result = run(*words, "--views", "1x1", "--json", tmp_path / "t.json")
    assert result.exit_code == 0, result.output
    (study,) = json.loads((tmp_path / "t.json").read_text())["studies"]
    names = [row["variant"] for row in study["rows"]]
    assert names[:4] == ["1x1, unpruned", "1x1, r=4", "2x1, unpruned", "2x1, r=4"]
    for unpruned, pruned in zip(study["rows"][::2], study["rows"][1::2], strict=True):
        assert unpruned["clips"] == pruned["clips"] == 3
        assert pruned["difference"] == pytest.approx(pruned["top1"] - unpruned["top1"])


# Errors


def test_wrong_usage(refused, tmp_path):
    message = refused("ablate", "colour")
    assert "'colour'" in message
    assert all(name in message for name in STUDIES)
    assert "r=64" in refused("ablate", "order", "--r", 64, "--clips", 2)
    assert "--clips" in refused("ablate", "--clips", 0)
    assert "--clips" in refused("eval", "digits", "--clips", 0)
    missing = refused("ablate", "--model", "swan-digits")
    assert all(name in missing for name in embedded.names())


def test_models_and_data_that_do_not_go_together(refused, tmp_path):
    model = save_model(tmp_path / "model")
    message = refused("ablate", "order", "--model", model, "--clips", 2, "--r", 4)
    assert "6 classes" in message
    assert str(len(CLASS_NAMES)) in message
    assert "6 classes" in refused("eval", "digits", "--model", model, "--clips", 2)
    (tmp_path / "list.txt").write_text("a.mp4 6\n")
    message = refused(
        "ablate", "order", "--model", model, "--data", tmp_path / "list.txt", "--r", 2
    )
    assert "label 6" in message
    assert "0..5" in message


def test_damaged_and_foreign_checkpoints(refused, tmp_path):
    whole = (embedded.FOLDER / "vit-digits.safetensors").read_bytes()
    damaged, foreign = tmp_path / "damaged.safetensors", tmp_path / "foreign.safetensors"
    damaged.write_bytes(whole[: len(whole) // 2])
    save_file({"some.weight": torch.zeros(2)}, foreign)
    assert "damaged.safetensors: not a readable checkpoint" in refused("ablate", "--model", damaged)
    assert "foreign.safetensors: not a checkpoint" in refused("eval", "digits", "--model", foreign)


def test_precision_is_what_all_compute_in():
    opened, seen = VideoModel.open("vit-digits"), set()

    def note(module, inputs):
        if inputs[0].device.type == "cpu":  # GFLOPs are counted without numbers
            seen.add(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))

    opened.model.get_submodule("videomae.encoder.layer.0").register_forward_pre_hook(note)
    done = sta.ablate("score", model=opened, precision="bfloat16", r=36, clips=2, progress=False)
    assert torch.bfloat16 in seen
    assert done.report["precision"] == "bfloat16"
