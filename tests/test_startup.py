"""How commands start: only what they need is imported, and libraries keep quiet."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import (
    VideoMAEConfig,
    VideoMAEForVideoClassification,
    VJEPA2Config,
    VJEPA2ForVideoClassification,
)
from transformers.models.videomae import modeling_videomae

import sta.cli
from inference_runs import environment, make_videos
from sta.backbones.zoo.folders import Folder
from sta.backbones.zoo.positions import quick_positions

#: Modules that take longer to import than a clip takes to run.
HEAVY = (
    *("torch._dynamo", "scipy", "sympy", "triton", "accelerate", "torchvision", "sta.explain"),
    "av",  # the process that decodes has it
)

RUN = """
import json, sys
sys.argv = ["sta", *json.loads(sys.argv[1])]
from sta.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps([name for name in json.loads(sys.argv.pop()) if name in sys.modules]))
"""


def imported(*words: object) -> tuple[list[str], str]:
    """The heavy modules that a command imports, and what it says on standard error."""
    script = RUN.replace("json.loads(sys.argv.pop())", repr(list(HEAVY)))
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps([str(word) for word in words])],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("model", ["folder", "vit-digits"])
def test_predict_imports_what_it_needs_alone(folder, tmp_path, model) -> None:
    videos = make_videos(tmp_path / "v", 1)
    name = folder if model == "folder" else model
    found, said = imported("predict", videos, "--model", name, "--r", 6)
    assert found == []
    assert said.strip() == "1 video"


def test_the_first_decoder_starts_before_torch_is_imported(folder, tmp_path) -> None:
    videos = make_videos(tmp_path / "v", 1)
    script = f"""
import subprocess, sys
started = []
usual = subprocess.Popen.__init__
def noted(self, words, *args, **kwargs):
    if "sta.video.worker" in words:
        started.append("torch" in sys.modules or "av" in sys.modules)
    usual(self, words, *args, **kwargs)
subprocess.Popen.__init__ = noted
sys.argv = ["sta", "predict", {str(videos)!r}, "--model", {str(folder)!r}]
from sta.cli import main
try:
    main()
finally:
    assert started == [False], started
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_was_left_out_is_there_when_it_is_asked_for(tmp_path) -> None:
    """The compiler, and transformers' losses and flex attention, after a quick start."""
    script = """
from sta.cli.startup import import_transformers
import_transformers("vit-digits")
import sys, torch
assert "torch._dynamo" not in sys.modules
import sta
model = sta.apply(sta.load("vit-digits"), sta.STAConfig(r=8))
clip = torch.zeros(1, 16, 3, 64, 64)
import torch._dynamo
with torch.no_grad():
    torch.compile(model, backend="eager", fullgraph=True)(clip)
model(clip, labels=torch.tensor([3])).loss.backward()
import scipy.optimize, torchvision
from torch.nn.attention.flex_attention import flex_attention
x = torch.zeros(1, 2, 128, 16)
assert flex_attention(x, x, x).shape == x.shape
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_imports_are_not_searched_for_garbage_and_what_comes_later_is() -> None:
    script = """
import gc
from sta.cli.startup import start
collected = []
gc.callbacks.append(lambda phase, about: collected.append(phase))
start("sta.inference.predict", "vit-digits")
assert not collected
assert gc.isenabled()
frozen = gc.get_freeze_count()
assert frozen > 100_000
loop = []
loop.append(loop)
del loop
assert gc.collect() > 0
start("sta.inference.features", "vit-digits")  # in a process that has torch: nothing is kept
assert gc.get_freeze_count() == frozen
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (VideoMAEConfig, VideoMAEForVideoClassification),
        (VJEPA2Config, VJEPA2ForVideoClassification),
    ],
)
def test_a_folder_read_directly_is_what_transformers_reads(tmp_path, config, kind) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}
    if config is VJEPA2Config:
        small |= {
            "pred_hidden_size": 32,
            "pred_num_hidden_layers": 2,
            "pred_num_attention_heads": 2,
        }
    kind(config(**small)).half().save_pretrained(tmp_path)
    folder = Folder(str(tmp_path), {})
    direct = folder._direct(config, kind)
    theirs = kind.from_pretrained(tmp_path, dtype="float32").state_dict()
    assert direct is not None
    assert not direct.training
    own = direct.state_dict()
    assert own.keys() == theirs.keys()
    for name, tensor in own.items():
        assert torch.equal(tensor, theirs[name]), name
    config_of = kind.from_pretrained(tmp_path, dtype="float32").config
    assert direct.config._attn_implementation == config_of._attn_implementation
    assert direct.config.num_labels == 3


@pytest.mark.parametrize(("count", "width"), [(1568, 384), (98, 48), (7, 5)])
def test_positions_made_quickly_have_transformers_own_bits(count, width) -> None:
    theirs = modeling_videomae.get_sinusoid_encoding_table
    with quick_positions():
        quick = modeling_videomae.get_sinusoid_encoding_table(count, width)
    assert modeling_videomae.get_sinusoid_encoding_table is theirs
    assert torch.equal(quick, theirs(count, width))


def test_commands_that_run_batches_keep_their_memory(monkeypatch) -> None:
    called = []
    monkeypatch.setattr(sta.cli, "app", lambda: None)
    monkeypatch.setattr(sta.cli, "wait_passively", lambda: None)
    monkeypatch.setattr(sta.cli, "keep_memory", lambda: called.append(sys.argv[1]))
    for command in ("predict", "eval", "features", "watch", "models"):
        monkeypatch.setattr(sys, "argv", ["sta", command])
        sta.cli.main()
    assert called == ["predict", "eval", "features", "watch"]


def test_a_release_that_needs_what_is_left_out_is_imported_whole() -> None:
    script = """
import sys
from sta.cli import startup
startup._OPTIONAL += ("safetensors.torch",)  # transformers cannot do without
startup.import_transformers("vit-digits")
assert "transformers" not in sys.modules
from transformers.models.videomae import modeling_videomae
assert "torch._dynamo" in sys.modules
import sta, torch
sta.load("vit-digits")(torch.zeros(1, 16, 3, 64, 64))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
