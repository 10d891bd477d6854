"""Low precision is tried in a process of its own, and limited where it dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sta
from sta.runtime import probe

#: Dies as a processor without AMX does, unless oneDNN is kept from it.
DIES_WITHOUT_LIMIT = """
import os, signal, sys
if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_VNNI":
    os.kill(os.getpid(), signal.SIGILL)
"""
ALWAYS_DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Puts another program in the place of the trial."""
    monkeypatch.delenv(probe.VARIABLE, raising=False)
    monkeypatch.setattr(probe, "_compiled_openvino", False)
    monkeypatch.setattr(os, "environ", dict(os.environ))  # what is set here stays here
    probe.failure.cache_clear()

    def put(text: str) -> None:
        path = tmp_path / "trial.py"
        path.write_text(text)
        monkeypatch.setattr(probe, "PROBE", path)

    yield put
    probe.failure.cache_clear()


def test_nothing_is_said_where_all_is_well(trial) -> None:
    trial("")
    said: list[str] = []
    probe.make_safe("openvino", "int8", report=said.append)
    assert not said
    assert probe.VARIABLE not in os.environ


def test_instructions_are_limited_where_the_trial_dies(trial) -> None:
    trial(DIES_WITHOUT_LIMIT)
    said: list[str] = []
    probe.make_safe("openvino", "int8", report=said.append)
    assert os.environ[probe.VARIABLE] == "AVX512_CORE_VNNI"
    (line,) = said
    assert "signal 4" in line
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI" in line


def test_too_late_in_this_process(trial) -> None:
    trial(DIES_WITHOUT_LIMIT)
    probe.note_openvino()
    with pytest.raises(probe.RestartNeeded, match="before Python starts") as needed:
        probe.make_safe("openvino", "int8")
    assert needed.value.limit == "AVX512_CORE_VNNI"


def test_an_export_probes_before_it_computes(trial, monkeypatch: pytest.MonkeyPatch) -> None:
    trial(DIES_WITHOUT_LIMIT)
    loaded: list[str | None] = []

    def load(name: str, **_: object) -> None:
        loaded.append(os.environ.get(probe.VARIABLE))
        raise ValueError("far enough")

    monkeypatch.setattr("sta.runtime.export.VideoModel.open", load)
    with pytest.raises(ValueError, match="far enough"):
        sta.export("vit-digits", "x.xml", format="openvino", precision="int8")
    assert loaded == ["AVX512_CORE_VNNI"]


def test_what_dies_anyway_is_refused(trial) -> None:
    trial(ALWAYS_DIES)
    with pytest.raises(ValueError, match=r"signal 4.*use float32"):
        probe.make_safe("openvino", "int8")


def test_float32_needs_no_trial(trial) -> None:
    trial(ALWAYS_DIES)
    probe.make_safe("openvino", "float32")


def test_the_real_trial_runs() -> None:
    pytest.importorskip("openvino")
    reasons = [probe.failure("openvino", "int8", limit) for limit in (None, probe.LIMITS["int8"])]
    assert None in reasons, reasons
