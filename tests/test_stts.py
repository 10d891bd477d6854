"""STTS: its scorer and choices against references, and its weights from training to the command."""

from __future__ import annotations

import json
import math

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn
from torch.nn import functional as F
from torchvision.models.video import SwinTransformer3d
from typer.testing import CliRunner

import sta
from backbones import BACKBONES, SCORED, output
from sta.backbones.encode import encode
from sta.backbones.patch import add_learned
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import describe, load_video_model
from sta.cli import app
from sta.core.top_frames import TimeScorer, perturbed_top_frames, top_frames
from sta.train import TrainConfig
from sta.train.loop import Trainer, train
from sta.video.views import ViewSpec
from test_train import PLAIN, BrightOrDark
from video_files import make

SWIN = next(b for b in BACKBONES if b.name == "swin")


# The scorer and the choice


@torch.no_grad()
def test_scores_are_those_of_a_reference_by_frame() -> None:
    torch.manual_seed(0)
    scorer, x = TimeScorer(6), torch.randn(2, 5, 7, 6)
    norm, linear, _ = scorer.project
    layers = [part for part in scorer.score if isinstance(part, nn.Linear)]
    assert [part.out_features for part in (linear, *layers)] == [12, 6, 3, 1]
    for clip, scores in zip(x, scorer(x), strict=True):
        seen = []
        for frame in clip:
            both = torch.cat([frame.mean(0), frame.max(0).values])
            normed = (both - both.mean()) / (both.var(correction=0) + norm.eps).sqrt()
            seen.append(F.gelu(linear(normed * norm.weight + norm.bias)))
        clip_mean = sum(frame[6:] for frame in seen) / len(seen)
        raw = []
        for frame in seen:
            h = F.gelu(layers[0](torch.cat([frame[:6], clip_mean])))
            raw.append(layers[2](F.gelu(layers[1](h))).item())
        low, high = min(raw), max(raw)
        expected = [(value - low) / (high - low) for value in raw]
        torch.testing.assert_close(scores, torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_a_still_clip_has_equal_scores_and_no_gradient() -> None:
    scorer = TimeScorer(4)
    scores = scorer(torch.randn(1, 1, 3, 4).expand(1, 5, 3, 4))
    assert scores.tolist() == [[0.0] * 5]
    scores.sum().backward()
    assert all(p.grad.isfinite().all() for p in scorer.parameters())
    assert top_frames(scores, 3).tolist() == [[0, 1, 2]]


def test_the_best_frames_in_time_order() -> None:
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.9, 0.2], [0.0, 0.0, 0.0, 0.0, 1.0]])
    assert top_frames(scores, 3).tolist() == [[1, 2, 3], [0, 1, 4]]
    assert top_frames(scores, 1).tolist() == [[1], [4]]


def test_one_of_two_frames_has_a_known_expectation_and_gradient() -> None:
    """Of frames a and b, a wins with probability Phi((a - b) / (sigma sqrt 2))."""
    torch.manual_seed(0)
    sigma, a, b = 0.5, 0.4, 0.1
    scores = torch.tensor([[a, b]], requires_grad=True)
    shares = perturbed_top_frames(scores, 1, samples=200_000, sigma=sigma)
    z = (a - b) / (sigma * math.sqrt(2))
    chance = 0.5 * (1 + math.erf(z / math.sqrt(2)))
    assert shares.flatten().tolist() == pytest.approx([chance, 1 - chance], abs=0.01)
    shares[0, 0, 0].backward()
    slope = math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / (sigma * math.sqrt(2))
    assert scores.grad.flatten().tolist() == pytest.approx([slope, -slope], abs=0.02)


def test_the_gradient_is_that_of_the_expected_choice() -> None:
    """Against differences of the expectation, both with the same noise."""
    sigma, samples, step = 0.3, 200_000, 0.1
    start = torch.tensor([[0.2, 0.7, 0.5, 0.9, 0.1]])
    aim = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))

    def expected(scores: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return (perturbed_top_frames(scores, 3, samples=samples, sigma=sigma)[0] * aim).sum()

    scores = start.clone().requires_grad_()
    shares = perturbed_top_frames(scores, 3, samples=8, sigma=sigma)
    torch.testing.assert_close(shares.sum(-1), torch.ones(1, 3))  # every chosen frame is some frame
    expected(scores).backward()
    with torch.no_grad():
        numeric = [
            (expected(start + step * e) - expected(start - step * e)).item() / (2 * step)
            for e in torch.eye(5)
        ]
    assert scores.grad.flatten().tolist() == pytest.approx(numeric, abs=0.06)
    assert max(map(abs, numeric)) > 0.5


def test_little_noise_is_the_hard_choice() -> None:
    scores = torch.rand(4, 6)
    shares = perturbed_top_frames(scores, 4, samples=3, sigma=1e-9)
    assert torch.equal(shares, F.one_hot(top_frames(scores, 4), 6).float())


# In the model


@torch.no_grad()
@pytest.mark.parametrize("r", [1, 3])
def test_the_model_sees_the_chosen_frames_alone(r: int) -> None:
    model, clip = SCORED.make(), SCORED.clip()
    tokens = model.patch_embed(clip)  # (B, T, H, W, C)
    kept = top_frames(model.patch_embed.stts(tokens.flatten(2, 3)), 4 - r)
    chosen = torch.stack([frames[index] for frames, index in zip(tokens, kept, strict=True)])
    features = model.norm(model.features(chosen))
    expected = model.head(features.mean((1, 2, 3)))
    sta.apply(model, sta.STTSConfig(r=r))
    torch.testing.assert_close(output(model, clip), expected, rtol=0, atol=1e-5)
    (places,) = sta.kept(model)
    assert torch.equal(places.view(2, 4 - r, 256)[..., 0] // 256, kept)
    stage = sta.restore(model, features.flatten(1, 3))  # of the last stage, by all frames
    assert stage.shape[:3] == (2, 4, 4)
    for clip_frames, index, whole in zip(features.flatten(2, 3), kept, stage, strict=True):
        for time, frame in enumerate(whole):
            nearest = min(range(4 - r), key=lambda k: abs(index[k].item() - time))
            assert torch.equal(frame, clip_frames[nearest])


@torch.no_grad()
def test_dense_features_have_all_frames_at_every_stage() -> None:
    model, clip = sta.apply(SCORED.make(), sta.STTSConfig(r=1)), SCORED.clip()
    for block, places in ((1, 256), (2, 64), (None, 4)):
        dense = encode(model, clip, block=block, dense=True)
        assert dense.shape[:3] == (2, 4, places)
        kept = [set(row.tolist()) for row in sta.kept(model)[0] // 256]
        for frames, left in zip(dense, kept, strict=True):
            (gone,) = set(range(4)) - left
            assert torch.equal(frames[gone], frames[gone - 1 if gone else 1])


@torch.no_grad()
def test_nothing_dropped_is_the_stock_model_and_too_much_is_refused() -> None:
    model, clip = SCORED.make(), SCORED.clip()
    stock = output(model, clip)
    assert torch.equal(output(sta.apply(model, sta.STTSConfig()), clip), stock)
    assert sta.kept(model)[0].tolist() == [list(range(4 * 256))] * 2
    with pytest.raises(ValueError, match=r"r=4 leaves no frames.*use r <= 3"):
        output(sta.apply(model, sta.STTSConfig(r=4)), clip)


def test_in_training_frames_are_mixed_and_noise_falls() -> None:
    model, clip = SCORED.make().train(), SCORED.clip()
    sta.apply(model, sta.STTSConfig(r=2, sigma=10.0))
    seen = []
    model.features[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for progress in (0.0, 1.0):
        model.patch_embed.stts.progress = progress
        for _ in range(2):
            output(model, clip)
    early, also_early, late, also_late = seen
    assert early.shape == (2, 2, 16, 16, 8)
    assert (early - also_early).abs().mean() > 3 * (late - also_late).abs().mean()


def test_it_trains_in_mixed_precision() -> None:
    """The choice is made without autocast, of tokens that were made with it."""
    model, clip = SCORED.make().train(), SCORED.clip()
    sta.apply(model, sta.STTSConfig(r=2))
    with torch.autocast("cpu", torch.bfloat16):
        loss = output(model, clip).float().square().sum()
    loss.backward()
    for weight in model.patch_embed.stts.parameters():
        assert weight.grad is not None
        assert weight.grad.isfinite().all()


def test_gflops_are_the_published_ones() -> None:
    """14 of 16 frames of tokens on Swin-B: 252.5 GFLOPs; fvcore counts a norm five times."""
    with torch.device("meta"):
        model = sta.load("swin-b-k400", weights=None)
        scorer = add_learned(model, sta.STTSConfig())
    shape = (1, 3, 32, 224, 224)
    sta.apply(model, sta.STTSConfig(r=2, window_queries="all"))
    counted = sta.gflops(model, shape)
    assert counted == pytest.approx(252.5, abs=1.5)
    without = nn.Sequential(*scorer.project[1:], *scorer.score)
    macs = 16 * sum(p.numel() for p in without.parameters() if p.ndim == 2) + 16 * 256
    scorer.forward = lambda x: x.new_zeros(x.shape[:2])
    assert counted - sta.gflops(model, shape) == pytest.approx(macs / 1e9, rel=1e-6)


def test_settings_are_checked() -> None:
    for wrong in ({"r": -1}, {"samples": 0}, {"sigma": 0.0}, {"window_queries": "some"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            sta.STTSConfig(**wrong)


# Weights: refused without, trained, saved, loaded, run


def test_without_weights_the_training_command_is_named() -> None:
    model = SWIN.make()
    with pytest.raises(ValueError, match=r"sta train .*--method stts --r 3 --out"):
        sta.apply(model, sta.STTSConfig(r=3))
    vit = BACKBONES[0].make()
    for call in (sta.apply, add_learned):
        with pytest.raises(ValueError, match="STTSConfig cannot be applied to VideoMAE"):
            call(vit, sta.STTSConfig(r=3))


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    AcceleratorState._reset_state()


def tiny_swin() -> nn.Module:
    torch.manual_seed(0)
    return SwinTransformer3d([2, 4, 4], 8, [1, 1], [1, 2], [2, 2, 2], num_classes=2)


RUN = TrainConfig(**PLAIN, epochs=2, warmup_epochs=0, batch=8, base_rate=0.03, method="stts", r=1)


def test_training_moves_the_scorer_and_the_folder_keeps_it(tmp_path, one_thread) -> None:
    model = tiny_swin()
    trainer = Trainer(describe(model), BrightOrDark(), RUN, tmp_path, None)
    before = {n: p.detach().clone() for n, p in model.patch_embed.stts.named_parameters()}
    optimized = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in model.patch_embed.stts.parameters()} <= optimized
    trainer.run()
    assert model.patch_embed.stts.progress == pytest.approx(5 / 6)
    moved = [n for n, p in model.patch_embed.stts.named_parameters() if not p.equal(before[n])]
    assert set(moved) == before.keys()

    folder = tmp_path / "model"
    config = sta.Config.from_file(folder / "method.json")
    assert config == sta.STTSConfig(r=1)
    loaded, clip = sta.load(folder), torch.randn(2, 3, 8, 16, 16)
    assert not model.eval()._forward_hooks
    with torch.no_grad():
        assert torch.equal(loaded(clip), model(clip))
        pruned = sta.apply(loaded, config)(clip)
        assert torch.equal(pruned, sta.apply(model, config)(clip))
    assert [k.shape for k in sta.kept(loaded)] == [(2, 48)]
    # Loaded again for more training, its head replaced or not, the scorer is where it was.
    again = load_video_model(str(folder), new_head=True).model
    assert torch.equal(
        add_learned(again, config).score[0].weight, loaded.patch_embed.stts.score[0].weight
    )


def test_a_stopped_run_goes_on_with_its_scorer(tmp_path, one_thread, monkeypatch) -> None:
    whole, resumed, step = tiny_swin(), tiny_swin(), Trainer._step
    train(describe(whole), BrightOrDark(), RUN, tmp_path / "whole")

    def stopping(self: Trainer, videos: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.state.epoch == 1:
            raise KeyboardInterrupt
        return step(self, videos, labels)

    monkeypatch.setattr(Trainer, "_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(describe(tiny_swin()), BrightOrDark(), RUN, tmp_path / "stopped")
    monkeypatch.undo()
    train(describe(resumed), BrightOrDark(), RUN, tmp_path / "stopped")
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_training_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="method='stts' drops nothing with r=0: give r, frames"):
        TrainConfig(method="stts")
    with pytest.raises(ValueError, match="'magic' is unknown"):
        TrainConfig(method="magic", r=1)
    assert TrainConfig().pruning is None
    assert TrainConfig(r=4).pruning == sta.STAConfig(r=4)


def test_commands_train_and_run_it(tmp_path, one_thread) -> None:
    def invoke(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    data, base, run = tmp_path / "data", tmp_path / "base", tmp_path / "run"
    for name in ("stand", "fall"):
        (data / name).mkdir(parents=True)
        for number in range(2):
            make(data / name / f"{number}.mp4", 12, 40, 56)
    clip = ClipSpec(ViewSpec(8, 1, 32, 1, 1), "CTHW")
    describe(tiny_swin(), clip, ("fall", "stand")).save(base)
    train_it = ("train", data, "--model", base, "--out", run, "--epochs", 1, "--warmup-epochs", 0)
    invoke(*train_it, "--batch-size", 4, "--method", "stts", "--r", 1)
    model = ("--model", run / "model")
    table = tmp_path / "table.json"
    invoke("eval", data, *model, "--method", "stts", "--r", 0, "--r", 2, "--json", table)
    rows = json.loads(table.read_text())
    assert [(row["method"], row["r"]) for row in rows[:2]] == [("stts", 0), ("stts", 2)]
    assert rows[1]["gflops"] < 0.7 * rows[0]["gflops"]
    from_file = ("--config", run / "model" / "method.json")
    quick = ("--rounds", 1, "--warmup", 0, "--no-gemm", "--no-memory")
    assert "method.json" in invoke("bench", *model, *from_file, *quick)
    video, picture = data / "fall" / "0.mp4", tmp_path / "a.png"
    show = ("show", video, "--out", picture, "--rounds", 0)
    assert "STTS" in invoke(*show, *model, "--compare", "stts", "--r", 8)
    assert picture.is_file()
    refused = CliRunner().invoke(app, [str(w) for w in (*show, "--model", base, *from_file)])
    assert "sta train" in str(refused.exception)
