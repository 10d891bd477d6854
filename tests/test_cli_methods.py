"""Every method through the commands that take a method, on the embedded model and data."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

from inference_runs import run
from sta.methods import METHODS, Config, has_r, make_config

R, TOKENS = 7, 8 * 64  # vit-digits has 8 frames of 64 tokens
OWN = [name for name, config in METHODS.items() if config.__module__.startswith("sta.")]
UNTRAINED = [name for name in OWN if not METHODS[name].learns]
LEARNING = [name for name in OWN if METHODS[name].learns]
#: They choose over the clip, which Swin's windows do not allow.
COLUMNAR = [name for name in UNTRAINED if "clip" in METHODS[name].needs]
COMMANDS = {
    "eval": ("eval", "digits", "--clips", 2),
    "show": ("show", "digits:5", "--rounds", 0),
    "bench": ("bench", "--rounds", 1, "--warmup", 0, "--no-memory", "--no-gemm"),
    "export": ("export", "--format", "pt2", "--batch-size", 1),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is exported in a second: 4 frames of 16 tokens, 3 blocks, random weights."""
    folder = tmp_path_factory.mktemp("small")
    config = VideoMAEConfig(
        image_size=32,
        patch_size=8,
        num_frames=8,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
    )
    VideoMAEForVideoClassification(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", UNTRAINED)
def test_every_method_is_evaluated_shown_and_timed(name: str, tmp_path: Path) -> None:
    table, chosen = tmp_path / "table.json", ("--method", name, "--r", R)
    done = run(*COMMANDS["eval"], *chosen, "--json", table)
    assert done.exit_code == 0, done.output
    (row,) = json.loads(table.read_text())
    drops = has_r(METHODS[name])
    assert (row["method"], row["r"]) == (name, R if drops else 0)
    assert (row["clips"], row["failed"]) == (2, 0)

    picture = tmp_path / "strip.png"
    done = run(*COMMANDS["show"], *chosen, "--out", picture)
    assert done.exit_code == 0, done.output
    assert picture.stat().st_size > 0
    (left,) = re.findall(rf"^{METHODS[name].title}.*? +(\d+) +[\d.]+ ", done.output, re.MULTILINE)
    assert int(left) < TOKENS if drops else int(left) <= TOKENS

    done = run(
        *(*COMMANDS["bench"], "--model", "vit-digits", "--json", table),
        *("--method", "stock", name, "--r", R),
    )
    assert done.exit_code == 0, done.output
    names = [row["name"] for row in json.loads(table.read_text())["rows"]]
    assert names == ["stock", f"{name} r={R}" if drops else name]


@pytest.mark.parametrize("name", UNTRAINED)
def test_every_method_is_exported(name: str, small: Path, tmp_path: Path, refused) -> None:
    """And its file run beside the model; what follows the clip must first be given a size."""
    file, settings = tmp_path / "m.pt2", tmp_path / "settings.json"
    words = (*COMMANDS["export"], "--model", small, "--out", file)
    chosen: tuple[object, ...] = ("--method", name, "--r", R)
    config: Config = make_config(name, R)
    if config.follows_clip:
        said = refused(*words, *chosen)
        assert f"{config.title} keeps as many tokens as a clip needs" in said
        assert "set buckets" in said
        assert not file.exists()
        replace(config, buckets=(40,)).to_file(settings)  # type: ignore[call-arg]
        chosen = ("--config", settings)
    done = run(*words, *chosen)
    assert done.exit_code == 0, done.output
    assert re.search("kept, step 1 +the same", done.output)
    assert file.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_methods_that_a_model_does_not_take_are_refused(
    command: str, tmp_path: Path, refused
) -> None:
    """With the reason, and before anything is written."""
    file = tmp_path / "m.pt2" if command == "export" else tmp_path / "m.png"
    out = ("--out", file) if command in ("show", "export") else ()

    def says(name: str, model: str) -> str:
        said = refused(*COMMANDS[command], "--method", name, "--r", R, "--model", model, *out)
        assert said.count("\n") == 1
        assert not file.exists()
        return said

    for name in LEARNING:
        assert "on Video Swin alone" in says(name, "vit-digits")
        assert f"`sta train DATA --model MODEL --method {name}" in says(name, "swin-digits")
    for name in COLUMNAR:
        assert "cannot be applied to Video Swin: its windows" in says(name, "swin-digits")


def test_r_of_a_method_that_has_none_is_noted() -> None:
    done = run(*COMMANDS["eval"], "--method", "dense", "--r", 0, R)
    assert done.exit_code == 0, done.output
    assert "note: dense has no r" in done.output
    assert "unpruned" in done.output


@pytest.mark.parametrize("command", ["compare", "ablate", "tune"])
def test_what_cannot_be_drawn_is_refused_at_once(command: str, tmp_path: Path, refused) -> None:
    source = () if command == "compare" else ("digits",) if command == "tune" else ("order",)
    said = refused(command, *source, "--plot", tmp_path / "x.bmp")
    assert "unknown ending '.bmp'; use one of .png .pdf .svg" in said


def test_errors_name_the_options_of_the_command_line(refused) -> None:
    said = refused("compare", "--method", "sta", "--rival", "magic", "--saved", "0.5")
    assert said.startswith("Error: --rival magic does not take part")
