"""The embedded models: their training goes on after a kill, and what is exported loads again."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tools.digits import export as exporting
from tools.digits.models import SETTINGS, build
from tools.digits.train import (
    CHECKPOINT,
    Recipe,
    Run,
    clip_of,
    factored_loss,
    hits,
    marginals,
)

import sta
from sta.backbones.zoo import embedded
from sta.measure.stats import wilson
from sta.train.clips import FileClips
from sta.video import ViewSpec
from sta.video.digits import CLASS_NAMES, COLOURS, DigitActions, write_videos
from sta.video.views import clip_indices

SMALL = {
    "vit": {**SETTINGS["vit"], "hidden_size": 16, "num_hidden_layers": 1, "patch_size": 16},
    "swin": {
        **SETTINGS["swin"],
        "embed_dim": 8,
        "depths": [1, 1],
        "num_heads": [1, 2],
        "patch_size": [4, 8, 8],
    },
}


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    for name, settings in SMALL.items():
        monkeypatch.setitem(SETTINGS, name, settings)


@pytest.fixture(params=["vit", "swin"])
def backbone(request):
    return request.param


def test_heads_of_an_untrained_vit_look_at_a_neighbour():
    """From the positions alone, every second head finds the token so many places away."""
    torch.manual_seed(0)
    model = build("vit", embedded.facts("vit-digits")["settings"]).eval()
    positions = model.videomae.embeddings.position_embeddings  # (1, 512, 128)
    found = []
    for layer in model.videomae.encoder.layer:
        attention = layer.attention.attention
        query, key = (
            project(positions).unflatten(-1, (4, 32)).transpose(1, 2)[0]
            for project in (attention.query, attention.key)
        )
        ahead = (query @ key.transpose(-1, -2)).argmax(-1) - torch.arange(512)  # (4, 512)
        inside = ahead[:, 192:-192]
        usual = inside.mode(-1).values.unsqueeze(-1)
        found.append(((inside - usual).abs() <= 1).float().mean(-1))
    looking, free = torch.stack(found)[:, ::2], torch.stack(found)[:, 1::2]
    assert looking.min() > 0.9
    assert free.max() < 0.5


def test_marginals_are_sums_of_the_joint_probabilities():
    logits = torch.randn(5, len(CLASS_NAMES))
    joint = logits.softmax(-1)
    motion, colour = marginals(logits)
    for label in (0, 13, 79):
        same_motion = [k for k in range(80) if k // 10 == label // 10]
        same_colour = [k for k in range(80) if k % 10 == label % 10]
        torch.testing.assert_close(motion.exp()[:, label // 10], joint[:, same_motion].sum(-1))
        torch.testing.assert_close(colour.exp()[:, label % 10], joint[:, same_colour].sum(-1))


def test_the_loss_rewards_each_factor_on_its_own():
    label = torch.tensor([25])
    losses = []
    for guess in (25, 25 + len(COLOURS), 26, 37):  # right, wrong motion, wrong colour, both wrong
        logits = torch.zeros(1, len(CLASS_NAMES))
        logits[0, guess] = 8.0
        losses.append(factored_loss(logits, label).item())
        assert hits(logits, label).T.tolist() == [
            [guess == 25, guess // 10 == 2, guess % 10 == 5],
        ]
    assert losses[0] < losses[1] < losses[3]
    assert losses[0] < losses[2] < losses[3]


def test_lessons_come_in_their_order(tmp_path):
    recipe = Recipe(clips=64, easy=16, circling=(32, 48), batch=16)
    run = Run("vit", tmp_path, recipe)
    ordinary = DigitActions("train", 64)
    for step in range(4):
        run.step = step
        indices = range(16 * step, 16 * step + 16)
        pixels, labels = run.clips()
        assert pixels.shape[0] == 16
        circling = torch.isin(labels // len(COLOURS), torch.tensor([4, 5]))
        if step == 2:
            assert circling[:12].all()
            assert len(set(labels[:12].tolist())) > 6  # of both ways, in several colours
            assert labels[12:].tolist() == ordinary.labels(indices[12:]).tolist()
        else:
            assert labels.tolist() == ordinary.labels(indices).tolist()
        same = pixels == clip_of(run.model).pixels(ordinary.batch(indices)[0])
        as_ordinary = same.flatten(1).all(1).tolist()
        assert as_ordinary == [step != 0 and not (step == 2 and i < 12) for i in range(16)]


def test_a_killed_run_goes_on_where_it_was(tmp_path, backbone):
    recipe = Recipe(clips=24, batch=4, warmup=2)
    whole = Run(backbone, tmp_path / "whole", recipe)
    for _ in range(4):
        whole.learn(*whole.clips())
    first = Run(backbone, tmp_path / "run", recipe)
    for _ in range(2):
        first.learn(*first.clips())
    first.save()
    first.learn(*first.clips())  # lost in the kill
    second = Run(backbone, tmp_path / "run", recipe)
    second.resume()
    assert second.step == 2
    for _ in range(2):
        second.learn(*second.clips())
    for name, value in whole.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], value), name
    average = second.averaged.module.state_dict()
    for name, value in whole.averaged.module.state_dict().items():
        assert torch.equal(average[name], value), name


def test_a_run_ends_and_refuses_another_models_checkpoint(tmp_path, capsys):
    recipe = Recipe(clips=12, batch=4, warmup=1)
    Run("vit", tmp_path, recipe).train(log_every=1)
    assert "clips 12 " in capsys.readouterr().out
    again = Run("vit", tmp_path, recipe)
    again.resume()
    assert again.step == again.recipe.steps == 3
    with pytest.raises(ValueError, match=r"is of 'vit', not 'swin'"):
        Run("swin", tmp_path, recipe).resume()


def test_an_exported_model_is_the_averaged_one_in_half_precision(tmp_path, backbone):
    run = Run(backbone, tmp_path / "run", Recipe(clips=8, batch=4, warmup=1))
    run.train()
    name = exporting.export(tmp_path / "run", tmp_path / "out", clips=16, note="Stopped once.")
    assert name == f"{backbone}-digits"
    model = embedded.load(name, tmp_path / "out")
    assert not model.training
    by_path = sta.load(tmp_path / "out" / f"{name}.safetensors").state_dict()
    assert all(torch.equal(value, by_path[key]) for key, value in model.state_dict().items())
    with pytest.raises(ValueError, match=r"settings are known, num_frames cannot be changed"):
        sta.load(tmp_path / "out" / f"{name}.safetensors", num_frames=8)
    for key, value in run.averaged.module.state_dict().items():
        expected = value.half().float() if value.is_floating_point() else value
        assert torch.equal(model.state_dict()[key], expected), key
    about = embedded.facts(name, tmp_path / "out")
    assert about["labels"] == list(CLASS_NAMES)
    assert about["training"]["clips"] == 8
    assert about["accuracy"] == {"clips": 16, **exporting.accuracy(model, 16, batch=5)}
    card = embedded.card(name, tmp_path / "out")
    assert f"python -m tools.digits.train {backbone} --clips 8" in card
    assert "Stopped once." in card


def test_accuracy_counts_right_clips():
    class Oracle(torch.nn.Module):
        """Knows the labels of the first clips; gives the colour wrong in every fourth."""

        def __init__(self) -> None:
            super().__init__()
            self.numbers = itertools.count()

        def forward(self, pixels):
            rows = []
            for number in itertools.islice(self.numbers, len(pixels)):
                label = int(DigitActions("test").labels([number])[0])
                motion, colour = divmod(label, 10)
                colour = (colour + (number % 4 == 0)) % 10
                rows.append(motion * 10 + colour)
            return torch.nn.functional.one_hot(torch.tensor(rows), 80).float() * 9

    measured = exporting.accuracy(Oracle(), clips=16, batch=6)
    assert measured["motion"][0] == 1.0
    assert measured["joint"] == measured["colour"] == [0.75, *wilson(12, 16)]


def test_what_cannot_be_exported_or_loaded_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=CHECKPOINT):
        exporting.export(tmp_path, tmp_path)
    with pytest.raises(ValueError, match="'nothing' is not an embedded model"):
        embedded.load("nothing")
    with pytest.raises(ValueError, match=r"backbone 'cnn'.*vit, swin"):
        build("cnn")
    Run("vit", tmp_path / "run", Recipe(clips=8, batch=4)).save()
    exporting.export(tmp_path / "run", tmp_path, clips=4)
    file = tmp_path / "vit-digits.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"vit-digits\.safetensors: not a readable checkpoint"):
        embedded.load("vit-digits", tmp_path)
    (tmp_path / "vit-digits.json").write_text(json.dumps({})[:1])
    with pytest.raises(ValueError, match=r"vit-digits\.json: damaged"):
        embedded.facts("vit-digits", tmp_path)


def test_wilson_agrees_with_known_intervals():
    # Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for counts, interval in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0000, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson(*counts) == pytest.approx(interval, abs=5e-5)
    with pytest.raises(ValueError, match="3 hits of 2"):
        wilson(3, 2)


# Files as training data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("digits")
    for _ in write_videos(DigitActions("test", size=4), out):
        pass
    return out


def test_files_give_the_clips_they_were_written_from(folder):
    clips = FileClips(str(folder / "test.txt"), ViewSpec(16, 1, 64), class_names=CLASS_NAMES)
    data = DigitActions("test", size=4)
    assert len(clips) == 4
    for index in range(4):
        (frames, label), (same, right) = clips[index], data[index]
        assert label == right
        assert (frames == same).all()


def test_training_clips_lie_anywhere_in_time_and_space(folder):
    clips = FileClips(
        str(folder / "test.txt"), ViewSpec(4, 2, 48), class_names=CLASS_NAMES, training=True
    )
    torch.manual_seed(0)
    shots = [clips[0][0] for _ in range(6)]
    assert {shot.shape for shot in shots} == {(4, 48, 48, 3)}
    assert len({shot.tobytes() for shot in shots}) == 6


@given(
    st.integers(1, 200),
    st.integers(1, 16),
    st.integers(1, 5),
    st.floats(0, 1),
    st.sampled_from(["strided", "uniform", "centred"]),
)
def test_a_placed_clip_stays_in_its_video(length, frames, stride, place, sampling):
    spec = ViewSpec(frames, stride, 8, sampling=sampling, place=place)
    (clip,) = clip_indices(length, spec)
    assert clip.min() >= 0
    assert clip.max() < length
    assert (clip[1:] >= clip[:-1]).all()
    if sampling != "uniform" and length > (frames - 1) * stride:
        assert (clip[1:] - clip[:-1] == stride).all()
        if place in (0, 1):
            assert clip[0] == 0 if place == 0 else clip[-1] == length - 1


def test_labels_outside_the_models_range_are_named(folder):
    with pytest.raises(ValueError, match=r"is not a class of the model.*0\.\.2.*--classes"):
        FileClips(str(folder / "test.txt"), ViewSpec(16, 1, 64), class_names=CLASS_NAMES[:3])
    (folder / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.txt: the list is empty"):
        FileClips(str(folder / "empty.txt"), ViewSpec(16, 1, 64), class_names=CLASS_NAMES)
