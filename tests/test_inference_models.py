"""What inference finds out about a model: clips, class names, methods."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tools.digits.models import build
from tools.digits.train import marginals
from transformers import VivitConfig, VivitForVideoClassification
from typer.testing import CliRunner

import sta
from inference_runs import NAMES
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import describe, fingerprint, load_video_model, view_spec
from sta.cli import app
from sta.inference.setup import Setup
from sta.measure.matching import methods_at
from sta.video.digits import DigitActions
from sta.video.views import ViewSpec


def test_a_saved_model_tells_its_clips_and_classes(folder):
    video_model = load_video_model(folder)
    assert video_model.class_names == NAMES
    assert video_model.clip.shape(2) == (2, 4, 3, 32, 32)
    assert video_model.family == "vit"


def test_names_of_the_zoo_know_their_protocol():
    small = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    video_model = load_video_model("vit-s-ssv2", random_weights=True, image_size=64, **small)
    assert video_model.clip.views.sampling == "uniform"
    assert (video_model.clip.views.frames, video_model.clip.views.size) == (16, 64)
    assert len(video_model.class_names) == 174
    again = load_video_model("vit-s-ssv2", random_weights=True, image_size=64, **small)
    for one, other in zip(video_model.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_swin_has_kinetics_names_and_its_own_layout():
    small = {"embed_dim": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}
    video_model = load_video_model("swin-t", random_weights=True, **small)
    assert video_model.class_names[:2] == ("abseiling", "air drumming")
    assert video_model.clip.shape() == (1, 3, 32, 224, 224)
    assert video_model.family == "swin"


def test_vivit_has_its_own_pixels():
    config = VivitConfig(
        image_size=32,
        num_frames=8,
        tubelet_size=[2, 16, 16],
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=16,
    )
    clip = describe(VivitForVideoClassification(config)).clip
    assert (clip.mean, clip.std) == ((0.5,) * 3, (0.5,) * 3)
    assert (clip.views.frames, clip.views.size) == (8, 32)


def test_views_are_the_models_the_data_sets_or_the_users(folder):
    video_model = load_video_model(folder)
    assert view_spec(video_model).views == 15
    spec = view_spec(video_model, protocol="ssv2")
    assert (spec.sampling, spec.temporal, spec.spatial) == ("uniform", 2, 3)
    assert (spec.frames, spec.size) == (4, 32)  # what the model can take
    spec = view_spec(video_model, protocol="k400", views="1x1", stride=7)
    assert (spec.views, spec.stride, spec.frames, spec.size) == (1, 7, 4, 32)


def test_only_a_model_without_fixed_positions_takes_other_clips(folder):
    video_model = load_video_model(folder)
    with pytest.raises(ValueError, match="frames=8: this model takes clips of 4 frames"):
        view_spec(video_model, frames=8)
    with pytest.raises(ValueError, match="size=40: this model takes clips of 32 pixels"):
        view_spec(video_model, size=40)
    swin = describe(build("swin"))
    spec = view_spec(swin, frames=8, size=40)
    assert (spec.frames, spec.size) == (8, 40)


def test_weights_are_told_apart(folder):
    video_model = load_video_model(folder)
    before = fingerprint(video_model.model)
    assert fingerprint(sta.apply(load_video_model(folder).model, sta.STAConfig(r=3))) == before
    assert fingerprint(load_video_model(folder).model.half()) != before
    weight = video_model.model.classifier.weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))  # by one bit
    assert fingerprint(video_model.model) != before


def test_methods_without_drops_are_one():
    found = methods_at(["sta", "random", "dense"], [0, 32])
    assert list(found) == [("sta", 0), ("sta", 32), ("random", 32), ("dense", 0)]
    assert found["sta", 0] is None
    assert found["random", 32] == sta.RandomConfig(r=32)
    assert found["dense", 0] == sta.DenseConfig()
    assert list(methods_at(["sta"], [64])) == [("sta", 64)]
    found = methods_at(["paper", "sta"], [0, 8])
    assert found == {
        ("paper", 0): None,
        ("paper", 8): sta.STAConfig.paper(8),
        ("sta", 8): sta.STAConfig(r=8),
    }


def test_a_config_file_is_a_method_too(tmp_path, folder):
    config = sta.STAConfig(r=3, temperature=0.1)
    config.to_file(tmp_path / "tuned.json")
    setup = Setup.make(folder, methods=[], config=tmp_path / "tuned.json")
    assert setup.methods == {("sta", 3): config}
    assert setup.about()["settings"][0]["temperature"] == 0.1


@pytest.mark.parametrize("source", ["digits", "digits-jitter"])
def test_eval_digits_counts_what_the_model_says(tmp_path, source):
    table = tmp_path / "table.json"
    words = ("eval", source, "--clips", "24", "--r", "0", "16", "--json", str(table))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    stock, pruned = json.loads(table.read_text())
    assert (stock["clips"], stock["agreement"]) == (24, 1.0)
    assert pruned["gflops"] < stock["gflops"]
    shaken = source == "digits-jitter"
    frames, labels = DigitActions("test", camera_jitter=shaken).batch(range(24))
    video_model = load_video_model("vit-digits")
    with torch.no_grad():
        scores = video_model.model(video_model.clip.pixels(frames)).logits.softmax(-1)
    motion, colour = (part.argmax(-1).numpy() for part in map(torch.exp, marginals(scores.log())))
    assert stock["top1"] == pytest.approx((scores.argmax(-1).numpy() == labels).mean())
    assert stock["motion"] == pytest.approx((motion == labels // 10).mean())
    assert stock["colour"] == pytest.approx((colour == labels % 10).mean())


def test_digits_need_a_model_of_digits(folder):
    from sta.inference.evaluate import evaluation

    setup = Setup.make(folder)
    with pytest.raises(ValueError, match="it has 6 classes and takes 4 frames of 32 pixels"):
        evaluation("digits", setup, setup.run())


@pytest.mark.parametrize("layout", ["TCHW", "CTHW"])
def test_pixels_are_the_same_in_memory_that_is_used_again(layout):
    spec = ClipSpec(ViewSpec(frames=2, stride=1, size=8), layout)
    first, second = np.random.default_rng(0).integers(0, 256, (2, 3, 2, 8, 8, 3), dtype=np.uint8)
    buffer = spec.pixels(first)
    again = spec.pixels(second, out=buffer)
    assert again is buffer
    assert torch.equal(again, spec.pixels(second))
    channels = second.astype(np.float32).transpose(0, 1, 4, 2, 3)  # (B, T, 3, H, W)
    mean, std = (np.array(of, np.float32)[:, None, None] for of in (spec.mean, spec.std))
    own = again if layout == "TCHW" else again.transpose(1, 2)
    np.testing.assert_allclose(own.numpy(), (channels / 255 - mean) / std, atol=1e-5)
    smaller = spec.pixels(first[:1], out=buffer)  # a last batch that is not full
    assert torch.equal(smaller, spec.pixels(first[:1]))
    assert torch.equal(buffer, spec.pixels(second))
