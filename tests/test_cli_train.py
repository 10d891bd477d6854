"""`sta data` and `sta train` from the command line."""

from __future__ import annotations

import json

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import VideoMAEConfig, VideoMAEForVideoClassification
from typer.testing import CliRunner

from inference_runs import make_videos
from sta.backbones.zoo.video_model import describe, load_video_model
from sta.cli import app
from sta.train.loop import Trainer
from sta.video.views import ViewSpec
from test_train import tiny_of
from video_files import make


@pytest.fixture
def invoke():
    yield lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])
    AcceleratorState._reset_state()


@pytest.fixture
def tiny_model(monkeypatch):
    """The zoo gives a tiny model of 80 classes, whatever the name."""
    torch.manual_seed(0)
    config = VideoMAEConfig(
        image_size=64,
        patch_size=32,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        num_labels=80,
    )
    model = VideoMAEForVideoClassification(config)
    load = "sta.backbones.zoo.video_model.load_video_model"
    monkeypatch.setattr(load, lambda name, **_: describe(model))
    return model


QUICK = ("--epochs", 1, "--warmup-epochs", 0, "--batch-size", 4)


def test_digits_are_written_and_trained_on_as_files(tmp_path, invoke, tiny_model):
    result = invoke("data", "digits", "--out", tmp_path / "d", "--clips", 5)
    assert result.exit_code == 0, result.output
    assert "5 videos" in result.output
    listed = tmp_path / "d" / "test.txt"
    assert len(listed.read_text().splitlines()) == 5

    rows = tmp_path / "rows.jsonl"
    out = tmp_path / "run"
    files = ("train", listed, "--out", out, "--stride", 1, "--evaluation", listed, *QUICK)
    result = invoke(*files, "--json", rows)
    assert result.exit_code == 0, result.output
    row = json.loads(rows.read_text())
    assert row["epoch"] == 0
    assert 0 <= row["top1"] <= 1
    assert (out / "model" / "model.safetensors").exists()


def test_digits_keep_their_sides_and_colours(tmp_path, invoke, tiny_model, monkeypatch):
    seen = []
    monkeypatch.setattr(Trainer, "run", lambda self: seen.append(self.config) or [])
    digits = ("train", "digits", "--out", tmp_path, "--clips", 8, *QUICK)
    result = invoke(*digits)
    assert result.exit_code == 0, result.output
    assert (seen[0].flip, seen[0].colour) == (0.0, False)
    assert "leave --flip and --colour out" in str(invoke(*digits, "--flip", 0.5).exception)
    assert "leave --flip and --colour out" in str(invoke(*digits, "--colour").exception)


def test_a_wrong_number_of_classes_is_named(tmp_path, invoke, tiny_model):
    result = invoke("train", "digits", "--out", tmp_path, "--classes", 3, *QUICK)
    assert "3 classes" in str(result.exception)
    assert "--classes 80" in str(result.exception)


# Files


@pytest.fixture
def stop(monkeypatch):
    """Training ends before its first step; what it was to do."""
    seen = []
    monkeypatch.setattr(Trainer, "run", lambda self: seen.append(self) or [])
    return seen


@pytest.mark.parametrize("family", ["videomae", "vivit", "vjepa2"])
def test_clips_have_the_shape_that_the_model_takes(tmp_path, invoke, stop, family):
    videos = make_videos(tmp_path / "videos", 2)
    tiny_of(family).save_pretrained(tmp_path / "model")
    words = ("train", videos / "list.txt", "--model", tmp_path / "model", "--out", tmp_path / "run")
    result = invoke(*words, "--epochs", 1, "--batch-size", 2)
    assert result.exit_code == 0, result.output
    [trainer] = stop
    frames, _ = trainer.clips[0]
    assert frames.shape == (8, 32, 32, 3)
    assert trainer.clip.mean[0] == (0.5 if family == "vivit" else 0.485)
    assert trainer.clip.views.stride == 4


def by_folder(folder):
    """Two videos each in the folders `stand` and `fall`."""
    for name in ("stand", "fall"):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            make(folder / name / f"{number}.mp4", 12, 40, 56)
    return folder


def test_a_trained_folder_keeps_clips_and_class_names(tmp_path, invoke, folder):
    data = by_folder(tmp_path / "data")
    words = ("train", data, "--model", folder, "--out", tmp_path / "run", "--classes", 2, *QUICK)
    result = invoke(*words, "--evaluation", data, "--stride", 3, "--sampling", "uniform")
    assert result.exit_code == 0, result.output
    saved = str(tmp_path / "run" / "model")
    video_model = load_video_model(saved)
    assert video_model.class_names == ("fall", "stand")
    assert video_model.clip.views == ViewSpec(4, 3, 32, 1, 1, "uniform")
    table = tmp_path / "table.json"
    result = invoke("eval", data, "--model", saved, "--json", table)  # by the folders' names
    assert result.exit_code == 0, result.output
    assert json.loads(table.read_text())[0]["clips"] == 4
    result = invoke(*words[:-8], "--classes", 3, *QUICK)
    assert "--classes 3" in str(result.exception)
    assert "2 folders" in str(result.exception)


def test_class_names_come_from_a_file(tmp_path, invoke, folder, stop):
    data = by_folder(tmp_path / "data")
    names = tmp_path / "names.txt"
    names.write_text("stand\nsit\nfall\n")
    words = ("train", data, "--model", folder, "--out", tmp_path / "run", *QUICK)
    assert invoke(*words, "--classes", names).exit_code == 0
    [trainer] = stop
    assert trainer.video_model.class_names == ("stand", "sit", "fall")
    assert {entry.label for entry in trainer.clips.entries} == {0, 2}
    assert "--classes FILE" in str(invoke(*words).exception)  # six other classes


def test_a_new_head_is_drawn_by_the_seed(tmp_path, invoke, folder, stop):
    data = by_folder(tmp_path / "data")
    words = ("train", data, "--model", folder, "--out", tmp_path / "run", "--classes", 2, *QUICK)
    for seed in (1, 2, 1):
        torch.rand(seed)
        assert invoke(*words, "--seed", seed).exit_code == 0
        AcceleratorState._reset_state()
    one, two, again = (trainer.video_model.model.classifier.weight for trainer in stop)
    assert torch.equal(one, again)
    assert not torch.equal(one, two)


def test_damaged_files_are_named_and_left_out(tmp_path, invoke, folder):
    videos = make_videos(tmp_path / "videos", 6)
    (videos / "002.mp4").write_bytes(b"no video at all")
    (videos / "004.mp4").unlink()
    rows = tmp_path / "rows.jsonl"
    listed = videos / "list.txt"
    words = ("train", listed, "--evaluation", listed, "--model", folder, "--out", tmp_path / "run")
    result = invoke(*words, "--json", rows, *QUICK)
    assert result.exit_code == 0, result.output
    row = json.loads(rows.read_text())
    assert (row["left_out"], row["evaluation_left_out"]) == (2, 2)
    assert "left out: 002.mp4: not a video" in result.stderr
    assert "left out: 004.mp4: there is no such file" in result.stderr
