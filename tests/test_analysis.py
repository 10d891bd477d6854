"""Trajectory sum and GradNorm, against definitions written out, and `sta analyze`."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

import sta
from backbones import BACKBONES, Backbone, output
from inference_runs import make_videos, save_model
from sta.backbones import find
from sta.backbones.zoo.video_model import load_video_model
from sta.cli.analyze import analyze
from sta.cli.options import MultiValueCommand
from sta.explain.analysis import Analyzer
from sta.explain.clips import single_view
from sta.explain.gradnorm import gradnorm, on_finer_grid, share_on
from sta.explain.redundancy import last_tokens, trajectory_sum
from sta.measure.stats import UNBOUNDED, bootstrap
from sta.video.lists import find_videos
from sta.video.prefetch import prefetch_clips

VIDEOS = Path(__file__).parents[2] / "shared" / "videos"
BY_NAME = {backbone.name: backbone for backbone in BACKBONES}
CLASSIFIERS = [BY_NAME[name] for name in ("videomae", "vivit", "vjepa2", "swin", "swin-odd")]


# Trajectory sum


@settings(max_examples=25, deadline=None)
@given(
    frames=st.integers(2, 9),
    tokens=st.integers(1, 30),
    width=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_equal_frames_reach_the_maximum(frames, tokens, width, seed):
    generator = torch.Generator().manual_seed(seed)
    frame = torch.randn(2, 1, tokens, width, generator=generator)
    found = trajectory_sum(frame.expand(-1, frames, -1, -1))
    assert (found - (frames - 1)).abs().max() < 1e-5


def test_trajectory_sum_is_its_definition():
    x = torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(0))
    for clip, found in zip(x.tolist(), trajectory_sum(x).tolist(), strict=True):
        total = 0.0
        for token in clip[-1]:
            for earlier in clip[:-1]:
                total += max(
                    sum(a * b for a, b in zip(token, other, strict=True))
                    / (math.hypot(*token) * math.hypot(*other))
                    for other in earlier
                )
        assert found == pytest.approx(total / 5, abs=1e-6)
    assert trajectory_sum(x[:, :1]).tolist() == [0, 0]


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_last_tokens_are_the_last_blocks(backbone: Backbone):
    model, clip = backbone.make(), backbone.clip()
    grid = backbone.grids[-1]
    with torch.inference_mode():
        dense = last_tokens(model, lambda: model(clip))
        assert not any(len(module._forward_hooks) for module in model.modules())
        assert dense.shape[:3] == (2, grid.frames, grid.tokens)
        if hasattr(model, "config") and backbone.hidden_states:
            hidden = model(clip, output_hidden_states=True).hidden_states
            positions = grid.frames * grid.tokens  # a class token, if any, comes before them
            assert any(torch.equal(dense.flatten(1, 2), h[:, -positions:]) for h in hidden[-2:])
        for config in (backbone.config, *backbone.configs):
            sta.apply(model, config)
            model(clip)
            by_clip = sta.kept(model)[-1].ndim == 2  # frames may have different numbers left
            assert by_clip or config.method not in ("tome", "released")
            if by_clip:
                with pytest.raises(ValueError, match="different numbers"):
                    last_tokens(model, lambda: model(clip))
                continue
            tokens = last_tokens(model, lambda: model(clip))
            whole = getattr(config, "blocks", None) == (1, 2)  # Swin's last stage has no step then
            expected = grid.tokens if whole else sta.kept(model)[-1].shape[2]
            assert tokens.shape[:3] == (2, grid.frames, expected)


# GradNorm


def _continue_vit(model: nn.Module, name: str, number: int, x: Tensor) -> Tensor:
    """Logits from what block `number` of a ViT put out, by way of the model's own modules."""
    adapter = find(model)

    class Cut(nn.Module):
        def forward(self, *args, **kwargs):
            return (x, None) if name == "vjepa2" else x

    whole = list(adapter.blocks)
    layers = adapter.backbone.layers if name == "vivit" else adapter.backbone.encoder.layer
    for i in range(number + 1):
        layers[i] = Cut()
    try:
        return output(model, BY_NAME[name].clip())
    finally:
        for i, block in enumerate(whole):
            layers[i] = block


def _continue_swin(model: nn.Module, number: int, x: Tensor) -> Tensor:
    """Logits from what block `number` of Swin put out: its modules one after the other."""
    modules = []
    for module in model.features:
        modules += list(module) if isinstance(module, nn.Sequential) else [module]
    at = [i for i, m in enumerate(modules) if type(m).__name__ != "PatchMerging"][number]
    for module in modules[at + 1 :]:
        x = module(x)
    x = model.norm(x).permute(0, 4, 1, 2, 3)
    return model.head(torch.flatten(model.avgpool(x), 1))


@pytest.mark.parametrize("backbone", CLASSIFIERS, ids=str)
@pytest.mark.parametrize("given", [True, False])
def test_gradnorm_agrees_with_brute_force(backbone: Backbone, given: bool):
    """One block at a time: cut the model there and differentiate what follows."""
    model, clip = backbone.make(), backbone.clip()
    labels = torch.tensor([3, 1]) if given else output(model, clip).argmax(-1)
    found = gradnorm(model, clip, labels if given else None)
    adapter, swin = find(model), backbone.name.startswith("swin")
    states: list[Tensor] = []
    parts = adapter.all_blocks()
    handles = [
        b.register_forward_hook(
            lambda m, a, out: states.append((out[0] if isinstance(out, tuple) else out).detach())
        )
        for b, _ in parts
    ]
    with torch.no_grad():
        model(clip)
    for handle in handles:
        handle.remove()
    expected = torch.zeros_like(found)
    for number, (_, merged) in enumerate(parts):
        x = states[number].clone().requires_grad_()
        logits = (
            _continue_swin(model, number, x)
            if swin
            else _continue_vit(model, backbone.name, number, x)
        )
        for clip_number in range(2):  # the loss of each clip on its own
            loss = F.cross_entropy(logits[clip_number], labels[clip_number])
            (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
            norm = gradient[clip_number].abs().sum(-1)
            if not swin:
                prefix = norm.shape[0] - expected[0].numel()
                expected[clip_number] += norm[prefix:].view(expected.shape[1:])
                continue
            for (t, i, j), value in np.ndenumerate(norm.numpy()):
                side = 2**merged
                cell = expected[
                    clip_number, t, i * side : (i + 1) * side, j * side : (j + 1) * side
                ]
                cell += float(value) / cell.numel()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_gradnorm_leaves_no_trace_and_needs_no_trainable_weights():
    backbone = BY_NAME["videomae"]
    model, clip = backbone.make(), backbone.clip()
    expected = gradnorm(model, clip)
    assert all(p.grad is None for p in model.parameters())
    assert not any(len(m._forward_hooks) for m in model.modules())
    model.requires_grad_(False)
    with torch.no_grad():
        torch.testing.assert_close(gradnorm(model, clip), expected)
    sta.apply(model, sta.STAConfig(r=4))
    with pytest.raises(ValueError, match=r"sta\.remove"):
        gradnorm(model, clip)
    torch.testing.assert_close(gradnorm(sta.apply(model, sta.STAConfig(r=0)), clip), expected)


def test_mass_is_shared_and_counted():
    values = torch.rand(1, 2, 3, 4)
    fine = on_finer_grid(values, (5, 7), 2, share=True)
    torch.testing.assert_close(fine.sum(), values.sum())
    assert torch.equal(on_finer_grid(values, (5, 7), 2)[0, 0, 4, 6], values[0, 0, 2, 3])
    kept = torch.zeros(1, 2, 3, 4, dtype=torch.bool)
    kept[0, 1, 2, 3] = kept[0, 0, 0, 1] = True
    expected = (values[0, 1, 2, 3] + values[0, 0, 0, 1]) / values.sum()
    torch.testing.assert_close(share_on(kept, fine, 2), expected[None])


# The tables


def test_bootstrap_covers_the_mean():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        low, high = bootstrap(rng.normal(3, 1, size=40).tolist(), rounds=500, bounds=UNBOUNDED)
        hits += low <= 3 <= high
    assert hits > 175  # of 200, where 190 are expected
    with pytest.raises(ValueError, match="at least one"):
        bootstrap([])


def test_values_that_are_all_the_same_are_no_certainty():
    for value in (1.5, 0.0):
        for count in (1, 3):
            assert bootstrap([value] * count, bounds=UNBOUNDED) == (-math.inf, math.inf)
    low, high = bootstrap([0.0] * 184)
    assert low == -high
    # So many videos are all alike one time in twenty where so many of all are not.
    assert (1 - high) ** 184 == pytest.approx(0.05)
    assert high == pytest.approx(3 / 184, rel=0.01)
    assert bootstrap([1.0] * 184) == pytest.approx((1 - 2 * high, 1.0))
    errors = bootstrap([0.3] * 184, bounds=(0, math.inf))
    assert errors == (pytest.approx(0.3 * (1 - high)), math.inf)
    with pytest.raises(ValueError, match=r"from 0 to 2 .* bounds=\(-1, 1\)"):
        bootstrap([0.0, 2.0])


def test_bootstrap_of_many_videos_takes_little_memory():
    values = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], size=20_000)
    drawn = {"n_resamples": 300, "method": "percentile", "rng": np.random.default_rng(0)}
    whole = stats.bootstrap((values,), np.mean, **drawn).confidence_interval
    tracemalloc.start()
    assert bootstrap(values.tolist(), rounds=300) == (whole.low, whole.high)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6  # all rounds at once take 96 MB; as many as usual, 1.3 GB


@pytest.fixture
def invoke():
    app = typer.Typer()
    app.command("analyze", cls=MultiValueCommand)(analyze)
    app.callback()(lambda: None)
    return lambda *words: CliRunner().invoke(app, ["analyze", *map(str, words)])


def test_analyze_reports_and_draws(invoke, tmp_path):
    model = save_model(tmp_path / "model")
    videos = make_videos(tmp_path / "videos", 3)
    (videos / "bad.mp4").write_text("no video")
    (videos / "list.txt").write_text((videos / "list.txt").read_text() + "bad.mp4 1\n")
    done = invoke(
        *(videos / "list.txt", "--model", model, "--r", 4, "--gradnorm", "--loss", "label"),
        *("--compare", "random", "frame-difference", "--out", tmp_path / "out"),
        *("--json", tmp_path / "t.json", "--device", "cpu"),
    )
    assert done.exit_code == 1, done.output
    assert "bad.mp4: not a video" in done.output
    assert "1 of 4 videos failed" in done.output
    report = json.loads((tmp_path / "t.json").read_text())
    assert [row["method"] for row in report["S"]] == [
        "Unpruned",
        "STA, r = 4",
        "Random, r = 4",
        "Frame difference, r = 7",
    ]
    assert [row["tokens_per_frame"] for row in report["S"]] == [16, 9, 9, 9]
    for row in report["S"]:
        assert row["clips"] == 3
        assert row["low"] <= row["S"] <= row["high"] <= report["frames"] - 1 + 1e-9
    gap = report["differences"][0]
    assert gap["S"] == pytest.approx(report["S"][1]["S"] - report["S"][2]["S"])
    for row in report["gradnorm"]:
        assert 0 < row["gradient"] < 1
    assert [row["tokens"] for row in report["gradnorm"][:3]] == [12 / 16, 10 / 16, 9 / 16]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "000-gradnorm.pdf",
        "000-gradnorm.png",
    ]


def test_analyze_gives_what_its_command_gives(invoke, tmp_path):
    done = invoke(
        *("digits", "--r", 24, "--clips", 3, "--gradnorm", "--loss", "label", "--device", "cpu"),
        *("--json", tmp_path / "t.json", "--out", tmp_path / "out"),
    )
    assert done.exit_code == 0, done.output
    calls = []
    found = sta.analyze(
        *("digits", "vit-digits"),
        **{"r": 24, "clips": 3, "gradnorm": True, "loss": "label", "figures": 1, "device": "cpu"},
        progress=lambda now: calls.append((now.done, now.total)),
    )
    assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert found.to_dict() == json.loads((tmp_path / "t.json").read_text())
    assert str(found) in done.output
    assert max(map(len, str(found).splitlines())) <= 80
    drawn = found.figures[0].save(tmp_path / "mine" / "a.png")
    assert drawn.read_bytes() == (tmp_path / "out" / "digits-0-gradnorm.png").read_bytes()
    records = found.records()
    assert [row["table"] for row in records] == ["redundancy"] * 3 + ["difference"] + [
        "gradnorm"
    ] * 6
    assert records[1]["S"] == found.redundancy[1].S
    assert found.videos == 3
    assert not found.failures
    one = sta.analyze("digits:2", r=24, gradnorm=True, loss="label", figures=1)
    assert [figure.clip for figure in one.figures] == ["digits-2"]
    assert one.redundancy[0].low is None  # a single clip has no interval


def test_analyze_needs_labels_only_for_their_loss(tmp_path):
    model = save_model(tmp_path / "model")
    videos = make_videos(tmp_path / "videos", 2)
    names = [line.split()[0] for line in (videos / "list.txt").read_text().splitlines()]
    files = [videos / name for name in names]
    common = {"r": 4, "gradnorm": True, "device": "cpu"}
    with pytest.raises(ValueError, match="label None is not one of the model's classes"):
        sta.analyze(files, model, loss="label", **common)
    (videos / "bad.mp4").write_text("no video")
    found = sta.analyze([*files, videos / "bad.mp4"], model, **common)
    assert [row.clips for row in found.redundancy] == [2, 2, 2]
    assert [Path(path).name for path, _ in found.failures] == ["bad.mp4"]
    none = sta.analyze(videos / "bad.mp4", model, **common)
    assert (none.redundancy, none.differences, none.videos) == ((), (), 1)
    assert str(none) == "no clip could be read"


@pytest.mark.parametrize("name", ["vit-digits", "swin-digits"])
def test_sta_is_less_redundant_than_random_on_real_clips(name):
    if not VIDEOS.is_dir():
        pytest.skip(f"the real videos are not here: {VIDEOS}")
    opened = load_video_model(name)
    r = opened.default_r
    methods = {
        "sta": sta.STAConfig(r=r),
        "random": sta.RandomConfig(r=r),
    }
    found = Analyzer(opened, methods)
    entries = find_videos([str(VIDEOS / "ut-interaction.txt")])
    for sample in prefetch_clips(entries, single_view(opened), workers=1):
        assert sample.clips is not None, sample.error
        found.measure_redundancy(sample.clips)
    assert found.left["sta"] == found.left["random"]
    sums = {row.method: row.S for row in found.redundancy()}
    assert sums["sta"] < sums["random"] < sums["Unpruned"]
    assert found.difference("sta", "random").high < 0  # beyond the interval
