"""Loading checkpoints: official VideoMAE files, folders, and everything that is neither."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchvision.models.video import SwinTransformer3d
from transformers import (
    AutoImageProcessor,
    AutoVideoProcessor,
    VideoMAEConfig,
    VideoMAEForPreTraining,
    VideoMAEImageProcessor,
    VivitConfig,
    VivitForVideoClassification,
    VivitImageProcessor,
    pipeline,
)

import sta
from backbones import BACKBONES, output
from golden import CASES, official_file, tensors
from inference_runs import make_videos, run, save_model
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import describe, load_video_model
from sta.inference.setup import Setup
from sta.video.views import ViewSpec, crop_offsets
from test_train import tiny_of

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


# Folders


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The folder of a tiny VideoMAE."""
    return Path(save_model(tmp_path / "model"))


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Edit the weights of a folder."""
    state = load_file(folder / "model.safetensors")
    edit(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def test_loading_is_quiet(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sta.load(saved)
    change(saved, lambda state: state.pop("classifier.bias"))
    sta.load(saved, new_head=True)
    assert capfd.readouterr() == ("", "")


def test_weights_that_a_folder_lacks_are_not_made_up(saved: Path) -> None:
    def edit(state: dict[str, Tensor]) -> None:
        del state["classifier.weight"], state["videomae.encoder.layer.1.output.dense.bias"]
        state["videomae.encoder.layer.0.output.dense.bias"] = torch.zeros(5)
        state["extra.bias"] = torch.zeros(5)

    change(saved, edit)
    with pytest.raises(ValueError, match=r"weights are not those of the model") as caught:
        sta.load(saved)
    message = str(caught.value)
    assert "missing classifier.weight, videomae.encoder.layer.1.output.dense.bias" in message
    assert "unknown extra.bias" in message
    assert "layer.0.output.dense.bias is (5,), expected (32,)" in message
    assert "\n" not in message
    with pytest.raises(ValueError, match=r"layer\.1\.output\.dense\.bias"):
        sta.load(saved, new_head=True)  # that is no head


@pytest.mark.parametrize("family", ["videomae", "swin3d"])
def test_a_new_head_is_allowed_for_training_alone(saved: Path, family: str) -> None:
    head = "classifier"
    if family == "swin3d":
        shutil.rmtree(saved)
        describe(swin(), CLIP).save(saved)
        head = "head"

    def behead(state: dict[str, Tensor]) -> None:
        del state[f"{head}.weight"]
        state[f"{head}.bias"] = torch.zeros(9)

    whole = sta.load(saved)
    change(saved, behead)
    with pytest.raises(ValueError, match=rf"missing {head}\.weight.*{head}\.bias is \(9,\)"):
        sta.load(saved)
    model = sta.load(saved, new_head=True).state_dict()
    for name, value in whole.state_dict().items():
        assert model[name].shape == value.shape
        assert torch.equal(model[name], value) or name.startswith(head)


def test_a_pretrained_encoder_gets_a_new_head(tmp_path: Path) -> None:
    config = VideoMAEConfig.from_pretrained(save_model(tmp_path / "classifier"))
    encoder = VideoMAEForPreTraining(config)
    encoder.save_pretrained(tmp_path / "encoder")
    with pytest.raises(ValueError, match="missing classifier"):
        sta.load(tmp_path / "encoder")
    model = sta.load(tmp_path / "encoder", new_head=True)
    for name, value in encoder.videomae.state_dict().items():
        assert torch.equal(model.videomae.state_dict()[name], value), name


def test_code_that_comes_with_a_model_never_runs(
    saved: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("there was a prompt"))
    mark = saved / "ran"
    (saved / "own.py").write_text(
        f"open({str(mark)!r}, 'w')\nclass Config: pass\nclass Model: pass"
    )
    config = json.loads((saved / "config.json").read_text())
    for given in (True, False):
        with pytest.raises(ValueError, match="trust_remote_code is not possible"):
            sta.load(saved, trust_remote_code=given)
    for kind in ("videomae", "their-own"):
        config |= {"model_type": kind, "auto_map": {"AutoConfig": "own.Config"}}
        config["auto_map"]["AutoModelForVideoClassification"] = "own.Model"
        (saved / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=r"config\.json: auto_map.*never run"):
            sta.load(saved)
    plain = {key: value for key, value in config.items() if key != "auto_map"}
    kernel = {**plain, "model_type": "videomae", "attn_implementation": "owner/kernel"}
    (saved / "config.json").write_text(json.dumps(kernel))
    with pytest.raises(ValueError, match="'owner/kernel' asks for code from the hub"):
        sta.load(saved)
    words = ("predict", "a.mp4", "--model", saved, "--set", "trust_remote_code=true")
    assert "trust_remote_code is not possible" in refused(*words)
    assert not mark.exists()
    del config["auto_map"]
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"model_type 'their-own'"):
        sta.load(saved)


def test_only_fields_of_the_config_can_be_set(saved: Path) -> None:
    with pytest.raises(ValueError, match="foo=1 is not a field of VideoMAEConfig"):
        sta.load(saved, foo=1)
    assert sta.load(saved, hidden_dropout_prob=0.5).config.hidden_dropout_prob == 0.5


def test_a_damaged_folder_is_one_line_of_error(saved: Path) -> None:
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    for part in (whole[: len(whole) // 2], whole[:4], b""):
        weights.write_bytes(part)
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged or incomplete") as one:
            sta.load(saved)
        assert "\n" not in str(one.value)
    weights.unlink()
    torch.save({"w": torch.zeros(1)}, saved / "checkpoint.pth")
    with pytest.raises(ValueError, match=r"no weights in it.*checkpoint\.pth"):
        sta.load(saved)
    torch.save({"classifier.bias": Boom()}, saved / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickle holds Python objects.*run code") as one:
        sta.load(saved)
    assert "\n" not in str(one.value)
    assert not Path("/tmp/sta-must-not-exist").exists()
    (saved / "pytorch_model.bin").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(ValueError, match=str(saved)):
        sta.load(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not readable as JSON"):
        sta.load(saved)
    (saved / "config.json").unlink()
    with pytest.raises(ValueError, match=r"not a folder that save_pretrained wrote"):
        sta.load(saved)


def test_half_precision_folders_load_as_float32(saved: Path) -> None:
    sta.load(saved).half().save_pretrained(saved)
    assert sta.load(saved).dtype == torch.float32


CLIP = ClipSpec(ViewSpec(8, 3, 32, 2, 1, "uniform"), "CTHW", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def swin() -> SwinTransformer3d:
    return SwinTransformer3d(
        [2, 4, 4], 8, [1, 2], [1, 2], [4, 2, 2], 3.0, 0.1, 0.2, 0.3, num_classes=3
    )


@torch.no_grad()
def test_a_video_swin_is_a_folder_too(tmp_path: Path) -> None:
    model = swin().eval()
    describe(model, CLIP, ("a", "b", "c")).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "swin3d"
    assert config["id2label"] == {"0": "a", "1": "b", "2": "c"}
    given = {"dropout": 0.1, "attention_dropout": 0.2, "stochastic_depth_prob": 0.3}
    given |= {"mlp_ratio": 3.0, "window_size": [4, 2, 2], "depths": [1, 2], "num_classes": 3}
    assert {key: config[key] for key in given} == given
    loaded = load_video_model(str(tmp_path))
    assert (loaded.clip, loaded.class_names) == (CLIP, ("a", "b", "c"))
    clip = torch.randn(CLIP.shape())
    assert torch.equal(sta.load(tmp_path)(clip), model(clip))
    with pytest.raises(ValueError, match="foo=1 is not an argument of SwinTransformer3d"):
        sta.load(tmp_path, foo=1)


# What preprocessor_config.json says


def preprocessed(folder: Path, frames: NDArray[np.uint8]) -> Tensor:
    """Pixels as transformers' pipeline makes them."""
    pipe = pipeline("video-classification", model=str(folder))
    return pipe.video_processor(list(frames), return_tensors="pt").pixel_values


@pytest.mark.parametrize("family", ["videomae", "vivit"])
@pytest.mark.parametrize("fields", [{}, {"do_normalize": False}, {"rescale_factor": 0.01}])
def test_pixels_are_those_of_transformers_own_pipeline(
    saved: Path, family: str, fields: dict[str, object]
) -> None:
    kinds = {"videomae": VideoMAEImageProcessor, "vivit": VivitImageProcessor}
    if family == "vivit":
        config = VivitConfig(
            image_size=32, num_frames=4, tubelet_size=[2, 16, 16], hidden_size=16, num_labels=2,
            num_hidden_layers=1, num_attention_heads=1, intermediate_size=16,
        )  # fmt: skip
        VivitForVideoClassification(config).save_pretrained(saved)
    kinds[family](
        size={"shortest_edge": 40},
        crop_size={"height": 32, "width": 32},
        image_mean=[0.5, 0.4, 0.3],
        image_std=[0.5, 0.6, 0.7],
        **fields,
    ).save_pretrained(saved)
    frames = np.random.default_rng(0).integers(0, 256, (4, 40, 60, 3), dtype=np.uint8)
    clip = load_video_model(str(saved)).clip
    assert (clip.views.size, clip.views.short_side) == (32, 40)
    top, left = crop_offsets(40, 60, replace(clip.views, spatial=1))[0]
    ours = clip.pixels(frames[None, :, top : top + 32, left : left + 32])
    torch.testing.assert_close(ours, preprocessed(saved, frames), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["videomae", "vivit", "vjepa2"])
def test_what_is_saved_gives_transformers_the_same_pixels(tmp_path: Path, family: str) -> None:
    video_model = describe(tiny_of(family))
    video_model.save(tmp_path)
    clip = load_video_model(str(tmp_path)).clip
    assert clip == video_model.clip
    assert clip.views.short_side == (36 if family == "vjepa2" else None)
    side = clip.views.short_side or clip.views.size
    frames = np.random.default_rng(0).integers(0, 256, (8, side, side, 3), dtype=np.uint8)
    processor = AutoVideoProcessor.from_pretrained(tmp_path)
    [theirs] = processor(list(frames), return_tensors="pt").values()
    first = (side - 32) // 2
    ours = clip.pixels(frames[None, :, first : first + 32, first : first + 32])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def preprocessor(folder: Path, **fields: object) -> Path:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crop_size": {"height": 64, "width": 64}}, "crop_size is 64, but the model's image_size"),
        ({"crop_size": {"height": 32, "width": 64}}, "crop_size is 32 x 64; crops are square"),
        ({"size": {"shortest_edge": 24}, "crop_size": 32}, "short_side=24 is not possible"),
        ({"size": {"height": 32, "width": 32}}, "keeps their shape: expected"),
        ({"clip": {"frames": 8}}, r"clip\.frames is 8, but the model's num_frames is 4"),
        ({"clip": {"stride": 0}}, "clip: stride=0 is not possible"),
        ({"clip": {"pace": 1}}, "clip has pace; use frames, stride"),
        ({"clip": 3}, "clip is 3; use frames, stride"),
        ({"image_mean": [0.5], "image_std": [1, 1, 1]}, "image_mean is .*expected three numbers"),
        ({"image_mean": [0, 0, 0], "image_std": 0}, "image_std is 0; expected three numbers"),
    ],
)
def test_what_contradicts_the_model_is_named(
    saved: Path, fields: dict[str, object], message: str
) -> None:
    path = preprocessor(saved, **fields)
    with pytest.raises(ValueError, match=message) as caught:
        sta.load(saved)
    assert str(path) in str(caught.value)


def test_clips_are_cut_as_the_folder_says(saved: Path) -> None:
    before = load_video_model(str(saved)).clip
    cut = {"frames": 4, "stride": 3, "sampling": "uniform", "temporal": 1, "spatial": 1}
    preprocessor(saved, clip=cut)
    clip = load_video_model(str(saved)).clip
    assert clip.views == ViewSpec(4, 3, 32, 1, 1, "uniform")
    assert (clip.mean, clip.std) == (before.mean, before.std)  # not said, so the model's


def test_a_folder_says_its_views_and_eval_takes_them(saved: Path, tmp_path: Path) -> None:
    videos = make_videos(tmp_path / "videos", 2)
    load_video_model(str(saved)).save(saved)  # views of VideoMAE on Kinetics
    for views in ((5, 3), (1, 1)):
        video_model = load_video_model(str(saved))
        changed = replace(video_model.clip.views, temporal=views[0], spatial=views[1])
        video_model.clip = replace(video_model.clip, views=changed)
        video_model.save(saved)
        setup = Setup.make(str(saved))
        assert (setup.spec.temporal, setup.spec.spatial) == views
        result = run("eval", videos / "list.txt", "--model", saved)
        assert result.exit_code == 0, result.output
    AutoImageProcessor.from_pretrained(saved)  # is still transformers' own


def test_a_hub_model_has_its_preprocessor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sta.backbones.zoo.fetch.hub_answers", lambda: False)
    folder = tmp_path / "models--owner--name"
    saved = save_model(folder / "snapshots" / ("0" * 40))
    preprocessor(Path(saved), image_mean=[0.5] * 3, image_std=[0.25] * 3)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    clip = load_video_model("owner/name", cache_dir=tmp_path).clip
    assert (clip.mean, clip.std) == ((0.5,) * 3, (0.25,) * 3)
