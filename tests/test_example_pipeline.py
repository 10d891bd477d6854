"""transformers' video-classification pipeline with a pruned model."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from transformers import VideoMAEImageProcessor, pipeline

import sta
from inference_runs import NAMES, save_model
from sta.video import ViewSpec, read_views
from video_files import make

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "pipeline.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A model as people have it on disk: weights, config and image processor."""
    folder = save_model(tmp_path_factory.mktemp("model"))
    size = {"shortest_edge": 32}
    crop = {"height": 32, "width": 32}
    VideoMAEImageProcessor(size=size, crop_size=crop).save_pretrained(folder)
    return folder


def test_a_pruned_model_works_in_the_pipeline(tmp_path, folder):
    video = str(make(tmp_path / "a.mp4", 20))
    frames = read_views(video, ViewSpec(frames=4, stride=4, size=32)).clips()[0]
    classify = pipeline("video-classification", model=folder, device="cpu")
    stock = classify(frames, top_k=len(NAMES))
    sta.apply(classify.model, sta.STAConfig(r=4))
    pruned = classify(frames, top_k=len(NAMES))
    assert [tokens.shape for tokens in sta.kept(classify.model)] == [
        (1, 2, 12),
        (1, 2, 10),
        (1, 2, 9),
    ]
    assert {p["label"] for p in pruned} == set(NAMES)
    assert pruned != stock
    sta.remove(classify.model)
    assert classify(frames, top_k=len(NAMES)) == stock


def test_the_example_runs(tmp_path, folder, capsys, monkeypatch):
    video = str(make(tmp_path / "a.mp4", 20))
    monkeypatch.setattr("sys.argv", ["pipeline.py", video, "--model", folder, "--r", "4"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert "r=0:" in out
    assert "r=4:" in out
    assert any(name in out for name in NAMES)
