"""Training: the recipe's parts do what they say, and a stopped run goes on where it was."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from tools.digits.models import build, look_around
from torch import nn
from torch.nn import functional as F
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import sta
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import describe, load_video_model
from sta.train import TrainConfig
from sta.train.augment import ClipAugment, Mix
from sta.train.clips import AugmentedClips
from sta.train.head import classes_of, fresh, replace_head
from sta.train.loop import Trainer, train
from sta.train.optimizer import parameter_groups
from sta.video.decode import VideoError
from sta.video.views import ViewSpec

PLAIN = {"mixup": 0, "cutmix": 0, "randaugment": 0, "flip": 0, "label_smoothing": 0, "repeats": 1}


class BrightOrDark:
    """Clips of 4 frames of 16x16 pixels: class 1 is bright, class 0 dark."""

    def __init__(self, size: int = 24) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        label = index % 2
        noise = np.random.default_rng(index).integers(0, 80, (4, 16, 16, 3))
        return (noise + 160 * label).astype(np.uint8), label


def tiny(classes: int = 2) -> VideoMAEForVideoClassification:
    torch.manual_seed(0)
    config = VideoMAEConfig(
        image_size=16,
        patch_size=4,
        num_frames=4,
        tubelet_size=2,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=classes,
    )
    return VideoMAEForVideoClassification(config)


def tiny_run(**changes: object) -> TrainConfig:
    settings = {"epochs": 3, "warmup_epochs": 1, "batch": 8, "base_rate": 0.03, "log_every": 3}
    return TrainConfig(**{**settings, **changes})


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    AcceleratorState._reset_state()


# The recipe


def test_the_rate_rises_in_line_and_falls_as_a_cosine(tmp_path):
    config = tiny_run(**PLAIN, epochs=11, warmup_epochs=1, batch=2)  # 12 steps per epoch
    trainer = Trainer(describe(tiny()), BrightOrDark(), config, tmp_path, None)
    rates = []
    for _ in range(11 * 12):
        rates.append(trainer.schedule.get_last_lr()[0] / config.rate(processes=1))
        trainer.optimizer.step()
        trainer.schedule.step()
    np.testing.assert_allclose(rates[:12], np.arange(12) / 12)
    assert rates[12] == 1
    assert rates[72] == pytest.approx(0.5)
    assert all(a > b for a, b in itertools.pairwise(rates[12:]))
    assert rates[-1] < 0.001


def test_the_rate_scales_with_the_clips_of_all_processes():
    assert TrainConfig(batch=32).rate(processes=8) == pytest.approx(1e-3)
    assert TrainConfig(batch=32).rate(processes=4) == pytest.approx(0.5e-3)


def test_only_matrices_decay():
    model = tiny()
    decaying, others = parameter_groups(model, 1e-3, 0.05)
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.05, 0.0)
    assert {p.ndim for p in others["params"]} == {1}
    count = sum(p.numel() for g in (decaying, others) for p in g["params"])
    assert count == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_tables_of_position_biases_do_not_decay_and_have_their_own_rate():
    groups = parameter_groups(build("swin"), 0.5, 0.05, position_scale=10.0)
    (tables,) = [group for group in groups if group["lr"] == 5.0]
    assert tables["weight_decay"] == 0.0
    assert {p.shape[0] for p in tables["params"]} == {15 * 7 * 7}  # offsets in an 8x4x4 window
    assert len(tables["params"]) == 11  # one per block


def test_every_swin_head_starts_by_looking_at_a_neighbour():
    table = nn.Parameter(torch.zeros(15 * 7 * 7, 6))
    look_around(table, (8, 4, 4))
    for bias in table.detach().reshape(15, 7, 7, 6).unbind(-1):
        place = np.array(np.unravel_index(int(bias.argmax()), bias.shape))
        assert np.abs(place - (7, 3, 3)).max() <= 2
        assert bias.max() > bias.mean() + 1  # a look at one place, not at all alike
    assert len({int(place) for place in table.argmax(0)}) > 1  # heads differ


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ({"epochs": 0}, "epochs=0.*1 or more"),
        ({"flip": 1.5}, "flip=1.5.*from 0 to 1"),
        ({"randaugment": 30}, "randaugment=30.*from 0 to 10"),
        ({"precision": "int8"}, "precision='int8'.*bf16"),
        ({"batch": 7}, "batch=7.*multiple of 2"),
        ({"r": -1}, "r=-1.*0 or more"),
    ],
)
def test_impossible_settings_are_named(setting, allowed):
    with pytest.raises(ValueError, match=allowed):
        TrainConfig(**setting)


# Augmentation


def test_all_frames_of_a_clip_change_alike():
    frame = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    augment = ClipAugment(TrainConfig())
    changed = 0
    for _ in range(20):
        clip = augment(frame.repeat(4, 1, 1, 1))
        assert clip.dtype == torch.uint8
        assert (clip == clip[:1]).all()
        changed += int((clip[:1] != frame).any())
    assert changed > 10


def test_without_colour_operations_a_red_clip_stays_red():
    red = torch.tensor([168, 98, 108], dtype=torch.uint8)
    clip = red.view(1, 3, 1, 1).expand(2, 3, 24, 24)
    far = []
    for colour in (False, True):
        augment = ClipAugment(TrainConfig(colour=colour, flip=0))
        distances = []
        for _ in range(60):
            seen = augment(clip).double().permute(0, 2, 3, 1).reshape(-1, 3)
            # Moved edges show the grey fill, and a thin blend of the two.
            share = ((seen - 128) @ (red - 128.0).double()) / (red - 128.0).square().sum()
            on_line = 128 + share[:, None] * (red - 128.0)
            distances.append((seen - on_line).abs().amax(1).quantile(0.8).item())
        far.append(max(distances))
    assert far[0] <= 2
    assert far[1] > 20


def test_flip_is_mirroring_and_can_be_turned_off():
    clip = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    always, never = (ClipAugment(TrainConfig(randaugment=0, flip=flip)) for flip in (1.0, 0.0))
    assert (always(clip) == clip.flip(-1)).all()
    assert all((never(clip) == clip).all() for _ in range(20))


@pytest.mark.parametrize("ways", [{"mixup": 0}, {"cutmix": 0}, {}])
def test_mixed_targets_are_the_shares_of_the_pixels(ways):
    labels = torch.tensor([0, 1, 2, 3])
    values = torch.tensor([0.0, 1.0, 10.0, 100.0])
    pixels = values.view(4, 1, 1, 1, 1).expand(4, 2, 3, 16, 16)
    mix = Mix(TrainConfig(**ways, label_smoothing=0), classes=4)
    mixed_up = 0
    for _ in range(20):
        mixed, targets = mix(pixels, labels)
        torch.testing.assert_close(mixed.mean(dim=(1, 2, 3, 4)), targets @ values)
        torch.testing.assert_close(targets.sum(-1), torch.ones(4))
        mixed_up += int((targets.max() < 1).item())
    assert mixed_up > 5


def test_smoothing_spreads_its_share_over_all_classes():
    _, targets = Mix(TrainConfig(mixup=0, cutmix=0), classes=5)(
        torch.zeros(1, 2, 3, 4, 4), torch.tensor([2])
    )
    np.testing.assert_allclose(targets[0], [0.02, 0.02, 0.92, 0.02, 0.02], rtol=1e-5)


def test_copies_differ_and_are_the_same_whoever_draws_them():
    clips = AugmentedClips(BrightOrDark(), ClipAugment(TrainConfig()), repeats=4, seed=0)
    torch.manual_seed(1)
    first, labels, _ = clips[0, 5]
    after = torch.rand(3)
    torch.manual_seed(2)
    again, *_ = clips[0, 5]
    assert first.shape == (4, 4, 3, 16, 16)
    assert labels.tolist() == [1, 1, 1, 1]
    assert (first == again).all()
    assert len({copy.numpy().tobytes() for copy in first}) > 1
    assert any((clips[epoch, 5][0] != first).any() for epoch in (1, 2))
    torch.manual_seed(1)
    assert (torch.rand(3) == after).all(), "the loader leaves torch's generator alone"


# The loop


def test_training_learns_and_saves_the_model(tmp_path):
    model = tiny()
    config = tiny_run(**PLAIN, epochs=4)
    history = train(describe(model), BrightOrDark(), config, tmp_path, evaluation=BrightOrDark(8))
    assert [row["epoch"] for row in history] == [0, 1, 2, 3]
    assert history[-1]["loss"] < 0.85 * history[0]["loss"]
    assert history[-1]["top1"] == 1.0
    assert list((tmp_path / "log").rglob("events*")), "TensorBoard has something to show"
    saved = VideoMAEForVideoClassification.from_pretrained(tmp_path / "model")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(saved.state_dict()[name], value)


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    config = tiny_run(epochs=2, save_every=2)  # with all augmentation, 6 steps per epoch
    whole = tiny()
    expected = train(describe(whole), BrightOrDark(), config, tmp_path / "whole")

    taken, step = [], Trainer._step

    def stopping(self, videos, labels):
        if len(taken) == 9:  # in the second epoch, after the checkpoint of step 8
            raise KeyboardInterrupt
        taken.append(labels)
        return step(self, videos, labels)

    monkeypatch.setattr(Trainer, "_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(describe(tiny()), BrightOrDark(), config, tmp_path / "stopped")
    monkeypatch.undo()
    resumed = tiny()
    history = train(describe(resumed), BrightOrDark(), config, tmp_path / "stopped")
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
    for row, same in zip(history, expected, strict=True):
        assert (row["epoch"], row["loss"]) == (same["epoch"], same["loss"])


def test_a_finished_run_is_not_trained_again_unless_asked(tmp_path, capsys):
    config = tiny_run(**PLAIN, epochs=1)
    steps = []
    first = train(describe(tiny()), BrightOrDark(), config, tmp_path, progress=steps.append)
    assert [now.done for now in steps] == list(range(1, steps[0].total + 1))
    assert train(describe(tiny()), BrightOrDark(), config, tmp_path) == first
    assert "nothing is left to train" in capsys.readouterr().out
    with pytest.raises(ValueError, match="the run has r=0, not 4"):
        train(describe(tiny()), BrightOrDark(), tiny_run(**PLAIN, epochs=2, r=4), tmp_path)
    anew = train(describe(tiny()), BrightOrDark(), config, tmp_path, resume=False)
    assert anew[0]["loss"] == first[0]["loss"]
    assert anew[0]["seconds"] != first[0]["seconds"]


def test_training_with_r_drops_tokens_and_leaves_a_plain_model(tmp_path):
    model, lengths = tiny(), []
    handle = model.videomae.encoder.layer[-1].register_forward_pre_hook(
        lambda module, args: lengths.append(args[0].shape[1])
    )
    config = tiny_run(**PLAIN, epochs=1, r=4)
    train(describe(model), BrightOrDark(), config, tmp_path)
    handle.remove()
    assert set(lengths) == {2 * (16 - 4 - 2)}  # 2 frames of 16 tokens, r and r/2 dropped before
    clip = torch.randn(1, 4, 3, 16, 16)
    model.eval()
    dense = VideoMAEForVideoClassification.from_pretrained(tmp_path / "model").eval()
    torch.testing.assert_close(model(clip).logits, dense(clip).logits)


def test_mixed_precision_trains(tmp_path):
    history = train(describe(tiny()), BrightOrDark(), tiny_run(**PLAIN, precision="bf16"), tmp_path)
    assert history[-1]["loss"] < history[0]["loss"]


def test_swin_trains_too(tmp_path):
    from torchvision.models.video import SwinTransformer3d

    torch.manual_seed(0)
    model = SwinTransformer3d([2, 2, 2], 8, [1, 1], [1, 2], [2, 2, 2], num_classes=2)
    config = tiny_run(**PLAIN, base_rate=0.01, r=0)
    clip = ClipSpec(ViewSpec(4, 1, 16, sampling="uniform"), "CTHW", (0.4,) * 3, (0.2,) * 3)
    whole = describe(model, clip, ("dark", "bright"))
    history = train(whole, BrightOrDark(), config, tmp_path, evaluation=BrightOrDark(8))
    assert history[-1]["top1"] == 1.0
    saved = load_video_model(str(tmp_path / "model"))
    assert (saved.clip, saved.class_names, saved.family) == (clip, ("dark", "bright"), "swin")
    pixels = clip.pixels(np.stack([BrightOrDark()[i][0] for i in range(2)]))
    with torch.no_grad():
        assert torch.equal(saved.model(pixels), model.eval()(pixels))


def test_two_processes_train_one_model(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(TWO_PROCESSES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    here = Path(__file__).parent
    folders = os.pathsep.join(map(str, (Path(sta.__file__).parents[1], here, here.parent)))
    environment = {**os.environ, "PYTHONPATH": folders, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), str(tmp_path)],
        env={**environment, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert first["history"] == second["history"]
    assert first["history"][-1]["top1"] == 1.0
    assert first["steps"] == 3, "24 clips make 3 steps of 2 x 4"
    for name, value in first["model"].items():
        assert torch.equal(second["model"][name], value), name


TWO_PROCESSES = """
import sys
from pathlib import Path
import torch
from test_train import PLAIN, BrightOrDark, tiny, tiny_run
from sta.backbones.zoo.video_model import describe
from sta.train.loop import Trainer

out = Path(sys.argv[1])
config = tiny_run(**{**PLAIN, "batch": 4})
trainer = Trainer(describe(tiny()), BrightOrDark(), config, out / "run", BrightOrDark(8))
history = [{k: v for k, v in row.items() if k != "seconds"} for row in trainer.run()]
model = trainer.accelerator.unwrap_model(trainer.model).state_dict()
rank = trainer.accelerator.process_index
torch.save({"history": history, "model": model, "steps": trainer.steps}, out / f"rank{rank}.pt")
"""


def test_too_few_clips_and_foreign_checkpoints_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"3 training clips.*smaller batch"):
        train(describe(tiny()), BrightOrDark(3), tiny_run(**PLAIN), tmp_path)
    train(describe(tiny()), BrightOrDark(), tiny_run(**PLAIN, epochs=1), tmp_path)
    with pytest.raises(ValueError, match=r"state: the checkpoint does not fit this model"):
        train(describe(tiny(classes=5)), BrightOrDark(), tiny_run(**PLAIN), tmp_path)


class WithDamage(BrightOrDark):
    """Some of the clips cannot be read."""

    def __init__(self, size: int, damaged: set[int]) -> None:
        super().__init__(size)
        self.damaged = damaged

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index in self.damaged:
            raise VideoError("damaged: cut off")
        return super().__getitem__(index)

    def name_of(self, index: int) -> str:
        return f"clip {index}"


@pytest.mark.parametrize("workers", [0, 2])
def test_clips_that_cannot_be_read_are_named_counted_and_left_out(tmp_path, capsys, workers):
    model = describe(tiny())
    clips, measured = WithDamage(24, {3, 4, 17}), WithDamage(8, {5})
    config = tiny_run(**PLAIN, epochs=2, workers=workers)
    history = train(model, clips, config, tmp_path, evaluation=measured)
    assert [row["left_out"] for row in history] == [3, 3]
    assert [row["evaluation_left_out"] for row in history] == [1, 1]
    assert all(7 * row["top1"] == pytest.approx(round(7 * row["top1"])) for row in history)
    printed = capsys.readouterr().err.splitlines()
    lines = sorted(line for line in printed if line.startswith("left out"))
    reason = "damaged: cut off"
    assert lines == [f"left out: clip {number}: {reason}" for number in (17, 3, 4, 5)]


def test_what_takes_a_damaged_clips_place_does_not_depend_on_the_past():
    augment = ClipAugment(TrainConfig())
    fresh_clips, used = (
        AugmentedClips(WithDamage(24, {3, 4}), augment, repeats=2, seed=0) for _ in range(2)
    )
    _ = used[0, 3], used[0, 4]
    for epoch, index in ((1, 3), (1, 4)):
        video, label, failed = fresh_clips[epoch, index]
        again, same_label, same_failed = used[epoch, index]
        assert torch.equal(video, again)
        assert torch.equal(label, same_label)
        assert failed == same_failed == {i: failed[i] for i in range(index, 5)}
    with pytest.raises(ValueError, match="none of the 2 training clips can be read"):
        AugmentedClips(WithDamage(2, {0, 1}), augment, repeats=1, seed=0)[0, 0]


def test_an_evaluation_without_a_readable_clip_says_so(tmp_path):
    config = tiny_run(**PLAIN, epochs=1)
    with pytest.raises(ValueError, match="none of the 2 evaluation clips can be read"):
        train(describe(tiny()), BrightOrDark(), config, tmp_path, evaluation=WithDamage(2, {0, 1}))


# What the model expects


SWIN_CLIP = ClipSpec(ViewSpec(8, 2, 32, sampling="centred", mmaction_crops=True), "CTHW")


def tiny_of(family: str) -> nn.Module:
    """A tiny classifier of 2 classes for 8 frames of 32 pixels."""
    import transformers
    from torchvision.models.video import SwinTransformer3d

    torch.manual_seed(0)
    if family == "swin":
        return SwinTransformer3d([2, 4, 4], 8, [1, 1], [1, 2], [2, 2, 2], num_classes=2)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 2}
    if family == "vjepa2":
        predictor = {f"pred_{key}": value for key, value in small.items() if key != "num_labels"}
        config = transformers.VJEPA2Config(
            **small, **predictor, crop_size=32, frames_per_clip=8, num_pooler_layers=1
        )
        return transformers.VJEPA2ForVideoClassification(config)
    small |= {"image_size": 32, "num_frames": 8, "intermediate_size": 16}
    if family == "vivit":
        config = transformers.VivitConfig(**small, tubelet_size=[2, 16, 16])
        return transformers.VivitForVideoClassification(config)
    return VideoMAEForVideoClassification(VideoMAEConfig(**small, patch_size=8))


@pytest.mark.parametrize("family", ["videomae", "swin", "vivit", "vjepa2"])
def test_every_family_is_trained_on_its_own_pixels(family, tmp_path):
    model = tiny_of(family)
    video_model = describe(model, SWIN_CLIP if family == "swin" else None)
    assert video_model.clip.shape()[-1] == 32
    mean = {"vivit": 0.5}.get(family, 0.485)
    assert video_model.clip.mean[0] == mean

    class Clips:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
            rng = np.random.default_rng(index)
            return rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8), index

    given = []
    handle = model.register_forward_pre_hook(lambda module, args: given.append(args[0].clone()))
    config = tiny_run(**PLAIN, batch=2, epochs=1)
    train(video_model, Clips(), config, tmp_path, evaluation=Clips())
    handle.remove()
    trained, measured = given
    assert trained.shape == video_model.clip.shape(2)
    frames = np.stack([Clips()[i][0] for i in range(2)])  # (B, T, H, W, 3)
    std = {"vivit": 0.5}.get(family, 0.229)
    red = torch.from_numpy((frames[..., 0] / 255 - mean) / std).float()
    channel = measured[:, 0] if family == "swin" else measured[:, :, 0]
    torch.testing.assert_close(channel, red)
    order = [0, 1] if torch.equal(trained[0], measured[0]) else [1, 0]
    assert torch.equal(trained, measured[order])
    saved = load_video_model(str(tmp_path / "model"))
    assert saved.clip == video_model.clip
    assert saved.class_names == video_model.class_names


# Heads


def test_a_new_head_keeps_the_rest(tmp_path):
    model = tiny()
    before = {k: v.clone() for k, v in model.state_dict().items() if "classifier" not in k}
    replace_head(model, 7)
    assert classes_of(model) == 7
    assert model(torch.randn(1, 4, 3, 16, 16)).logits.shape == (1, 7)
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)
    model.save_pretrained(tmp_path)
    assert sta.load(str(tmp_path)).config.num_labels == 7
    with pytest.raises(TypeError, match="Linear has no linear classifier"):
        classes_of(torch.nn.Linear(2, 2))


def test_a_fresh_model_has_forgotten_everything():
    from torchvision.models.video import SwinTransformer3d

    for trained in (tiny(), SwinTransformer3d([2, 2, 2], 8, [1, 1], [1, 2], [2, 2, 2])):
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.fill_(7.0)
        torch.manual_seed(0)
        new = fresh(trained)
        assert all((p != 7.0).all() for p in new.parameters())
        assert all(F.relu(p.abs() - 1.01).sum() == 0 for p in new.parameters())
