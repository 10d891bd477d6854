"""The base install: data files that stand in for packages, and what a missing extra says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sta.explain.style import COLOUR_MAPS, colour_table, font, readable
from sta.runtime.extras import require
from sta.video import digits

ROOT = Path(__file__).resolve().parents[1]


def test_the_digit_images_are_scikit_learns():
    sklearn = pytest.importorskip("sklearn.datasets")
    with np.load(digits._IMAGES) as file:
        assert (file["images"] == sklearn.load_digits().images).all()


def test_the_digit_images_have_not_changed():
    with np.load(digits._IMAGES) as file:
        images = file["images"]
    assert images.shape == (1797, 8, 8)
    assert int(images.sum(dtype=np.int64)) == 561718
    assert len(digits.glyphs("train")) + len(digits.glyphs("test")) == 1797


@pytest.mark.parametrize("name", sorted(set(COLOUR_MAPS.values())))
def test_colour_maps_are_matplotlibs(name):
    matplotlib = pytest.importorskip("matplotlib")
    expected = np.round(matplotlib.colormaps[name](np.arange(256))[:, :3] * 255)
    assert (colour_table(name) == expected).all()


def test_text_is_readable_in_pillows_own_font(monkeypatch):
    monkeypatch.setattr("sta.explain.style._FILES", {False: (), True: ()})
    font.cache_clear()
    try:
        letters = font(12)
        assert readable("180 \N{RIGHTWARDS ARROW} 96, 3\N{EN DASH}4", letters) == "180 -> 96, 3-4"
        assert letters.getlength("180 -> 96") > 0
    finally:
        font.cache_clear()


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ImportError, match=r'Parquet needs pyarrow: pip install "sta-video\[parquet'
    ):
        require("pyarrow", "Parquet", "parquet")


def test_training_without_accelerate_says_what_to_install(monkeypatch, tmp_path, refused):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    said = refused("train", "digits", "--out", tmp_path)
    assert 'training needs accelerate: pip install "sta-video[train]"' in said


@pytest.mark.parametrize("words", [("tune", "digits", "--gflops", "0.7"), ("ablate", "order")])
def test_a_plot_without_matplotlib_is_refused_before_the_work(
    words, monkeypatch, tmp_path, refused
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    said = refused(*words, "--model", "no such model", "--plot", "plot.png")
    assert '--plot needs matplotlib: pip install "sta-video[plot]"' in said


#: Of these, none may be needed by what the base install promises.
OPTIONAL = ("accelerate", "matplotlib", "sklearn", "pandas", "pyarrow", "ray", "gradio", "onnx")


def test_the_base_needs_no_optional_package(tmp_path):
    code = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None
import sta
shown = sta.show("digits:3", r=24, rounds=0)
for ending in ("png", "pdf", "html", "webp"):
    shown.save("a." + ending)
"""
    env = {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in tmp_path.glob("a.*")} == {".png", ".pdf", ".html", ".webp"}
