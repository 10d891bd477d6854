"""Lower precision in every command: what is computed, what is refused, what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import sta
from backbones import BACKBONES, Backbone, output
from inference_runs import make_videos, run
from sta.backbones import find
from sta.backbones.hooks import StepHook, hooks_in
from sta.backbones.swin_tokens import StageTokens
from sta.backbones.zoo.video_model import load_video_model
from sta.core.fill import fill_source_similar
from sta.core.merge import most_similar
from sta.inference.clip_model import Classifier
from sta.methods.base import Choice
from sta.runtime.comparison import overlap


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    return make_videos(tmp_path_factory.mktemp("precision") / "v", 3)


def test_every_method_runs_under_autocast_and_chooses_in_float32(backbone: Backbone) -> None:
    model, clip = backbone.make(), backbone.clip(1)
    for config in (backbone.config, *backbone.configs):
        sta.apply(model, config)
        seen = []
        for hook in hooks_in(model, StepHook):
            hook.observe = lambda site: seen.append(torch.is_autocast_enabled("cpu"))  # noqa: B023
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            low = output(model, clip)
        assert torch.isfinite(low).all()
        assert not any(seen), config
        assert seen or not config.drops, config


@pytest.mark.parametrize("name", ["videomae", "swin"])
def test_what_tokens_merge_into_is_chosen_in_float32(name: str) -> None:
    """Of likely targets many are about as similar: more digits decide."""
    backbone = next(b for b in BACKBONES if b.name == name)
    model = sta.apply(backbone.make(), sta.STAConfig(r=backbone.r, merge=True))
    steps, seen = find(model).steps, []
    for step in steps:
        step.observe = lambda site: seen.append((site.tokens, site.features("key"), site.grid))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        output(model, backbone.clip(batch=16))
    for step, (x, metric, grid) in zip(steps, seen, strict=True):
        if name == "swin":
            expected = fill_source_similar(x, step.kept, grid.frame)
        else:
            expected = most_similar(metric, step.kept)
        assert torch.equal(step.into, expected)


def test_what_fills_windows_is_chosen_in_float32() -> None:
    x, kept = torch.randn(2, 8, 8, 8, 4), torch.arange(0, 64, 5).expand(2, 8, -1)
    exact = StageTokens(x, Choice(kept), "all", "clip")
    with torch.autocast("cpu", torch.bfloat16):
        low = StageTokens(x, Choice(kept), "all", "clip")
    rows = torch.arange(2 * 8 * 13.0).view(2, -1, 1)
    assert torch.equal(low.fill(rows), exact.fill(rows))


def by_path(rows) -> dict[str, np.ndarray]:
    return {row["path"]: np.array(row["logits"]) for row in rows}


@pytest.mark.parametrize(("precision", "runtime"), [("bfloat16", "torch"), ("int8", "auto")])
def test_predict_in_lower_precision(folder, videos, capsys, precision, runtime) -> None:
    pytest.importorskip("nncf" if precision == "int8" else "torch")
    common = {"model": folder, "r": 6, "logits": True, "progress": False, "batch_size": 2}
    exact = by_path(sta.predict(videos, **common))
    capsys.readouterr()
    low = by_path(sta.predict(videos, precision=precision, runtime=runtime, **common))
    assert exact.keys() == low.keys()
    for path, logits in exact.items():
        off = np.abs(low[path] - logits).max()
        assert 0 < off < 0.5 * np.abs(logits).max(), path
    said = capsys.readouterr().err
    assert f"{precision}: " in said
    assert "of the tokens that sta keeps are not those that float32 keeps (2 clips" in said


def test_the_share_of_other_tokens_is_that_of_the_first_clips(folder) -> None:
    opened = load_video_model(folder)
    clips = np.random.default_rng(0).integers(0, 256, (3, 4, 32, 32, 3), dtype=np.uint8)
    model = Classifier(opened.model, opened.clip, [None, sta.STAConfig(r=6)], precision="bfloat16")
    model(clips)
    pruned = sta.apply(load_video_model(folder).model, sta.STAConfig(r=6))
    pixels = opened.clip.pixels(clips)
    kept = []
    for enabled in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            pruned(pixels if enabled else pixels[:2])
        kept.append([step[:2] for step in sta.kept(pruned)])
    worst = max(1 - overlap(*steps).mean().item() for steps in zip(*kept, strict=True))
    assert model.differing == [0.0, pytest.approx(worst)]
    before = list(model.differing)
    model(clips)
    assert model.differing == before  # once is enough


def test_features_in_lower_precision_and_in_a_graph(folder, videos) -> None:
    pytest.importorskip("openvino")
    common = {"model": folder, "r": 6, "progress": False}
    exact = sta.features(videos, **common).vectors()
    graph = sta.features(videos, runtime="openvino", **common).vectors()
    np.testing.assert_allclose(graph, exact, atol=1e-3)
    low = sta.features(videos, precision="bfloat16", **common).vectors()
    assert low.dtype == np.float32
    assert 0 < np.abs(low - exact).max() < 0.3 * np.abs(exact).max()


def test_evaluate_and_a_stream_take_a_precision(folder, videos) -> None:
    table = sta.evaluate(
        videos / "list.txt", folder, r=[0, 6], precision="bfloat16", progress=False
    )
    assert [row["clips"] for row in table] == [3, 3]
    stream = sta.Stream(folder, sta.STAConfig(r=6), windows=1.0, fps=4, precision="bfloat16")
    frames = np.random.default_rng(0).integers(0, 256, (8, 40, 40, 3), dtype=np.uint8)
    assert sum(stream.push(frame) is not None for frame in frames) == stream.results > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--precision", "int8", "--runtime", "torch"), "for int8 use openvino"),
        (("--precision", "bfloat16", "--runtime", "onnxruntime"), "for bfloat16 use torch"),
        (("--calibrate", "list.txt"), "calibrate is for precision int8"),
    ],
)
def test_what_does_not_go_together_is_refused(refused, folder, videos, words, said) -> None:
    for command in ("predict", "features"):
        assert said in refused(command, videos, "--model", folder, *words)
    assert said in refused("eval", videos / "list.txt", "--model", folder, *words)


def test_int8_on_a_gpu_says_what_works_there(folder) -> None:
    opened = load_video_model(folder)
    with pytest.raises(ValueError, match="float32, float16, bfloat16 instead of int8"):
        Classifier(opened.model, opened.clip, device="cuda", runtime="auto", precision="int8")


def test_rows_of_another_precision_are_not_gone_on_with(tmp_path, folder, videos) -> None:
    words = ("predict", videos, "--model", folder, "--out", tmp_path / "rows.jsonl")
    assert run(*words).exit_code == 0
    other = run(*words, "--precision", "bfloat16", "--resume")
    assert "cannot be resumed with precision 'bfloat16'" in str(other.exception)
