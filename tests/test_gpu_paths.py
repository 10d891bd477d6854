"""What a GPU needs of a pruned forward and a CPU can show: no waiting, few launches, small uploads.

Video Swin works piece by piece on a CPU, where shapes may depend on the data; here it goes the way
that it goes on a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import VideoMAEForVideoClassification

import sta
from backbones import Backbone, _videomae, output, seeded
from sta.backbones import swin, swin_tokens
from sta.backbones.zoo.spec import ClipSpec
from sta.inference.clip_model import Classifier
from sta.inference.scoring import score_samples
from sta.inference.uploads import Uploads
from sta.runtime import with_torch
from sta.video import ViewSpec
from sta.video.prefetch import Sample

#: Operators whose result, or its size, the CPU waits for; `lift_fresh` brings Python's values in.
WAITING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal"),
    *("is_nonzero", "unique_consecutive", "bincount", "lift_fresh", "_pin_memory"),
}
#: What reads a tensor's values past the dispatcher.
READING = ("tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__")


class Launches(TorchDispatchMode):
    """Counts operators that compute something, and notes those that a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.waiting: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if masks or name in WAITING or func is torch.ops.aten.repeat_interleave.Tensor:
            self.waiting.append(name)
        returned = func._schema.returns
        if not (returned and returned[0].alias_info and not returned[0].alias_info.is_write):
            self.counts[name] += 1  # not a view
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@contextmanager
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, nobody looks at a tensor's values."""

    def refuse(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a tensor's values are read: on a GPU the CPU would wait for them")

    with monkeypatch.context() as patch:
        for name in READING:
            patch.setattr(Tensor, name, refuse)
        yield


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (swin, swin_tokens):
        monkeypatch.setattr(module, "works_in_pieces", lambda x: False)


@torch.no_grad()
def test_a_pruned_forward_waits_for_nothing(backbone: Backbone, monkeypatch) -> None:
    model, clip = backbone.make(), backbone.clip()
    for config in (backbone.config, *backbone.configs):
        sta.apply(model, config)
        expected = output(model, clip)  # what is made once, such as biases, is there from now on
        with Launches() as seen, unread(monkeypatch):
            found = output(model, clip)
        assert seen.waiting == [], config
        assert torch.equal(found, expected), config


@torch.no_grad()
def test_that_waiting_is_seen(monkeypatch) -> None:
    x = torch.arange(4)
    with Launches() as seen:
        x[x > 1], x.nonzero(), torch.tensor([1.0])
    assert len(seen.waiting) == 3
    with unread(monkeypatch), pytest.raises(AssertionError, match="values are read"):
        x.tolist()


@torch.no_grad()
def test_launches_per_step() -> None:
    """A few for all frames and six for each that depends on the one before: see performance.md."""

    def launches(frames: int, config: sta.Config) -> int:
        settings = _videomae(num_frames=frames, num_hidden_layers=3)
        model = sta.apply(seeded(lambda: VideoMAEForVideoClassification(settings))(), config)
        clip = torch.zeros(1, frames, 3, 32, 32)
        output(model, clip)
        with Launches() as seen:
            output(model, clip)
        return seen.total

    config, none = sta.STAConfig(schedule=(4,), blocks=(1,)), sta.DenseConfig()
    short, long = (launches(frames, config) - launches(frames, none) for frames in (8, 16))
    per_frame = (long - short) / 4  # of tubelets of two frames
    assert per_frame <= 7
    assert short - 4 * per_frame <= 40


def test_clips_are_uploaded_as_bytes_and_normalised_there(monkeypatch) -> None:
    """Floats would be four times as much. The device is a stand-in that has no values."""
    spec = ClipSpec(ViewSpec(frames=2, stride=1, size=8), "TCHW")
    clips = np.zeros((2, 2, 8, 8, 3), dtype=np.uint8)
    moved: list[tuple[torch.dtype, int]] = []
    to = Tensor.to

    def watched(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if "meta" in map(str, (*args, *kwargs.values())) and not self.is_meta:
            moved.append((self.dtype, self.numel()))
        return to(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", watched)
    made = spec.pixels(clips, "meta")
    assert made.shape == (2, 2, 3, 8, 8)
    assert made.dtype == torch.float32
    assert (torch.uint8, clips.size) in moved
    assert all(count <= 3 for kind, count in moved if kind != torch.uint8)


class Stream:
    """A stand-in for a stream of a GPU, which notes what is asked of it."""

    def __init__(self, device: str = "", notes: list[Any] | None = None) -> None:
        self.notes: list[Any] = [] if notes is None else notes
        self.events = 0

    def record_event(self) -> int:
        self.events += 1
        return self.events

    def wait_event(self, event: int) -> None:
        self.notes.append(("waits for", event))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the stream that the model runs in."""
    found: list[Any] = []
    current = Stream(notes=found)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(
        Tensor, "record_stream", lambda self, stream: found.append(("uses", stream is current))
    )
    return found


def test_a_batch_is_uploaded_before_the_model_runs_the_one_before(notes) -> None:
    def pixels(clips: Any) -> Tensor:
        notes.append(("uploads", clips[:, 0, 0, 0, 0].tolist()))
        return torch.as_tensor(clips)

    def score(clips: Any) -> Any:
        values = np.asarray(clips)[:, 0, 0, 0, 0].astype(float)
        notes.append(("runs", values.tolist()))
        return values[None, :, None], np.ones(1)

    class OnGpu:
        upload = Uploads(pixels, "cuda")

        def __call__(self, clips: Tensor) -> Any:
            assert isinstance(clips, Tensor)
            return score(clips)

    def samples() -> list[Sample]:
        clips = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1, 1, 1)
        made = [Sample(str(n), clip) for n, clip in enumerate(clips)]
        return [*made[:3], Sample("damaged", None, error="why"), *made[3:]]

    found = list(score_samples(samples(), OnGpu(), 2))
    assert notes == [
        ("uploads", [0, 1]),
        ("uploads", [2, 3]),
        ("waits for", 1),
        ("uses", True),
        ("runs", [0.0, 1.0]),
        ("uploads", [4]),
        ("waits for", 2),
        ("uses", True),
        ("runs", [2.0, 3.0]),
        ("waits for", 3),
        ("uses", True),
        ("runs", [4.0]),
    ]
    on_cpu = list(score_samples(samples(), score, 2))
    assert [(v.path, v.error) for v in found] == [(v.path, v.error) for v in on_cpu]
    for one, other in zip(found, on_cpu, strict=True):
        np.testing.assert_array_equal(one.scores, other.scores)


def test_only_a_gpu_is_uploaded_to(notes) -> None:
    model = seeded(lambda: VideoMAEForVideoClassification(_videomae()))()
    spec = ClipSpec(ViewSpec(frames=2, stride=1, size=8), "TCHW")
    classifier = Classifier(model, spec)
    assert classifier.upload is None
    classifier.device = "cuda:1"
    assert isinstance(classifier.upload, Uploads)
    assert classifier.upload is classifier.upload  # one stream for all batches


def test_compiled_on_a_gpu_is_one_cuda_graph(monkeypatch) -> None:
    """Its results are copied: the next run writes to the same memory."""
    asked: list[Any] = []
    memory = torch.zeros(1, 3)
    monkeypatch.setattr(torch, "compile", lambda model, **given: asked.append(given) or model)
    monkeypatch.setattr(
        with_torch,
        "_prepared",
        lambda *a: with_torch.Prepared(
            lambda pixels: memory.fill_(float(pixels)), lambda: [memory]
        ),
    )

    class OnGpu:
        device = torch.device("cuda")

        def __float__(self) -> float:
            return 0.0

    run = with_torch.run_compiled(torch.nn.Linear(1, 1), OnGpu(), "float32", None)  # type: ignore[arg-type]
    assert asked[0]["mode"] == "reduce-overhead"
    first = run(torch.tensor(1.0))
    kept = run.kept()
    run(torch.tensor(2.0))
    assert first.eq(1).all()
    assert kept[0].eq(1).all()
    with_torch.run_compiled(torch.nn.Linear(1, 1), torch.zeros(1), "float32", None)
    assert asked[1]["mode"] is None
