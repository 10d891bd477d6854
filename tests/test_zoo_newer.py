"""V-JEPA 2 and ViViT in the zoo and on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import VivitForVideoClassification, VJEPA2ForVideoClassification

import sta
from backbones import _vivit, _vjepa2
from inference_runs import NAMES, make_videos, run
from sta.backbones.zoo.entries import NEWER, find
from sta.backbones.zoo.video_model import load_video_model
from sta.inference.rows import read_rows

#: Parameters of the checkpoints on the hub, predictor and classifier included.
PARAMETERS = {
    "vjepa2-l-ssv2": 375_485_998,
    "vjepa2-g-ssv2": 1_128_049_454,
    "vjepa2-l-diving48": 375_356_848,
    "vjepa2-g-diving48": 1_127_871_920,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_built_models_are_the_hubs(name: str) -> None:
    with torch.device("meta"):
        model = sta.load(name, weights=None)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    clip = find(name).clip.views
    assert (model.config.frames_per_clip, model.config.crop_size) == (clip.frames, clip.size)


@pytest.mark.parametrize("name", ["vjepa2-l-ssv2", "vivit-b-k400"])
def test_gflops_of_the_zoo_are_counted_ones(name: str) -> None:
    model = find(name)
    with torch.device("meta"):
        network = sta.load(name, weights=None)
    for r, gflops in model.gflops.items():
        counted = sta.gflops(sta.apply(network, sta.STAConfig(r=r)), model.clip.shape())
        assert counted == pytest.approx(gflops, abs=0.5)


def test_vivit_agrees_with_its_own_papers_count() -> None:
    """455.2 GFLOPs in its paper, within what counting conventions differ by."""
    assert find("vivit-b").gflops[0] == pytest.approx(455.2, rel=0.01)


def test_the_list_has_them_and_says_how_to_get_them() -> None:
    listed = run("models").output
    for model in NEWER:
        assert model.name in listed
        assert str(model.source) in listed
        shown = run("models", model.name).output
        assert model.source.url in shown
        assert "paper)" not in shown
    with pytest.raises(ConnectionError, match=r"vjepa2-vitl-fpc16-256-ssv2"):
        sta.load("vjepa2-l-ssv2")


@pytest.fixture(scope="module", params=["vjepa2", "vivit"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp(request.param)
    labels = {"id2label": dict(enumerate(NAMES)), "label2id": {n: i for i, n in enumerate(NAMES)}}
    labels["num_labels"] = len(NAMES)
    if request.param == "vjepa2":
        VJEPA2ForVideoClassification(_vjepa2(**labels)).save_pretrained(folder)
    else:
        VivitForVideoClassification(_vivit(**labels)).save_pretrained(folder)
    return str(folder)


def test_a_saved_model_tells_its_clips(saved: str) -> None:
    video_model = load_video_model(saved)
    assert video_model.clip.shape() == (1, 8, 3, 32, 32)
    assert video_model.class_names == NAMES
    assert video_model.clip.mean[0] == (0.5 if "vivit" in saved else 0.485)


def test_predict_and_show(saved: str, tmp_path: Path) -> None:
    videos = make_videos(tmp_path / "videos", 2)
    rows = tmp_path / "rows.jsonl"
    result = run("predict", videos, "--model", saved, "--r", 4, "--out", rows, "--views", "1x1")
    assert result.exit_code == 0, result.output
    labels = [row["predictions"][0]["label"] for row in read_rows(str(rows))]
    assert len(labels) == 2
    assert set(labels) <= set(NAMES)
    picture = tmp_path / "kept.png"
    result = run("show", videos / "000.mp4", "--model", saved, "--r", 4, "--out", picture)
    assert result.exit_code == 0, result.output
    assert picture.stat().st_size > 0
