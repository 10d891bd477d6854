from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sta.inference.evaluate import Evaluation
from sta.inference.journal import Journal, signature
from sta.inference.metrics import cell, summarise
from sta.inference.rows import evaluation_rows, prediction_row, read_rows
from sta.inference.scoring import Scored
from sta.measure.stats import paired_difference, wilson
from sta.methods import STAConfig

NAMES = ("run", "walk", "jump", "sit", "lie", "fly")
METHODS = (("sta", 0), ("sta", 32))


def scored(path: str, *scores: list[float], label: int | None = None) -> Scored:
    table = np.array(scores, dtype=float)
    return Scored(path, table, label, None, views=3, seconds=np.full(len(scores), 0.5))


def failed(path: str, label: int | None = None) -> Scored:
    return Scored(path, None, label, "the file is empty", error_kind="damaged")


def test_a_prediction_row_is_best_first():
    row = prediction_row(scored("a.mp4", [0.1, 0.2, 0.6, 0.0, 0.1, 0.0]), NAMES, top_k=3)
    assert row == {
        "path": "a.mp4",
        "predictions": [
            {"label": "jump", "score": 0.6},
            {"label": "walk", "score": 0.2},
            {"label": "run", "score": 0.1},  # a tie goes to the lower class
        ],
        "error": None,
        "error_kind": None,
    }


def test_a_video_that_failed_has_its_error_and_no_predictions():
    row = prediction_row(failed("a.mp4"), NAMES, top_k=3)
    assert row == {
        "path": "a.mp4",
        "predictions": [],
        "error": "the file is empty",
        "error_kind": "damaged",
    }


def test_metrics_of_a_small_run_by_hand():
    one, two = [0.9, 0.1, 0, 0, 0, 0], [0.1, 0.9, 0, 0, 0, 0]
    last = [0.3, 0.25, 0.2, 0.15, 0.1, 0.0]
    videos = [
        scored("a", one, one, label=0),  # right, right
        scored("b", two, one, label=1),  # right, wrong
        scored("c", last, last, label=5),  # wrong, not even in the five best
        scored("d", last, two, label=4),  # fifth; second best is then class 0
        failed("e", label=2),
    ]
    rows = [row for video in videos for row in evaluation_rows(video, NAMES, METHODS)]
    table = summarise(rows)
    stock, pruned = table["sta", 0], table["sta", 32]
    assert (stock["clips"], stock["failed"]) == (4, 1)
    assert (stock["top1"], pruned["top1"]) == (0.5, 0.25)
    assert (stock["top5"], pruned["top5"]) == (0.75, 0.75)
    assert (stock["agreement"], pruned["agreement"]) == (1.0, 0.5)
    assert stock["clips_per_s"] == pytest.approx(3 / 0.5)
    # Wilson, 2 of 4 and 95 %: centre 1/2, as far as z / (2 sqrt(4 + z^2))
    assert stock["top1_low"] == pytest.approx(
        0.5 - 1.95996 / (2 * (4 + 1.95996**2) ** 0.5), abs=1e-4
    )
    # Of the four videos, pruning lost one and gained none.
    assert pruned["difference"] == -0.25
    assert pruned["difference_low"] < -0.25 < pruned["difference_high"]
    assert stock["difference"] is None
    other = summarise(rows, reference=("sta", 32))
    assert other["sta", 0]["difference"] == 0.25
    assert other["sta", 32]["difference"] is None
    assert other["sta", 32]["agreement"] == 0.5


def test_a_paired_interval_holds_the_true_difference_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for up, down in ((0.02, 0.05), (0.1, 0.1), (0.3, 0.05)):
        drawn = rng.multinomial(200, (up, down, 1 - up - down), size=2000)
        ends = np.array([paired_difference(int(g), int(lost), 200) for g, lost, _ in drawn])
        holds = (ends[:, 0] <= up - down) & (up - down <= ends[:, 1])
        assert 0.935 <= holds.mean() <= 0.98


def test_a_paired_interval_is_narrower_than_two_of_their_own_and_has_no_favourite():
    low, high = paired_difference(10, 4, 400)
    assert low < 6 / 400 < high
    own = wilson(200, 400)
    assert high - low < (own[1] - own[0]) / 2
    assert paired_difference(4, 10, 400) == pytest.approx((-high, -low))
    assert paired_difference(3, 0, 3)[1] <= 1.0
    with pytest.raises(ValueError, match="3 gained and 2 lost of 4"):
        paired_difference(3, 2, 4)


def test_without_the_unpruned_model_there_is_no_agreement():
    rows = evaluation_rows(scored("a", [0.9, 0.1], label=0), NAMES, [("sta", 32)])
    assert summarise(rows)["sta", 32]["agreement"] is None
    nothing = evaluation_rows(failed("a", label=0), NAMES, [("sta", 32)])
    assert summarise(nothing)["sta", 32]["top1"] is None


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_rows_come_back_from_every_format(tmp_path, ending):
    out = str(tmp_path / "new" / f"rows.{ending}")
    videos = [scored("a, b\n.mp4", [0.5, 0.5], [0.2, 0.8], label=1), failed("ü.mp4", label=0)]
    rows = [row for video in videos for row in evaluation_rows(video, NAMES, METHODS)]
    journal = Journal(out, rows_per_video=2)
    journal.append(rows[:2])
    journal.append(rows[2:])
    journal.finish()
    assert list(read_rows(out)) == rows
    left = {file.name for file in (tmp_path / "new").iterdir()}
    assert not any("tmp" in name or name.endswith("partial.jsonl") for name in left)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_a_run_without_videos_makes_a_file(tmp_path, ending):
    out = str(tmp_path / f"rows.{ending}")
    Journal(out).finish()
    assert list(read_rows(out)) == []


def test_names_that_are_not_utf8_are_written(tmp_path):
    name = b"caf\xe9.mp4".decode("utf-8", "surrogateescape")
    for ending in ("jsonl", "parquet", "csv"):
        journal = Journal(str(tmp_path / f"rows.{ending}"))
        journal.append([prediction_row(failed(name), NAMES, 1)])
        journal.finish()
        [row] = read_rows(str(tmp_path / f"rows.{ending}"))
        assert row["path"].startswith("caf")


@given(cut=st.integers(0, 10_000), per_video=st.integers(1, 3))
def test_cut_anywhere_a_journal_keeps_exactly_its_whole_videos(tmp_path_factory, cut, per_video):
    out = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    methods = [("sta", r) for r in range(per_video)]
    journal = Journal(str(out), rows_per_video=per_video)
    ends = [0]
    for number in range(5):
        video = scored(f"{number}.mp4", *[[0.5, 0.5]] * per_video, label=0)
        journal.append(evaluation_rows(video, NAMES, methods))
        ends.append(out.stat().st_size)
    journal.close()
    data = out.read_bytes()
    out.write_bytes(data[: cut % (len(data) + 1)])
    whole = sum(end <= cut % (len(data) + 1) for end in ends) - 1
    journal = Journal(str(out), rows_per_video=per_video, resume=True)
    assert journal.done == {f"{number}.mp4" for number in range(whole)}
    journal.close()
    assert out.stat().st_size == ends[whole]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_finished_run_goes_on_with_more_videos(tmp_path, ending):
    out = str(tmp_path / f"rows.{ending}")
    for resume, name in ((False, "a.mp4"), (True, "b.mp4")):
        journal = Journal(out, resume=resume)
        assert journal.done == ({"a.mp4"} if resume else set())
        journal.append([prediction_row(scored(name, [0.4, 0.6]), NAMES, 1)])
        journal.finish()
    assert [row["path"] for row in read_rows(out)] == ["a.mp4", "b.mp4"]


def test_an_unfinished_parquet_file_goes_on(tmp_path):
    out = str(tmp_path / "rows.parquet")
    journal = Journal(out)
    journal.append([prediction_row(failed("a.mp4"), NAMES, 1)])
    journal.close()  # as a killed run leaves it
    journal = Journal(out, resume=True)
    assert journal.done == {"a.mp4"}
    journal.finish()
    assert [row["path"] for row in read_rows(out)] == ["a.mp4"]


@pytest.mark.parametrize("there", ["rows.jsonl", "rows.csv", "rows.parquet.partial.jsonl"])
def test_a_file_that_is_there_is_lost_only_if_asked_for(tmp_path, there):
    old = json.dumps({"path": "old.mp4", "predictions": [], "error": None}) + "\n"
    (tmp_path / there).write_text(old)
    out = str(tmp_path / there.removesuffix(".partial.jsonl"))
    with pytest.raises(FileExistsError, match=rf"{there}: .*resume=True .*overwrite=True"):
        Journal(out)
    assert (tmp_path / there).read_text() == old
    Journal(out, overwrite=True).finish()
    assert list(read_rows(out)) == []
    with pytest.raises(ValueError, match="give one"):
        Journal(out, resume=True, overwrite=True)


def test_other_settings_do_not_mix_into_a_file(tmp_path):
    out = str(tmp_path / "rows.csv")
    settings = {"model": "vit-s", "r": [0, 64]}
    journal = Journal(out, settings=settings)
    origin = {"source": "a.mp4", "size": 1, "mtime": 2.0, "settings": signature(settings)}
    journal.append([{**prediction_row(failed("a.mp4"), NAMES, 1), "origin": origin}])
    journal.finish()
    Journal(out, settings={"model": "vit-s", "r": (0, 64)}, resume=True).finish()
    with pytest.raises(ValueError, match=r"resumed with model 'vit-b': its rows"):
        Journal(out, settings={"model": "vit-b", "r": [0, 64]}, resume=True)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.csv"]


def test_a_journal_of_another_version_names_both(tmp_path):
    out = str(tmp_path / "rows.jsonl")
    settings = {"sta": "0.1.0", "model": "vit-s"}
    origin = {"source": "a.mp4", "size": 1, "mtime": 2.0, "settings": signature(settings)}
    assert "0.1.0" in origin["settings"].split("-")
    journal = Journal(out, settings=settings)
    journal.append([{**prediction_row(failed("a.mp4"), NAMES, 1), "origin": origin}])
    journal.finish()
    with pytest.raises(ValueError, match=r"resumed with sta '0\.2\.0': its rows .* '0\.1\.0'"):
        Journal(out, settings={**settings, "sta": "0.2.0"}, resume=True)


#: Rows as earlier versions wrote them: without origin, kinds of errors and divergence.
EARLIER = {"path": "a.mp4", "label": 1, "method": "sta", "error": None, "classes": [1, 0]}
EARLIER |= {"views": 1, "seconds": 0.5, "predictions": [{"label": "walk", "score": 0.9}]}


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_rows_of_earlier_versions_still_read(tmp_path, ending):
    written = [{**EARLIER, "r": 0}, {**EARLIER, "r": 32, "classes": [0, 1]}]
    journal = Journal(str(tmp_path / f"rows.{ending}"), rows_per_video=2)
    journal.append(written)
    journal.finish()
    rows = list(read_rows(str(tmp_path / f"rows.{ending}")))
    assert rows == written
    table = summarise(rows)
    assert (table["sta", 0]["top1"], table["sta", 32]["top1"]) == (1.0, 0.0)
    assert table["sta", 32]["kl"] is None  # not known, which is not none
    with pytest.raises(ValueError, match="do not say what they were made of"):
        Journal(str(tmp_path / f"rows.{ending}"), settings={"model": "vit-s"}, resume=True)


def test_remote_results(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    for ending in ("jsonl", "parquet"):
        journal = Journal(f"memory://results/rows.{ending}")
        journal.append([prediction_row(failed("a.mp4"), NAMES, 1)])
        journal.finish()
        data = fsspec.filesystem("memory").cat(f"/results/rows.{ending}")
        (tmp_path / f"copy.{ending}").write_bytes(data)
        assert [row["path"] for row in read_rows(f"copy.{ending}")] == ["a.mp4"]


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"rows\.xlsx: .*\.jsonl, \.parquet, \.csv"):
        Journal(str(tmp_path / "rows.xlsx"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (6.04e-5, "0.00006"), (0.000123, "0.00012"), (0.0456, "0.046"), (1.26, "1.3")],
)
def test_small_divergences_are_shown_by_two_digits(value, shown):
    assert cell({"kl": value}, "kl") == shown


def test_rows_keep_small_divergences():
    """Of a method that hardly changes anything; the same scores are not apart at all."""
    scores = np.array([[0.5, 0.5], [0.5, 0.5], [0.5001, 0.4999]])
    methods = {("sta", 0): None, ("sta", 4): STAConfig(r=4), ("sta", 8): STAConfig(r=8)}
    setup = SimpleNamespace(opened=SimpleNamespace(class_names=NAMES[:2]), methods=methods)
    run = Evaluation(setup, None, [])  # type: ignore[arg-type]
    rows = run.rows(Scored("a.mp4", scores, 0, None, 1, np.ones(3)))
    assert [row["kl"] for row in rows[:2]] == [0.0, 0.0]
    assert rows[2]["kl"] == pytest.approx(2e-8, rel=0.01)
