"""Damaged and hostile files of many kinds: each has a result, and nothing crashes or reaches out.

The same files in greater number: `benchmarks/fuzz_videos.py`.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from sta.video import VideoError, read_views

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from fuzz_videos import SPEC, VIDEOS, Cases, Watch, originals, try_files


@pytest.mark.parametrize("seed", [1, 2])
def test_every_file_has_a_result_and_nothing_is_fetched(tmp_path, seed, capfd):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    watch = Watch(outside)
    cases = list(Cases(inside, watch, seed).draw(108))
    with watch:
        outcomes = try_files(iter(cases), inside, watch, timeout=60)
    assert not watch.noticed
    assert not capfd.readouterr().err  # of the decoding processes, which print nothing
    assert len(outcomes) == len(cases)
    counts = Counter(outcomes)
    assert set(counts) <= {"read", "damaged", "refused"}
    assert counts["read"] > 10
    assert counts["damaged"] > 10
    for case, outcome in zip(cases, outcomes, strict=True):
        if case.change in ("playlist", "playlist named as video"):
            assert outcome == "refused", case.name


def error_of(path: Path) -> VideoError | None:
    try:
        assert read_views(str(path), SPEC).clips().shape == (6, 8, 32, 32, 3)
    except VideoError as error:
        return error
    return None


def test_errors_are_words(tmp_path):
    errors = []
    for case in Cases(tmp_path, Watch(tmp_path), seed=3).draw(60):
        path = tmp_path / case.name
        path.write_bytes(case.data)
        errors.append(error_of(path))
    texts = {str(error) for error in errors if error is not None}
    assert len(texts) > 5
    for text in texts:
        assert "Traceback" not in text
        assert "Error:" not in text  # in words, not as a Python exception


def test_the_undamaged_files_are_all_read(tmp_path):
    paths = originals(tmp_path)
    assert len(paths) == len(VIDEOS)
    for path in paths:
        assert read_views(str(path), SPEC).clips().shape == (6, 8, 32, 32, 3)
