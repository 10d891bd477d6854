"""A tiny saved model, small videos and the command line, for tests of whole runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from transformers import VideoMAEConfig, VideoMAEForVideoClassification
from typer.testing import CliRunner, Result

import sta
from sta.cli import app
from video_files import make

NAMES = ("run", "walk", "jump", "sit", "lie", "fly")


def run(*words: object) -> Result:
    """A command and its words: ``run("predict", path, "--r", 4)``."""
    return CliRunner().invoke(app, [str(word) for word in words])


def save_model(folder: Path) -> str:
    """A VideoMAE for 4 frames of 32 pixels and six classes, with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = VideoMAEConfig(
            image_size=32,
            patch_size=8,
            num_frames=4,
            tubelet_size=2,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            intermediate_size=64,
            id2label=dict(enumerate(NAMES)),
            label2id={name: i for i, name in enumerate(NAMES)},
            initializer_range=0.3,
        )
        VideoMAEForVideoClassification(config).save_pretrained(folder)
    return str(folder)


def make_videos(folder: Path, count: int) -> Path:
    """`count` small videos in `folder` and ``list.txt`` with their labels."""
    folder.mkdir(exist_ok=True)
    lines = []
    for number in range(count):
        make(folder / f"{number:03d}.mp4", 8 + 5 * number % 17, 40, 56)
        lines.append(f"{number:03d}.mp4 {number % len(NAMES)}\n")
    (folder / "list.txt").write_text("".join(lines))
    return folder


def command(*words: object) -> list[str]:
    """The command line as a process of its own."""
    return [sys.executable, "-m", "sta", *map(str, words)]


def environment() -> dict[str, str]:
    """Finds the package and stays off the other cores."""
    places = [str(Path(sta.__file__).parents[1]), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
