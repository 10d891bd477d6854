"""What all public functions share: results that print and turn into records, and progress."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import sta
import sta.video.digits
from inference_runs import make_videos
from sta import progress
from sta.explain.analysis import Analysis
from sta.explain.inspect import Inspection
from sta.inference.evaluate import EvaluationResult
from sta.inference.predict import PredictionResult
from sta.measure.bench import BenchResult
from sta.measure.contenders import Source
from sta.results import Result, WideTable, table
from sta.runtime.devices import choose_device
from sta.runtime.export import ExportResult
from sta.tuning.ablation import AblationResult
from sta.tuning.fit import FitResult
from sta.tuning.tune import TuneResult
from sta.video.clips import read_samples
from sta.video.lists import Entry
from sta.video.views import ViewSpec

RESULTS = {
    "predict": PredictionResult,
    "evaluate": EvaluationResult,
    "bench": BenchResult,
    "tune": TuneResult,
    "fit": FitResult,
    "ablate": AblationResult,
    "show": Inspection,
    "analyze": Analysis,
    "export": ExportResult,
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_function_has_progress_and_a_result(name):
    signature = inspect.signature(getattr(sta, name))
    assert signature.parameters["progress"].default is True
    assert signature.return_annotation == RESULTS[name].__name__
    assert issubclass(RESULTS[name], Result)


class Rows(Result):
    def __init__(self, *tables):
        self._tables = tables

    def records(self):
        return [{"a": 1}, {"a": 2}]

    def tables(self):
        yield from self._tables


def test_a_result_prints_as_text_whatever_is_in_it():
    rows = [("[red]a[/red]", "1.5"), "runtime [x]", ("b" * 90, "22.5")]
    text = str(Rows(table(("method", "ms"), rows, title="[bold] title")))
    lines = text.splitlines()
    assert lines[0] == "[bold] title"
    assert any("[red]a[/red]" in line and line.endswith("1.5") for line in lines)
    assert "runtime [x]" in lines
    assert "22.5" in text  # a long name is folded, a number never cut
    assert max(map(len, lines)) <= 80
    assert list(Rows().to_pandas()["a"]) == [1, 2]


def test_columns_that_do_not_fit_go_on_below():
    heads = ["method", "r", *(f"column {n}" for n in range(12))]
    cells = [["sta", "8", *(f"{row}.{n:02d}" for n in range(12))] for row in range(2)]
    text = str(Rows(WideTable(heads, cells, keys=2)))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("method") == text.count("column 0") + 1 == 2
    for cell in (cell for row in cells for cell in row):
        assert cell in text


def test_track_reports_each_item_as_it_is_done():
    seen = []
    for item in progress.track("abc", 3, "letters", seen.append):
        assert seen[-1].done == "abc".index(item)
    assert [str(now) for now in seen] == [f"{n} of 3 letters" for n in range(4)]


def test_videos_and_digit_actions_are_read_in_their_order(tmp_path):
    file = next(make_videos(tmp_path / "v", 1).glob("*.mp4"))
    entries = [Entry("first", "digits:0", 3), Entry("file", str(file)), Entry("last", "digits:1")]
    samples = list(read_samples(entries, ViewSpec(frames=16, stride=1, size=64), workers=1))
    assert [sample.path for sample in samples] == ["first", "file", "last"]
    assert all(sample.clips.shape == (1, 16, 64, 64, 3) for sample in samples)
    assert samples[0].label == 3
    assert np.array_equal(samples[2].clips[0], sta.video.digits.DigitActions("test")[1][0])


def test_a_given_model_is_left_as_it_is_and_where_it_is():
    model = sta.load("vit-digits").train()
    opened = Source(model, device=choose_device("auto", model)).open()
    assert not opened.model.training
    assert model.training
    assert next(opened.model.parameters()) is next(model.parameters())
