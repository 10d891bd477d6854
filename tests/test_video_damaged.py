"""Damaged files of many kinds: each has its row, nothing crashes or hangs. See the benchmark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sta.inference.local import decode_ahead
from sta.video.lists import Entry

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from damaged_files import SPEC, VIDEOS, damaged_files, originals, outcome


@pytest.mark.parametrize("seed", [1, 2])
def test_every_damaged_file_has_its_row(tmp_path, seed):
    files = list(damaged_files(tmp_path, 6 * len(VIDEOS), seed))
    entries = [Entry(path.name, str(path)) for path, _ in files]
    samples = list(decode_ahead(entries, SPEC, timeout=20))
    assert [sample.path for sample in samples] == [entry.path for entry in entries]
    outcomes = [outcome(sample) for sample in samples]
    assert {"crashed", "given up"}.isdisjoint(outcomes)
    assert outcomes.count("refused") > len(files) // 5
    for sample in samples:
        if sample.error is None:
            assert sample.clips is not None
            assert sample.clips.shape == (6, 8, 32, 32, 3)
        else:
            assert sample.clips is None
            assert "Traceback" not in sample.error
            assert "Error:" not in sample.error  # in words, not as a Python exception


def test_the_undamaged_files_are_all_read(tmp_path):
    entries = [Entry(path.name, str(path)) for path in originals(tmp_path)]
    assert [s.error for s in decode_ahead(entries, SPEC)] == [None] * len(VIDEOS)
