"""Runtimes and exports as users of the command line meet them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sta
from inference_runs import make_videos, run
from sta import runtime
from sta.backbones.zoo.video_model import load_video_model
from sta.inference.clip_model import Classifier
from sta.inference.rows import read_rows
from sta.runtime import Prepared
from sta.runtime.batches import Runs


@pytest.fixture
def model(folder: str) -> str:
    return folder


def test_export_round_trip(tmp_path: Path, model: str) -> None:
    out, videos = tmp_path / "folder" / "m.pt2", make_videos(tmp_path / "v", 3)
    words = ["export", "--format", "pt2", "--model", model, "--r", 6, "--batch-size", 2]
    files = sorted(videos.glob("*.mp4"))
    result = run(*words, "--out", out, "--check", *files)
    assert result.exit_code == 0, result.output
    assert "clips            4" in result.output  # three, filled up to whole batches
    assert "kept, step 3     the same" in result.output
    written = sta.export(
        model, tmp_path / "n.pt2", format="pt2", r=6, batch_size=2, check=[str(f) for f in files]
    )
    assert written.ok
    assert str(written).splitlines()[1:] == result.stdout.splitlines()[1:]
    assert written.records()[0]["clips"] == 4
    session = runtime.open_file(out)
    pruned = sta.apply(load_video_model(model).model.eval(), sta.STAConfig(r=6))
    clip = torch.randn(2, 4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(session(clip)[0], pruned(clip).logits, rtol=0, atol=1e-4)


def test_a_video_that_cannot_be_read_is_named(tmp_path: Path, model: str) -> None:
    videos = make_videos(tmp_path / "v", 2)
    (videos / "broken.mp4").write_bytes(b"no video")
    words = ["export", "--format", "pt2", "--model", model, "--out", tmp_path / "m.pt2"]
    result = run(*words, "--check", *sorted(videos.glob("*.mp4")))
    assert result.exit_code == 1
    assert "clips            2" in result.output
    assert "failed:" in result.output
    assert "broken.mp4" in result.output


def test_an_applied_method_is_exported_as_it_is(tmp_path: Path, model: str) -> None:
    pruned = sta.apply(sta.load(model).eval(), sta.STAConfig(r=4))
    written = sta.export(pruned, tmp_path / "m.pt2", format="pt2")
    assert len(written.comparison.kept) == 3
    assert len(runtime.open_file(tmp_path / "m.pt2")(torch.randn(1, 4, 3, 32, 32))) == 4


@pytest.mark.parametrize("before", [None, b"a file of before"])
def test_export_that_differs_ends_with_1_and_writes_nothing(
    tmp_path: Path, model: str, monkeypatch, before: bytes | None
) -> None:
    def wrong(path: Path, **settings: object):
        session = opened(path, **settings)
        return lambda pixels: [
            out + 1 if out.is_floating_point() else out for out in session(pixels)
        ]

    opened = runtime.open_file
    monkeypatch.setattr(runtime, "open_file", wrong)
    out = tmp_path / "m.pt2"
    if before is not None:
        out.write_bytes(before)
    result = run("export", "--format", "pt2", "--model", model, "--out", out, "--overwrite")
    assert result.exit_code == 1
    assert "m.pt2: not written, not the same as the model: logits differ by 1" in result.output
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([before] if before else [])


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, model: str, monkeypatch) -> None:
    def broken(*_: object, **__: object):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(runtime, "open_file", broken)
    with pytest.raises(RuntimeError, match="no such operator"):
        sta.export(model, tmp_path / "m.pt2", format="pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_only_where_that_is_asked_for(
    tmp_path: Path, model: str
) -> None:
    out = tmp_path / "m.pt2"
    out.write_text("a week's work")
    words = ["export", "--format", "pt2", "--model", model, "--out", out]
    with pytest.raises(FileExistsError, match=r"m\.pt2: is there already; overwrite=True"):
        sta.export(model, out, format="pt2")
    assert out.read_text() == "a week's work"
    assert run(*words, "--overwrite").exit_code == 0
    assert runtime.open_file(out) is not None
    weights = tmp_path / "n.bin"
    weights.write_text("of something else")
    with pytest.raises(FileExistsError, match=r"n\.bin: is there already"):
        sta.export(model, tmp_path / "n.xml", format="openvino")


def test_weights_beside_the_file_come_with_it(tmp_path: Path, model: str) -> None:
    pytest.importorskip("openvino")
    assert sta.export(model, tmp_path / "m.xml", format="openvino").ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bin", "m.xml"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "onnx", "--precision", "int8", "--out", "m.onnx"), "for int8 use openvino"),
        (("--format", "openvino", "--out", "m.onnx"), "openvino files end with .xml"),
        (("--format", "pt2", "--out", "m.pt2", "--r", "16"), "r=16"),
        (("--format", "pt2", "--out", "m.pt2", "--check", "no.mp4"), "no.mp4"),
    ],
)
def test_wrong_usage(words, said, model, monkeypatch, refused, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("export", "--model", model, *words)


def test_a_runtime_that_is_missing(model, monkeypatch, refused, tmp_path) -> None:
    from sta.runtime import extras

    monkeypatch.setattr(extras, "_installed", lambda name: False)
    videos = make_videos(tmp_path / "v", 1)
    words = ("predict", videos, "--model", model, "--runtime", "openvino")
    assert 'pip install "sta-video[export]"' in refused(*words)


def test_predict_in_onnxruntime_is_predict(tmp_path: Path, model: str) -> None:
    pytest.importorskip("onnxruntime")
    videos = make_videos(tmp_path / "v", 3)  # the last batch of two holds one
    found = {}
    for on in ("torch", "onnxruntime"):
        out = tmp_path / f"{on}.jsonl"
        words = ("predict", videos, "--model", model, "--r", 6, "--batch-size", 2)
        result = run(*words, "--runtime", on, "--out", out)
        assert result.exit_code == 0, result.output
        found[on] = list(read_rows(str(out)))
        other = run(*words, "--runtime", "compile", "--out", out, "--resume")
        assert "cannot be resumed with runtime 'compile'" in str(other.exception)
    for one, other in zip(found["torch"], found["onnxruntime"], strict=True):
        assert one["path"] == other["path"]
        assert [p["label"] for p in one["predictions"]] == [
            p["label"] for p in other["predictions"]
        ]
        scores = [[p["score"] for p in row["predictions"]] for row in (one, other)]
        np.testing.assert_allclose(*scores, atol=1e-5)


class TestRuns:
    """Batches of any size on graphs of one size."""

    @pytest.fixture
    def made(self, monkeypatch) -> list[tuple[str, int]]:
        """Runtimes that note what they are made for, and take no other shape."""
        made: list[tuple[str, int]] = []

        def prepare(model: nn.Module, clip: Tensor, on: str = "torch", **_: object):
            made.append((on, len(clip)))

            def run(pixels: Tensor) -> Tensor:
                assert pixels.shape == clip.shape
                return pixels.flatten(1)[:, :3]

            return Prepared(run, list)

        monkeypatch.setattr(runtime, "prepare", prepare)
        return made

    def test_smaller_batches_are_filled_up(self, made) -> None:
        runs = Runs(lambda number: nn.Identity(), 2, "onnxruntime")
        for size in (3, 1, 3, 2):
            clip = torch.randn(size, 2, 4)
            logits, seconds, _ = runs(clip)
            assert len(seconds) == 2
            for one in logits:
                torch.testing.assert_close(one, clip.flatten(1)[:, :3])
        assert made == [("onnxruntime", 3)] * 2

    def test_larger_batches_make_new_graphs(self, made) -> None:
        runs = Runs(lambda number: nn.Identity(), 1, "onnxruntime")
        assert [len(runs(torch.zeros(size, 2, 4))[0][0]) for size in (1, 4, 2)] == [1, 4, 2]
        assert made == [("onnxruntime", 1), ("onnxruntime", 4)]


def test_on_a_gpu_these_runtimes_are_refused(model: str) -> None:
    pytest.importorskip("openvino")
    opened = load_video_model(model)
    with pytest.raises(ValueError, match='device="cpu"'):
        Classifier(opened.model, opened.clip, device="cuda", runtime="openvino")


@pytest.mark.parametrize("words", [("--r", 4), ("--method", "random")])
def test_bench_takes_a_config_or_a_method_and_its_r(refused, tmp_path, words):
    file = tmp_path / "tuned.json"
    sta.STAConfig(r=8).to_file(file)
    said = refused("bench", "--model", "vit-digits", "--config", file, *words)
    assert "leave --method and --r out" in said
