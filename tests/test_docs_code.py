"""The Python blocks of README and docs run, on tiny models and clips in place of large ones.

A block after the comment ``<!-- hub -->`` needs a download and is only compiled.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from scripts import docs_hooks
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import sta
from backbones import BACKBONES, Backbone
from inference_runs import environment, make_videos
from sta.cli import app
from sta.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
#: Their code is held against the sources, in test_adding_a_backbone.py and test_methods.py.
QUOTES = {"adding-a-backbone.md", "adding-a-method.md"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- hub -->\n)?```python\n(.*?)```", re.DOTALL)

#: What is large or far away in the docs, and what stands for it here.
SMALLER = {
    "MCG-NJU/videomae-base-finetuned-kinetics": "tiny",
    "vit-b-k400": "tiny",
    "16, 3, 224, 224": "16, 3, 32, 32",
    "(0, 32, 48, 64)": "(0, 2, 4)",
    "[0, 32, 64]": "[0, 4]",
    "r=64": "r=4",
    "r=112": "r=4",
    "released(64)": "released(4)",
    "clips=500": "clips=2",
    "// 14": "// 4",
    "% 14": "% 4",
    # Times of a tiny model say nothing: count instead, and do not measure for long.
    "speedup=2.0": "gflops=0.006, fidelity_clips=3",
    'runtimes=["torch", "openvino"]': "rounds=1, warmup=0, memory=False, gemm=False",
    'model="vit-digits", r=24)': 'model="vit-digits", r=24, clips=8)',
}
#: Pages about one family, and the tiny model of `backbones` that stands for it.
FAMILIES = {
    "video-swin.md": "swin",
    "vjepa2.md": "vjepa2",
    "vivit.md": "vivit",
}


def blocks(page: Path) -> list[tuple[bool, str]]:
    return [(bool(hub), code) for hub, code in BLOCK.findall(page.read_text())]


def smaller(code: str, backbone: Backbone | None) -> str:
    code = re.sub(r'sta\.load\("[a-z0-9-]+", weights=None\)', "tiny_model", code)
    if backbone is not None:
        code = re.sub(r"torch\.randn\([^)]*\)", f"torch.randn(1, *{backbone.shape})", code)
        code = re.sub(r"\br=\d+", f"r={backbone.r}", code)
    for large, small in SMALLER.items():
        code = code.replace(large, small)
    return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the docs' commands and files are: a tiny model, videos, a list, exported models."""
    folder = tmp_path_factory.mktemp("docs")
    torch.manual_seed(0)
    config = VideoMAEConfig(
        num_labels=6,
        image_size=32,
        patch_size=8,
        num_frames=16,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
    )
    VideoMAEForVideoClassification(config).save_pretrained(folder / "tiny")
    make_videos(folder / "videos", 3)
    (folder / "val.txt").write_text((folder / "videos/list.txt").read_text())
    for name in ("000.mp4", "001.mp4", "002.mp4"):
        (folder / name).symlink_to(folder / "videos" / name)
    for name in ("clip.mp4", "match.mp4"):
        (folder / name).symlink_to(folder / "videos/002.mp4")
    (folder / "digits").symlink_to(folder / "videos")
    (folder / "videos/test.txt").write_text((folder / "videos/list.txt").read_text())
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in QUOTES], ids=lambda p: p.name)
def test_the_code_of_a_page_runs(page, folder, monkeypatch):
    found = blocks(page)
    if not found:
        pytest.skip("no Python on this page")
    monkeypatch.chdir(folder)
    if page.name == "export.md":
        pytest.importorskip("openvino")
        pytest.importorskip("onnxruntime")
        for name, kind in (("vit-b.xml", "openvino"), ("vit-b.pt2", "pt2")):
            sta.export("tiny", name, format=kind, r=4)
    model = VideoMAEForVideoClassification.from_pretrained("tiny").eval()
    backbone = next((b for b in BACKBONES if b.name == FAMILIES.get(page.name)), None)
    pixels = torch.randn(1, 16, 3, 32, 32)
    known = {
        "sta": sta,
        "model": model,
        "tiny_model": backbone.make() if backbone else copy.deepcopy(model),
        "pixel_values": pixels,
        "clip": pixels,
        "pixels": pixels,
        "camera": np.zeros((40, 32, 32, 3), np.uint8),
        "hidden": torch.randn(1, 8 * 9, 32),  # of 8 x 16 tokens, 9 of each frame with r=4
    }
    with torch.no_grad():
        for hub, code in found:
            compiled = compile(smaller(code, backbone), page.name, "exec")
            if not hub:
                exec(compiled, known)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_commands_of_a_page_exist(page):
    text = page.read_text().replace("\\\n", " ")
    for line in re.findall(r"^(sta [^\n]*)$|`(sta [^`]*)`", text, re.MULTILINE):
        command: Any = typer.main.get_command(app)
        _, *words = "".join(line).split(" #")[0].split()
        words = [word.rstrip(".,;:") for word in words if word != "--debug"]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        unknown = {word for word in words if word.startswith("--")} - options - {"--help"}
        assert not unknown, f"{page.name}: {line}"
        assert not hasattr(command, "commands"), f"{page.name}: {line}"


def test_pages_that_need_the_hub_are_few():
    marked = [page.name for page in PAGES for hub, _ in blocks(page) if hub]
    assert len(marked) <= 2, marked


def test_every_public_name_is_in_the_reference():
    reference = docs_hooks.on_page_markdown((ROOT / "docs/api.md").read_text())
    listed = set(re.findall(r"^::: \S+\.(\w+)$", reference, re.MULTILINE))
    assert set(sta.__all__) - {"__version__", "runtime"} <= listed
    assert {config.__name__ for config in METHODS.values()} <= listed


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_outside_the_site_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text())
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), f"{name}: {link}"


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**environment(), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "commands/index.html").read_text()
    assert "sta predict" in commands
    assert "--published" in commands
