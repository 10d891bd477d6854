"""Exported graphs do what the model does: the same logits, the same tokens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from transformers import (
    VideoMAEForVideoClassification,
    VivitForVideoClassification,
    VJEPA2ForVideoClassification,
)

import sta
from backbones import _swin, _videomae, _vivit, _vjepa2, output, seeded
from inference_runs import environment
from sta import runtime
from sta.runtime import comparison, graph, sessions, with_torch
from sta.runtime.graph import output_names, trace
from sta.runtime.sessions import Session

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


@dataclass(frozen=True, eq=False)
class Subject:
    """A model smaller than the adapter suite's, since compilers take seconds per hundred nodes."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    config: sta.STAConfig

    def clips(self, count: int, batch: int = 2) -> list[Tensor]:
        made = torch.Generator().manual_seed(1)
        return [torch.randn(batch, *self.shape, generator=made) for _ in range(count)]

    @cached_property
    def model(self) -> nn.Module:
        return sta.apply(self.make(), self.config)

    @cached_property
    def program(self) -> ExportedProgram:
        return trace(self.model, self.clips(1)[0], any_batch=True)

    @cached_property
    def converted(self) -> Any:
        """The OpenVINO model."""
        from sta.runtime import with_openvino

        return with_openvino.convert(self.program, output_names(self.model))

    def __str__(self) -> str:
        return self.name


COLUMNAR = sta.STAConfig(schedule=(5, 3), blocks=(1, 2))
BRIEFER = sta.STAConfig(schedule=(5,), blocks=(1,))  # later blocks still hear of it
SMALL = {"num_hidden_layers": 2}
SUBJECTS = (
    Subject(
        "videomae",
        seeded(lambda: VideoMAEForVideoClassification(_videomae(num_frames=4, **SMALL))),
        (4, 3, 32, 32),
        COLUMNAR,
    ),
    Subject(
        "vjepa2",
        seeded(lambda: VJEPA2ForVideoClassification(_vjepa2(frames_per_clip=4, **SMALL))),
        (4, 3, 32, 32),
        BRIEFER,
    ),
    Subject(
        "vivit",
        seeded(lambda: VivitForVideoClassification(_vivit(num_frames=4, **SMALL))),
        (4, 3, 32, 32),
        BRIEFER,
    ),
    Subject(
        "swin",
        seeded(lambda: _swin(depths=[1, 2], num_heads=[1, 2])),
        (3, 4, 32, 32),
        sta.STAConfig(r=5),
    ),
)
VIDEOMAE = SUBJECTS[0]


def onnx(subject: Subject, folder: Path) -> Session:
    from sta.runtime import with_onnx

    with_onnx.save(
        with_onnx.convert(subject.program, output_names(subject.model)), folder / "x.onnx"
    )
    return runtime.open_file(folder / "x.onnx", threads=1)


def openvino(subject: Subject, folder: Path) -> Session:
    from sta.runtime import with_openvino

    with_openvino.save(subject.converted, folder / "x.xml", half=False)
    return runtime.open_file(folder / "x.xml", threads=1)


def pt2(subject: Subject, folder: Path) -> Session:
    torch.export.save(subject.program, folder / "x.pt2")
    return runtime.open_file(folder / "x.pt2", threads=1)


# OpenVINO first: what it makes PyTorch remember must not get into the way of the others.
@pytest.mark.parametrize("write", [openvino, onnx, pt2], ids=lambda f: f.__name__)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_file_agrees_with_the_model(
    subject: Subject, write: Callable[[Subject, Path], Session], tmp_path: Path
) -> None:
    run, model = write(subject, tmp_path), subject.model
    for batch in (2, 1, 3):
        clip = subject.clips(1, batch)[0]
        with torch.no_grad():
            expected = output(model, clip)
        logits, *kept = run(clip)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        assert len(kept) == len(sta.kept(model)) > 0
        for one, other in zip(kept, sta.kept(model), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("on", "config"),
    [
        ("torch", None),
        ("openvino", None),
        ("onnxruntime", sta.STAConfig(r=0)),
        ("openvino", sta.STAConfig(r=0)),
    ],
)
def test_nothing_dropped(on: str, config: sta.STAConfig | None) -> None:
    model = VIDEOMAE.make() if config is None else sta.apply(VIDEOMAE.make(), config)
    clip, other = VIDEOMAE.clips(2)
    run = runtime.prepare(model, clip, on, threads=1)
    with torch.no_grad():
        torch.testing.assert_close(run(other), output(model, other), rtol=0, atol=1e-4)


def test_compiled_keeps_what_was_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile
    monkeypatch.setattr(  # the code generator has a test of its own, and takes half a minute
        torch, "compile", lambda model, **settings: compiled(model, backend="eager", **settings)
    )
    model, (clip, other) = VIDEOMAE.make(), VIDEOMAE.clips(2)
    run = runtime.prepare(sta.apply(model, VIDEOMAE.config), clip, "compile")
    with torch.no_grad():
        expected = output(model, other)
    sta.remove(model)
    with torch.inference_mode():
        torch.testing.assert_close(run(other), expected, rtol=0, atol=1e-5)


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with with_torch.limited(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_bfloat16_on_torch_is_close() -> None:
    clip = VIDEOMAE.clips(1)[0]
    model = VIDEOMAE.make()
    with torch.no_grad():
        expected = output(model, clip)
    run = runtime.prepare(model, clip, "torch", precision="bfloat16")
    got = run(clip)
    assert got.dtype == torch.float32
    assert 0 < (got - expected).abs().max() < 0.1 * expected.abs().max()


def test_int8_in_openvino() -> None:
    pytest.importorskip("nncf")
    from sta.runtime import with_openvino
    from sta.runtime.quantize import quantize, scoring_products

    model = VIDEOMAE.model
    spared = scoring_products(VIDEOMAE.converted)
    made = quantize(VIDEOMAE.converted, VIDEOMAE.clips(4))
    products = [op for op in made.get_ops() if op.get_type_name() == "MatMul"]
    for op in products:
        # What makes keys, values, MLPs is int8; what tokens are chosen by is not.
        inputs = [value.get_node().get_type_name() for value in op.input_values()]
        chosen_by = op.get_friendly_name() in spared
        assert ("FakeQuantize" in inputs) != chosen_by, op.get_friendly_name()
    assert len(products) > len(spared) > 0
    run = with_openvino.session(made, "int8", 1)
    found = comparison.compare(model, run, VIDEOMAE.clips(4))
    assert 0 < found.difference + found.flipped < 0.5 * found.scale
    assert min(found.kept) > 0.9


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_products_that_choose_tokens_are_found_on_every_backbone(subject: Subject) -> None:
    from sta.runtime.quantize import scoring_products

    found = scoring_products(subject.converted)
    assert (
        0 < len(found) < sum(op.get_type_name() == "MatMul" for op in subject.converted.get_ops())
    )


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [("_SORT", "Sort", "no Sort"), ("_PRODUCT", "Gemm", "no Gemm"), ("_ENDS", (), "no MVN or Abs")],
)
def test_operators_of_another_name_are_an_error(
    name: str, other: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assumes that OpenVINO calls its operators TopK, MatMul, MVN and Abs."""
    from sta.runtime import quantize

    monkeypatch.setattr(quantize, name, other)
    with pytest.raises(RuntimeError, match=said):
        quantize.scoring_products(VIDEOMAE.converted)


def test_the_cache_of_fake_tensors_can_be_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assumes torch._subclasses.fake_tensor.FakeTensorMode.cache_clear, which is private."""
    graph.clear_fake_tensors()
    monkeypatch.setattr(graph, "import_module", lambda name: object())
    with pytest.raises(RuntimeError, match=r"FakeTensorMode\.cache_clear"):
        trace(VIDEOMAE.model, VIDEOMAE.clips(1)[0])


def test_runtime_is_there_after_import_sta() -> None:
    code = "import sta, sys; assert 'torch' not in sys.modules; print(sta.runtime.prepare.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    assert done.stdout.split() == ["prepare"], done.stderr


@pytest.mark.parametrize(
    ("on", "precision", "words"),
    [
        ("tensorrt", "float32", "onnxruntime"),
        ("openvino", "int4", "bfloat16"),
        ("torch", "int8", "openvino"),
        ("onnxruntime", "bfloat16", "torch, compile, openvino"),
        ("openvino", "int8", "calibration"),
    ],
)
def test_what_does_not_go_together_is_refused(on: str, precision: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        runtime.prepare(VIDEOMAE.model, VIDEOMAE.clips(1)[0], on, precision=precision)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("tflite", "float32", "x.tflite"), "openvino"),
        (("onnx", "int8", "x.onnx"), "for int8 use openvino"),
        (("openvino", "bfloat16", "x.xml"), "when the file is run"),
        (("openvino", "float32", "x.onnx"), "end with .xml"),
    ],
)
def test_wrong_formats_are_refused(given: tuple[str, str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sessions.check_format(*given)


def test_a_missing_extra_names_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from sta.runtime import extras

    found = extras._installed
    monkeypatch.setattr(extras, "_installed", lambda name: name != "openvino" and found(name))
    assert runtime.available()["torch"] is None
    assert 'pip install "sta-video[export]"' in str(runtime.available()["openvino"])
    with pytest.raises(ImportError, match=r"sta-video\[export\]"):
        runtime.prepare(VIDEOMAE.model, VIDEOMAE.clips(1)[0], "openvino")


class TestFigures:
    """The check finds what is wrong, and nothing else."""

    def compare(self, change: Callable[[list[Tensor]], object]) -> list[str]:
        model = VIDEOMAE.model

        def run(clip: Tensor) -> list[Tensor]:
            with torch.no_grad():
                outputs = [output(model, clip).clone(), *(k.clone() for k in sta.kept(model))]
            change(outputs)
            return outputs

        return comparison.compare(model, run, VIDEOMAE.clips(2)).failures("float32")

    def test_the_model_itself_passes(self) -> None:
        assert self.compare(lambda outputs: None) == []

    def test_logits(self) -> None:
        (said,) = self.compare(lambda outputs: outputs[0].add_(0.01))
        assert "logits differ by 0.01" in said

    def test_tokens(self) -> None:
        def other_tokens(outputs: list[Tensor]) -> None:
            dropped = set(range(16)) - set(outputs[2][0, 0].tolist())
            outputs[2][0, 0, 0] = dropped.pop()

        (said,) = self.compare(other_tokens)
        assert said.startswith("step 2 keeps other tokens")

    def test_nan(self) -> None:
        assert self.compare(lambda outputs: outputs[0].fill_(torch.nan))


SIGNALS = """
import gc, os, signal
import numpy as np, openvino as ov
from openvino import opset13 as op
from sta.runtime.with_openvino import core

signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
x = op.parameter([8, 8], np.float32)
model = ov.Model([op.matmul(x, x, False, False)], [x])
first, second = (core().compile_model(model, "CPU") for _ in range(2))
del first
gc.collect()
del second
gc.collect()
os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_signals_are_handled_after_openvino_models_ended() -> None:
    """With a Core for each model, whose plugins end in another order than they began, they kill."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SIGNALS],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr
