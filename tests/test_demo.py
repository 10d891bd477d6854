"""`sta demo`: what it shows, and that it says what its figures are of."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from PIL import Image

from inference_runs import run

demo = import_module("sta.cli.demo")  # sta.cli has the function by this name


def test_demo_shows_accuracy_and_speed(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "LARGE_MODEL", "vit-digits")  # the real one takes half a minute
    monkeypatch.setattr(demo, "LARGE_R", 24)
    monkeypatch.setattr(demo, "ROUNDS", 1)
    done = run("demo", "--clips", 8, "--out", tmp_path / "new" / "demo.png")
    assert done.exit_code == 0, done.output
    assert Image.open(tmp_path / "new" / "demo.png").width > 500
    assert "random weights" in done.output
    assert "1.033" in done.output
    ratios = [float(found) for found in re.findall(r"(\d+\.\d\d)x", done.output)]
    assert ratios[0] == 1
    assert len(ratios) == 2
    assert max(map(len, done.output.splitlines())) <= 80


def test_demo_without_speed_loads_no_second_model(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "LARGE_MODEL", "no such model")
    done = run("demo", "--clips", 8, "--no-speed", "--out", tmp_path / "demo.png")
    assert done.exit_code == 0, done.output
    assert "random weights" not in done.output


@pytest.mark.parametrize("command", ["show", "analyze", "demo"])
def test_help_fits_the_terminal(command):
    done = run(command, "--help")
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
