"""`--runtime auto`: never much slower than PyTorch, near the best where a run is long."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
import torch

import sta
from inference_runs import make_videos
from sta.measure import auto
from sta.measure.auto import (
    AutoRuns,
    Speed,
    able,
    cache_file,
    preparation,
    remember,
    remembered,
)

BATCH = 8


@dataclass
class Machine:
    """A machine whose runtimes take as long as is said here, on a clock of its own.

    Attributes:
        seconds: Per clip, by runtime.
        prepare: Until a runtime is ready.
    """

    seconds: dict[str, float]
    prepare: dict[str, float]
    now: float = 0.0
    reading: float = 0.0  # seconds per clip outside the model
    log: list[tuple[str, int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def runs(self, runtime: str) -> Fake:
        return Fake(self, runtime)

    def run(self, clips: int, **options: object) -> float:
        """How long a run of so many clips takes."""
        start = self.now
        runs = AutoRuns(
            self.runs, 1, "float32", {"model": "m"}, clips, report=self.said.append, **options
        )
        for at in range(0, clips, BATCH):
            runs(torch.zeros(min(BATCH, clips - at), 2))
            self.now += BATCH * self.reading
        return self.now - start


@dataclass
class Fake:
    machine: Machine
    runtime: str
    ready: bool = False

    def make(self, pixels) -> None:
        if not self.ready:
            self.machine.now += self.machine.prepare.get(self.runtime, 0.0)
            self.ready = True

    def __call__(self, pixels, *, kept=False):
        self.make(pixels)
        took = len(pixels) * self.machine.seconds[self.runtime]
        self.machine.now += took
        self.machine.log.append((self.runtime, len(pixels)))
        return [pixels], [took], []


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Two more runtimes are installed, nothing is remembered, the clock is the machine's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = {"torch": None, "openvino": None, "onnxruntime": None, "compile": "no compiler"}
    monkeypatch.setattr(auto, "available", lambda: found)

    def machine(**options) -> Machine:
        made = Machine(**options)
        monkeypatch.setattr(auto.time, "perf_counter", lambda: made.now)
        return made

    return machine


@pytest.mark.parametrize("clips", [1, 40, 400, 4000, 40000])
@pytest.mark.parametrize(
    ("openvino", "onnxruntime"), [(0.1, 0.12), (0.2, 0.19), (0.5, 0.9), (0.15, 0.05)]
)
def test_never_much_slower_than_torch_and_near_the_best_where_it_pays(
    installed, clips, openvino, onnxruntime
) -> None:
    machine = installed(
        seconds={"torch": 0.15, "openvino": openvino, "onnxruntime": onnxruntime},
        prepare={"openvino": 18.0, "onnxruntime": 25.0},
    )
    took = machine.run(clips)
    # Trials of a runtime that is far slower cost its few batches, too.
    slow = sum(n * machine.seconds[name] for name, n in machine.log[:20] if name != "torch")
    assert took <= 1.05 * clips * 0.15 + slow
    best = min(0.15, openvino, onnxruntime if clips > 4000 else 1.0)  # the first that is tried
    if clips >= 4000:
        assert took <= 1.1 * clips * best
    assert sum(count for _, count in machine.log) == clips  # every clip once
    if clips <= 400:
        assert {name for name, _ in machine.log} == {"torch"}
        assert machine.said == []


def test_a_small_model_is_tried_on_four_thousand_clips(installed) -> None:
    """Getting ready as was measured: it is paid for by what the faster runtime saves."""
    machine = installed(
        seconds={"torch": 0.035, "openvino": 0.02, "onnxruntime": 0.03},
        prepare={"openvino": 5.6, "onnxruntime": 7.0},
    )
    assert machine.run(4000) <= 1.1 * (5.6 + 4000 * 0.02)
    assert machine.run(400) <= 1.05 * 400 * 0.035


def test_reading_counts_as_part_of_the_run(installed) -> None:
    machine = installed(
        seconds={"torch": 0.025, "openvino": 0.02, "onnxruntime": 0.03},
        prepare={"openvino": 5.0, "onnxruntime": 7.0},
    )
    machine.run(4000)
    assert {name for name, _ in machine.log} == {"torch"}  # 5 % of 100 s are less than 6 s
    machine.log.clear()
    machine.reading = 0.01
    machine.run(4000)
    assert machine.log[-1][0] == "openvino"


def test_getting_ready_takes_as_long_as_on_this_machine_before(installed) -> None:
    about = {"device": "d", "threads": 2, "versions": {"torch": "3"}}
    assert preparation("openvino", about) == auto.PREPARE["openvino"]
    for number, seconds in enumerate((30.0, 40.0, 80.0)):
        known = {**about, "methods": [None] * (1 + number)}
        remember(f"k{number}", known, {"openvino": Speed(1.0, seconds)})
    assert preparation("openvino", about) == pytest.approx(80 / 3)  # per method
    assert preparation("openvino", {**about, "threads": 4}) == auto.PREPARE["openvino"]
    assert preparation("onnxruntime", about) == auto.PREPARE["onnxruntime"]


def test_what_was_measured_is_remembered_and_weighed(installed) -> None:
    machine = installed(
        seconds={"torch": 0.15, "openvino": 0.1, "onnxruntime": 0.2},
        prepare={"openvino": 18.0, "onnxruntime": 25.0},
    )
    machine.run(40000)
    assert "runtime: openvino (" in machine.said[-1]
    machine.log.clear()
    machine.run(4000)  # from the first clip on, and nothing is tried
    assert {name for name, _ in machine.log} == {"openvino"}
    assert "1.50x as fast as torch here before" in machine.said[-1]
    machine.log.clear()
    machine.run(40)  # getting ready would take longer than it saves
    assert {name for name, _ in machine.log} == {"torch"}


def test_another_shape_or_another_version_is_measured_anew(installed, monkeypatch) -> None:
    machine = installed(
        seconds={"torch": 0.15, "openvino": 0.1, "onnxruntime": 0.2},
        prepare={"openvino": 18.0, "onnxruntime": 25.0},
    )
    machine.run(40000)
    known = json.loads(cache_file().read_text())
    (entry,) = known.values()
    assert entry["about"]["shape"] == [BATCH, 2]
    monkeypatch.setattr(auto, "_versions", lambda: {"torch": "99"})
    machine.run(40000)
    assert len(json.loads(cache_file().read_text())) == 2


def test_a_runtime_that_fails_is_left_out(installed) -> None:
    machine = installed(seconds={"torch": 0.15, "onnxruntime": 0.1}, prepare={"onnxruntime": 25.0})
    usual = machine.runs

    def runs(name: str) -> Fake:
        if name == "openvino":
            raise RuntimeError("no such operation\nmore")
        return usual(name)

    machine.runs = runs
    machine.run(40000)
    assert "runtime openvino is left out: no such operation" in machine.said
    assert machine.log[-1][0] == "onnxruntime"


def test_windows_of_unknown_number_are_not_tried_on(installed) -> None:
    machine = installed(seconds={"torch": 0.15}, prepare={})
    runs = AutoRuns(machine.runs, 1, "float32", {}, None, report=machine.said.append)
    for _ in range(9):
        runs(torch.zeros(BATCH, 2))
    assert {name for name, _ in machine.log} == {"torch"}


@pytest.mark.parametrize("content", ["", "[1]", '{"k": {"runtimes": {"torch": "x"}}}', '{"k": 3}'])
def test_a_damaged_cache_has_nothing(monkeypatch, tmp_path, content) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_file().parent.mkdir()
    cache_file().write_text(content)
    assert remembered("k") == {}
    remember("k", {}, {"torch": Speed(1.0, 0.0)})
    assert remembered("k") == {"torch": Speed(1.0, 0.0)}


def test_precision_is_never_lowered_and_tokens_are_chosen_in_float32() -> None:
    for device in ("cpu", "cuda"):
        assert able("float32", device)[0] == "torch"
    assert "openvino" not in able("bfloat16", "cpu", pruned=True)
    assert able("int8", "cuda") == []


def test_predict_takes_auto_by_default_and_runs_torch_where_it_is_short(folder, tmp_path) -> None:
    videos = make_videos(tmp_path / "v", 2)
    given = sta.predict(videos, folder, r=6, logits=True, progress=False).records()
    plain = sta.predict(videos, folder, r=6, logits=True, runtime="torch", progress=False).records()
    assert given == plain
