"""`sta data` and `sta train` from the command line."""

from __future__ import annotations

import json

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import VideoMAEConfig, VideoMAEForVideoClassification
from typer.testing import CliRunner

from sta.backbones.zoo.video_model import describe
from sta.cli import app
from sta.train.loop import Trainer


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


QUICK = ("--epochs", 1, "--warmup-epochs", 0, "--batch", 4)


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
