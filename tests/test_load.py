"""Loading checkpoints: official VideoMAE files, folders, and everything that is neither."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import sta
from backbones import BACKBONES, output
from golden import CASES, official_file, tensors

CASE = "vit_01"
SETTINGS = {
    "num_attention_heads": CASES[CASE]["heads"],
    "image_size": CASES[CASE]["img"],
}


@torch.no_grad()
@pytest.mark.parametrize("wrapper", [None, "model", "module", "state_dict"])
def test_official_files_with_and_without_wrapper(wrapper: str | None, tmp_path: Path) -> None:
    model = sta.load(official_file(CASE, tmp_path / "x.pth", wrapper), **SETTINGS)
    data = tensors(CASE)
    logits = model(data["pixel_values"].transpose(1, 2)).logits
    torch.testing.assert_close(logits, data["logits_r0"], rtol=0, atol=1e-4)
    assert not model.training


def test_names_with_a_data_parallel_prefix(tmp_path: Path) -> None:
    state = torch.load(official_file(CASE, tmp_path / "x.pth"), weights_only=True)
    save_file({f"module.{k}": v for k, v in state.items()}, tmp_path / "x.safetensors")
    sta.load(tmp_path / "x.safetensors", **SETTINGS)


@torch.no_grad()
def test_a_saved_pruned_model_is_a_normal_checkpoint(tmp_path: Path) -> None:
    backbone = BACKBONES[0]
    model, clip = backbone.make(), backbone.clip()
    stock = output(model, clip)
    sta.apply(model, backbone.config)
    model.save_pretrained(tmp_path)
    loaded = sta.load(tmp_path)
    assert type(loaded) is type(backbone.make())
    assert torch.equal(output(loaded, clip), stock)


class Boom:
    def __reduce__(self) -> tuple:
        return os.system, ("touch /tmp/sta-must-not-exist",)


def test_pickled_code_never_runs(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.zeros(1)}, "args": Boom()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil\.pth.*run code"):
        sta.load(tmp_path / "evil.pth")
    assert not Path("/tmp/sta-must-not-exist").exists()


@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors", "empty.pth", "text.pth"])
def test_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "cut.safetensors":
        save_file({"a": torch.zeros(100)}, path)
    elif name == "cut.pth":
        torch.save({"a": torch.zeros(100)}, path)
    else:
        path.write_bytes(b"" if name == "empty.pth" else b"not a checkpoint at all")
    if name.startswith("cut"):
        path.write_bytes(path.read_bytes()[:-150])
    with pytest.raises(ValueError, match=name):
        sta.load(path)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.pth"):
        sta.load(tmp_path / "absent.pth")
    torch.save({"a": torch.zeros(2)}, tmp_path / "foreign.pth")
    with pytest.raises(ValueError, match=r"foreign\.pth: not a checkpoint of a known format"):
        sta.load(tmp_path / "foreign.pth")
    torch.save({"note": "hello"}, tmp_path / "words.pth")
    with pytest.raises(ValueError, match="holds no state dict"):
        sta.load(tmp_path / "words.pth")
    path = official_file(CASE, tmp_path / "x.pth")
    with pytest.raises(ValueError, match="num_attention_heads=5 does not divide"):
        sta.load(path, num_attention_heads=5)
    with pytest.raises(ValueError, match="not a field of VideoMAEConfig"):
        sta.load(path, number_of_heads=2)
    state = torch.load(path, weights_only=True)
    torch.save({k: v for k, v in state.items() if "norm2" not in k}, path)
    with pytest.raises(ValueError, match=r"x\.pth: does not fit.*missing .*layernorm_after"):
        sta.load(path, **SETTINGS)
    torch.save({k: v for k, v in state.items() if not k.startswith("head")}, path)
    with pytest.raises(ValueError, match="without classifier"):
        sta.load(path, **SETTINGS)
