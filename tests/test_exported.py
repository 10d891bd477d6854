"""An exported file as a model: in every command what the model is that it was made of."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import sta
from inference_runs import NAMES, make_videos, run
from sta.backbones.zoo.video_model import load_video_model
from sta.runtime import write_file
from sta.runtime.exported import ExportedModel, open_model

ENDINGS = {"onnx": ".onnx", "openvino": ".xml", "pt2": ".pt2"}
NEEDS = {"onnx": "onnxruntime", "openvino": "openvino", "pt2": "torch"}


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    return make_videos(tmp_path_factory.mktemp("exported") / "v", 3)


@pytest.fixture(scope="module", params=ENDINGS)
def file(request, folder, tmp_path_factory) -> Path:
    """A pruned model as a file for any number of clips, in every format."""
    pytest.importorskip(NEEDS[request.param])
    path = tmp_path_factory.mktemp("file") / f"m{ENDINGS[request.param]}"
    sta.export(folder, path, format=request.param, r=6, stride=2, progress=False)
    return path


def test_predict_of_a_file_is_predict_of_its_model(file, folder, videos) -> None:
    own = sta.predict(videos, folder, r=6, stride=2, logits=True, progress=False)
    of_file = sta.predict(videos, file, logits=True, progress=False)
    for one, other in zip(own, of_file, strict=True):
        assert one["path"] == other["path"]
        assert [p["label"] for p in one["predictions"]] == [
            p["label"] for p in other["predictions"]
        ]
        np.testing.assert_allclose(one["logits"], other["logits"], atol=1e-3)


def test_evaluate_bench_and_show_take_a_file(file, folder, videos) -> None:
    own = sta.evaluate(videos / "list.txt", folder, r=6, stride=2, progress=False).table[0]
    row = sta.evaluate(videos / "list.txt", file, progress=False).table[0]
    assert (row["method"], row["r"]) == ("sta", 6)
    assert row["gflops"] == pytest.approx(own["gflops"])
    assert row["top1"] == own["top1"]
    bench = sta.bench(str(file), rounds=1, warmup=0, memory=False, progress=False)
    (measured,) = bench.rows
    assert (measured.name, measured.runtime) == ("STA, r = 6", ExportedModel(file).runtime)
    clip = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    seen = sta.show(clip, str(file), rounds=0, progress=False)
    with_model = sta.show(clip, folder, r=6, rounds=0, progress=False).methods[0]
    for step, expected in zip(seen.methods[0].steps, with_model.steps, strict=True):
        assert (step.after, step.patch) == (expected.after, expected.patch)
        np.testing.assert_array_equal(step.kept, expected.kept)
    assert len(seen.records()) == 1  # there is no unpruned model in the file
    assert "Unpruned" not in str(seen)


def assert_takes_any_batch(file: Path, folder: str) -> None:
    model = ExportedModel(file)
    pruned = sta.apply(load_video_model(folder).model, sta.STAConfig(r=6))
    for size in (3, 1, 5):
        pixels = torch.randn(size, 4, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(model(pixels), pruned(pixels).logits, atol=1e-3, rtol=0)
        for own, expected in zip(model.kept, sta.kept(pruned), strict=True):
            assert torch.equal(own, expected)
    with pytest.raises(ValueError, match=r"takes pixels of shape \(B, 4, 3, 32, 32\)"):
        model(torch.randn(1, 4, 3, 16, 16))


def test_batches_of_any_size(file, folder) -> None:
    forward = ExportedModel(file)._session.forward
    assert len(forward(torch.zeros(3, 4, 3, 32, 32))) == 3  # the file itself, nothing cut or filled
    assert_takes_any_batch(file, folder)


def test_a_file_for_one_batch_is_filled_up(folder, tmp_path) -> None:
    path = tmp_path / "m.pt2"
    made = sta.export(folder, path, format="pt2", r=6, batch_size=2, progress=False)
    assert made.shape[0] == 2
    assert_takes_any_batch(path, folder)


def test_a_method_for_one_batch_is_exported_for_one_clip(folder, tmp_path, monkeypatch) -> None:
    """A method of somebody else's may not allow another number of clips than it was traced with."""
    choose = sta.STAConfig.choose
    monkeypatch.setattr(
        sta.STAConfig, "choose", lambda self, site: (len(site.tokens), choose(self, site))[1]
    )
    path = tmp_path / "m.pt2"
    made = sta.export(folder, path, format="pt2", r=6, progress=False)
    assert made.shape[0] == 1
    monkeypatch.undo()
    assert_takes_any_batch(path, folder)


def test_it_says_what_it_needs_and_travels(file) -> None:
    opened = open_model(file)
    assert opened.class_names == NAMES
    assert (opened.clip.views.frames, opened.clip.views.stride) == (4, 2)
    assert opened.model.facts.config == sta.STAConfig(r=6)
    again = pickle.loads(pickle.dumps(opened.model))
    assert again.facts == opened.model.facts


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--r", 4), "has its method in it"),
        (("--runtime", "compile"), "leave runtime and device out"),
        (("--frames", 8), "takes clips of 4 frames of 32 pixels"),
        (("--set", "image_size=64"), "is an exported file"),
    ],
)
def test_what_is_in_the_file_is_not_asked_for(refused, file, videos, words, said) -> None:
    assert said in refused("predict", videos, "--model", file, *words)


def test_a_stream_takes_a_file(file) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (16, 40, 40, 3), np.uint8)
    stream = sta.Stream(file, every=0.2, fps=10)
    rows = [row for frame in frames if (row := stream.push(frame)) is not None]
    assert rows
    assert rows[0]["predictions"][0]["label"] in NAMES


def test_counts_that_follow_the_clip_need_a_size(folder, tmp_path) -> None:
    for config in (sta.RLTConfig(), sta.FrameDifferenceConfig(budget="auto", threshold=0.1)):
        applied = sta.apply(sta.load(folder).eval(), config)
        for model, given in ((folder, config), (applied, None)):
            with pytest.raises(ValueError, match=r"a file has one shape: set buckets"):
                sta.export(model, tmp_path / "m.onnx", config=given, progress=False)


def test_other_commands_say_what_to_give(refused, file, videos) -> None:
    assert "give the model that it was made of" in refused("analyze", videos, "--model", file)
    assert "has no features" in refused("features", videos, "--model", file)


def test_files_of_other_origin_say_what_is_missing(file, folder, videos, tmp_path, refused):
    other = tmp_path / file.name
    kind = next(k for k, ending in ENDINGS.items() if ending == file.suffix)
    write_file(
        load_video_model(folder).model, torch.zeros(1, 4, 3, 32, 32), other, file_format=kind
    )
    assert "does not say which clips it takes" in refused("predict", videos, "--model", other)


def test_metadata_of_another_model_are_refused(file, folder, tmp_path, videos, refused) -> None:
    """The graph has other classes, steps or shapes than the metadata say."""
    other = tmp_path / file.name
    kind = next(k for k, ending in ENDINGS.items() if ending == file.suffix)
    facts, model = ExportedModel(file).facts, load_video_model(folder).model
    clip = torch.zeros(1, 4, 3, 32, 32)
    write_file(model, clip, other, file_format=kind, facts=facts.to_json())
    said = refused("predict", videos, "--model", other)
    assert "its metadata are of another model" in said
    assert "3 steps" in said


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_truncated_files_are_named(file, videos, tmp_path, refused, share) -> None:
    other, content = tmp_path / file.name, file.read_bytes()
    other.write_bytes(content[: int(share * len(content))])
    if file.suffix == ".xml":
        (tmp_path / "m.bin").write_bytes(file.with_suffix(".bin").read_bytes())
    said = refused("predict", videos, "--model", other)
    assert f"{other}: " in said
    assert "damaged or incomplete" in said


def test_weights_beside_the_file_may_be_missing(videos, tmp_path, refused, folder) -> None:
    pytest.importorskip("openvino")
    path = tmp_path / "m.xml"
    sta.export(folder, path, format="openvino", progress=False)
    (tmp_path / "m.bin").unlink()
    assert "m.bin" in refused("predict", videos, "--model", path)


def test_a_pt2_that_could_run_code_is_refused(folder, tmp_path, videos, refused) -> None:
    """PyTorch itself would unpickle or execute whatever a .pt2 asks it to."""
    path, evil = tmp_path / "m.pt2", tmp_path / "evil.pt2"
    sta.export(folder, path, format="pt2", progress=False)
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (ran,))

    def pickled(name: str, content: bytes) -> bytes:
        if name.endswith("weights/weight_0"):
            return pickle.dumps(Evil())
        return content.replace(b'"use_pickle": false', b'"use\\u005fpickle": true')

    def expression(name: str, content: bytes) -> bytes:
        touch = f"Mul(open('{ran}', 'w'), Symbol('s1', positive=True, integer=True))".encode()
        return re.sub(rb'(?<="expr_str": ")[^"]*', touch, content)

    def guard(name: str, content: bytes) -> bytes:
        return content.replace(
            b'"guards_code": []', f'"guards_code": ["open({str(ran)!r})"]'.encode()
        )

    for change in (pickled, expression, guard):
        changed = False
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(evil, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                new.writestr(name, change(name, content))
                changed |= change(name, content) != content
        assert changed, change
        assert "could run code" in refused("predict", videos, "--model", evil)
        assert not ran.exists()


def test_an_int8_file_predicts(folder, videos, tmp_path) -> None:
    pytest.importorskip("nncf")
    path = tmp_path / "m.xml"
    sta.export(folder, path, format="openvino", precision="int8", r=6, progress=False)
    result = run("predict", videos, "--model", path, "--out", tmp_path / "rows.jsonl")
    assert result.exit_code == 0, result.output
