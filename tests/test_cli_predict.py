"""Whole runs of ``sta predict`` and ``sta eval``: rows, tables, exit codes, kills and resumes."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import sta
from inference_runs import NAMES, command, environment, make_videos, run, save_model
from sta.inference.rows import read_rows
from sta.video import ViewSpec, prefetch, read_views

SHARED = Path(__file__).resolve().parents[2] / "shared" / "videos"


@pytest.fixture
def model(folder: str) -> str:
    return folder


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    return make_videos(tmp_path_factory.mktemp("videos") / "v", 9)


def test_rows_hold_what_the_model_says(tmp_path, model, videos):
    out = tmp_path / "rows.jsonl"
    result = run("predict", videos, "--model", model, "--r", 4, "--out", out, "--views", "2x3")
    assert result.exit_code == 0, result.output
    rows = {Path(row["path"]).name: row for row in read_rows(str(out))}
    assert len(rows) == 9
    net = sta.apply(sta.load(model), sta.STAConfig(r=4))
    spec = ViewSpec(frames=4, stride=4, size=32, temporal=2, spatial=3)
    for name in ("000.mp4", "008.mp4"):
        clips = torch.from_numpy(read_views(str(videos / name), spec).clips()).float() / 255
        pixels = (clips - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
        with torch.no_grad():
            scores = net(pixels.permute(0, 1, 4, 2, 3)).logits.softmax(-1).mean(0)
        order = scores.argsort(descending=True)[:5].tolist()
        row = rows[name]
        assert row["error"] is None
        assert [p["label"] for p in row["predictions"]] == [NAMES[i] for i in order]
        found = [p["score"] for p in row["predictions"]]
        np.testing.assert_allclose(found, scores[order], atol=1e-4)


def test_every_format_has_the_same_rows(tmp_path, model, videos):
    files = [tmp_path / f"rows.{ending}" for ending in ("jsonl", "parquet", "csv")]
    for file in files:
        assert run("predict", videos, "--model", model, "--out", file, "--top-k", 2).exit_code == 0
    jsonl, parquet, table = (list(read_rows(str(file))) for file in files)
    assert jsonl == parquet == table
    assert set(jsonl[0]) == {"path", "predictions", "error", "error_kind", "origin"}
    assert len(jsonl[0]["predictions"]) == 2


def test_without_a_file_there_is_a_table(model, videos):
    result = run("predict", videos / "000.mp4", videos / "none.mp4", "--model", model)
    assert result.exit_code == 1
    assert sum(name in result.stdout for name in NAMES) == 5  # all of --top-k's default
    assert "there is no such file" in result.stdout.replace("\n", " ") + result.stderr
    assert "1 of 2 videos failed" in result.stderr


def test_the_default_model_says_what_it_is_for(videos):
    result = run("predict", videos / "000.mp4")
    assert result.exit_code == 0
    assert "vit-digits knows moving digits alone; give --model" in result.stderr
    asked_for = run("predict", videos / "000.mp4", "--model", "vit-digits")
    assert asked_for.stderr == "1 video\n"


def test_bad_files_are_named_counted_and_never_replaced(tmp_path, model, videos):
    folder = tmp_path / "mixed"
    folder.mkdir()
    good = (videos / "003.mp4").read_bytes()
    (folder / "a good.mp4").write_bytes(good)
    (folder / "b truncated.mp4").write_bytes(good[: len(good) // 2])
    (folder / "c empty.mp4").touch()
    (folder / "d text.mp4").write_text("these are words " * 100)
    os.mkfifo(folder / "e pipe.mp4")
    (folder / "f good.mp4").write_bytes(good)
    names = tmp_path / "list.txt"
    listed = [*sorted(file.name for file in folder.iterdir()), "g gone.mp4"]
    names.write_text("\n".join(listed))
    out = tmp_path / "rows.jsonl"
    result = run(
        *("predict", names, "--root", folder, "--model", model, "--out", out, "--timeout", 5)
    )
    assert result.exit_code == 1
    errors = {row["path"]: row["error"] for row in read_rows(str(out))}
    assert list(errors) == listed
    assert [path for path, error in errors.items() if error is None] == ["a good.mp4", "f good.mp4"]
    assert errors["c empty.mp4"] == "the file is empty"
    assert "a named pipe" in errors["e pipe.mp4"]
    assert errors["g gone.mp4"] == "there is no such file"
    assert "5 of 7 videos failed" in result.stderr
    for path, error in errors.items():
        if error is not None:
            assert f"failed: {path}: {error}" in result.stderr


def test_what_is_no_file_has_a_row_and_never_blocks(tmp_path, model, videos, monkeypatch):
    folder = tmp_path / "mixed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "a.mp4").write_bytes((videos / "003.mp4").read_bytes())
    os.mkfifo(folder / "b.mp4")
    (folder / "c.mp4").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("d.mp4")  # a whole path could be too long for a socket
        result = run("predict", folder, "--model", model, "--out", tmp_path / "rows.jsonl")
    assert result.exit_code == 1
    rows = list(read_rows(str(tmp_path / "rows.jsonl")))
    assert [Path(row["path"]).name for row in rows] == ["a.mp4", "b.mp4", "c.mp4", "d.mp4"]
    assert [row["error_kind"] for row in rows] == [None, "refused", "refused", "refused"]


# Evaluation


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_damaged_first_video_leaves_the_columns_of_the_others(tmp_path, model, videos, ending):
    (tmp_path / "bad.mp4").write_text("no video")
    good = (videos / "003.mp4").as_posix()
    (tmp_path / "list.txt").write_text(f"bad.mp4 0\n{good} 1\n")
    out = tmp_path / f"rows.{ending}"
    words = ("eval", tmp_path / "list.txt", "--model", model, "--r", 0, 4, "--out", out)
    assert run(*words).exit_code == 1
    rows = list(read_rows(str(out)))
    assert [row["kl"] is None for row in rows] == [True, True, False, False]
    assert isinstance(rows[-1]["kl"], float)
    assert run(*words, "--resume").exit_code == 1


def test_eval_of_several_r_decodes_once_and_agrees_with_itself(
    tmp_path, model, videos, monkeypatch
):
    decoded = []
    original = prefetch.decode_entry

    def counting(decoder, entry):
        decoded.append(entry.path)
        return original(decoder, entry)

    monkeypatch.setattr(prefetch, "decode_entry", counting)
    table = tmp_path / "table.json"
    result = run(
        *("eval", videos / "list.txt", "--model", model, "--r", 0, 4, 8, "--views", "2x1"),
        *("--json", table, "--csv", tmp_path / "table.csv", "--out", tmp_path / "rows.jsonl"),
    )
    assert result.exit_code == 0, result.output
    assert sorted(decoded) == [f"{i:03d}.mp4" for i in range(9)]
    rows = json.loads(table.read_text())
    columns = ("method", "r", "gflops", "clips_per_s", "clips", "top1", "top5", "agreement")
    assert set(columns) <= set(rows[0])
    assert [(row["method"], row["r"], row["clips"]) for row in rows] == [
        ("sta", 0, 9),
        ("sta", 4, 9),
        ("sta", 8, 9),
    ]
    assert rows[0]["agreement"] == 1.0
    assert rows[0]["gflops"] > rows[1]["gflops"] > rows[2]["gflops"]
    assert all(row["top1_low"] <= row["top1"] <= row["top1_high"] for row in rows)
    kept = list(read_rows(str(tmp_path / "rows.jsonl")))
    by_hand = [row["classes"][0] == row["label"] for row in kept if row["r"] == 4]
    assert rows[1]["top1"] == pytest.approx(sum(by_hand) / 9)
    with (tmp_path / "table.csv").open() as file:
        assert [float(row["top1"]) for row in csv.DictReader(file)] == [r["top1"] for r in rows]
    assert "agreement" in result.stdout


def test_eval_compares_methods(tmp_path, model, videos):
    table = tmp_path / "table.json"
    result = run(
        *("eval", "--method", "sta", "random", "--r", "0", "4", videos / "list.txt"),
        *("--model", model, "--json", table, "--clips", 3, "--views", "1x1"),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(table.read_text())
    assert [(row["method"], row["r"]) for row in rows] == [("sta", 0), ("sta", 4), ("random", 4)]
    assert {row["clips"] for row in rows} == {3}


def test_eval_of_digits_at_matched_cost(tmp_path):
    table = tmp_path / "table.json"
    methods = ("sta", "random", "tome", "frame-difference")
    result = run(
        *("eval", "digits", "--method", *methods, "--r", 0, 16, "--match-gflops"),
        *("--clips", 6, "--json", table),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(table.read_text())
    assert [row["method"] for row in rows] == ["sta", *methods]
    unpruned, pruned, *others = rows
    for row in rows:
        for name in ("top1", "top5", "agreement", "motion", "colour"):
            assert 0 <= row[f"{name}_low"] <= row[name] <= row[f"{name}_high"] <= 1
        assert row["clips"] == 6
    assert (unpruned["r"], unpruned["agreement"], unpruned["difference"]) == (0, 1.0, None)
    for row in others:
        assert row["gflops"] == pytest.approx(pruned["gflops"], rel=0.02)
        assert row["difference"] == pytest.approx(row["top1"] - unpruned["top1"])
    assert next(row["r"] for row in rows if row["method"] == "tome") > 16  # of the clip, per block


def test_a_video_that_cannot_be_read_is_left_out_of_the_accuracy(tmp_path, model, videos):
    names = tmp_path / "list.txt"
    names.write_text("000.mp4 0\nnone.mp4 1\n001.mp4 1\n")
    table = tmp_path / "table.json"
    result = run(
        *("eval", names, "--root", videos, "--model", model, "--r", 0, 4, "--json", table),
        *("--protocol", "k400"),
    )
    assert result.exit_code == 1
    assert [(r["clips"], r["failed"]) for r in json.loads(table.read_text())] == [(2, 1), (2, 1)]
    assert "1 of 3 videos failed" in result.stderr


def test_eval_and_predict_say_the_same(tmp_path, model, videos):
    names = videos / "list.txt"
    common = ("--model", model, "--views", "2x3")
    assert run("predict", names, *common, "--r", 4, "--out", tmp_path / "p.jsonl").exit_code == 0
    assert run("eval", names, *common, "--r", 0, 4, "--out", tmp_path / "e.jsonl").exit_code == 0
    predicted = list(read_rows(str(tmp_path / "p.jsonl")))
    evaluated = [row for row in read_rows(str(tmp_path / "e.jsonl")) if row["r"] == 4]
    for one, other in zip(predicted, evaluated, strict=True):
        del one["origin"]["settings"], other["origin"]["settings"]  # of another command
        assert one == {name: other[name] for name in one}


# Being killed


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_killed_in_the_middle_and_resumed_is_as_if_nothing_had_happened(
    tmp_path, model, tmp_path_factory, ending
):
    folder = make_videos(tmp_path / "v", 30)
    words = ("eval", folder / "list.txt", "--model", model, "--r", 0, 4, "--batch-size", 2)
    whole, cut = tmp_path / f"whole.{ending}", tmp_path / f"cut.{ending}"
    assert run(*words, "--out", whole).exit_code == 0
    journal = cut if ending == "jsonl" else tmp_path / "cut.parquet.partial.jsonl"
    process = subprocess.Popen(
        command(*words, "--out", cut), env=environment(), stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b"\n") >= 10:
            break
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = journal.read_bytes()
    assert 10 <= left.count(b"\n") < 60
    assert run(*words, "--out", cut, "--resume").exit_code == 0
    expected, found = (list(read_rows(str(file))) for file in (whole, cut))
    assert [(row["path"], row["r"]) for row in found] == [
        (row["path"], row["r"]) for row in expected
    ]
    for one, other in zip(expected, found, strict=True):
        assert one["classes"] == other["classes"]
        for a, b in zip(one["predictions"], other["predictions"], strict=True):
            assert a["score"] == pytest.approx(b["score"], abs=2e-6)


def test_resume_does_not_look_at_finished_videos_again(tmp_path, model, videos, monkeypatch):
    out = tmp_path / "rows.jsonl"
    words = ("predict", videos, "--model", model, "--out", out)
    assert run(*words).exit_code == 0
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:5]) + lines[5][:20])
    decoded = []
    original = prefetch.decode_entry
    monkeypatch.setattr(
        prefetch, "decode_entry", lambda d, e: (decoded.append(e.path), original(d, e))[1]
    )
    assert run(*words, "--resume").exit_code == 0
    assert len(decoded) == 4
    assert out.read_bytes() == b"".join(lines)


def test_a_run_does_not_go_on_with_other_weights(tmp_path, videos, refused):
    folder = tmp_path / "model"
    words = ("predict", videos / "000.mp4", "--model", save_model(folder))
    words += ("--out", tmp_path / "rows.csv")
    assert run(*words).exit_code == 0
    assert run(*words, "--resume").exit_code == 0
    net = sta.load(folder)
    net.classifier.bias.data[0] += 1
    net.save_pretrained(folder)
    assert "cannot be resumed with weights" in refused(*words, "--resume")


# Wrong usage


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_results_are_never_lost_by_mistake(tmp_path, model, videos, refused, ending):
    out = tmp_path / f"rows.{ending}"
    words = ("predict", videos / "000.mp4", "--model", model, "--out", out)
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert done.stderr == f"1 video; rows in {out}\n"  # and no noise of libraries
    before = out.read_bytes()
    for again in (words, ("eval", "digits", "--out", out)):
        message = refused(*again)
        assert str(out) in message
        assert "--resume" in message
        assert "--overwrite" in message
    assert out.read_bytes() == before
    assert run(*words[:1], videos / "001.mp4", *words[2:], "--overwrite").exit_code == 0
    assert [Path(row["path"]).name for row in read_rows(str(out))] == ["001.mp4"]
    assert "give one" in refused(*words, "--resume", "--overwrite")


def test_options_are_checked_before_the_model_is_loaded(
    tmp_path, model, videos, refused, monkeypatch
):
    loading = "sta.backbones.zoo.video_model.open_model"
    monkeypatch.setattr(loading, lambda *_: pytest.fail("the model was loaded"))
    video = videos / "000.mp4"
    for views in ("3", "0x1", "axb"):
        assert f"views '{views}'" in refused("predict", video, "--views", views)
    assert "rows.txt" in refused("eval", "digits", "--out", tmp_path / "rows.txt")
    assert "none.txt: there is no such" in refused("eval", tmp_path / "none.txt")
    assert "--out" in refused("predict", video, "--overwrite")


def test_a_text_that_is_no_list_is_said_to_be_read_as_one(tmp_path, model, refused):
    notes = tmp_path / "notes.txt"
    notes.write_text("Things to buy\nmilk, bread\n")
    message = refused("predict", notes, "--model", model)
    assert "notes.txt: was read as a list of videos" in message
    assert "'Things to buy'" in message


def test_wrong_usage_is_said_in_a_line(tmp_path, model, videos, refused):
    video = videos / "000.mp4"
    assert "no videos in this folder" in refused("predict", tmp_path, "--model", model)
    assert "r=99" in refused("predict", video, "--model", model, "--r", 99)
    assert "rows.txt" in refused("predict", video, "--model", model, "--out", tmp_path / "rows.txt")
    assert "--out" in refused("predict", video, "--model", model, "--resume")
    assert "frames=7" in refused("predict", video, "--model", model, "--frames", 7)
    assert "size=100" in refused("predict", video, "--model", model, "--size", 100)
    assert "cuda" in refused("predict", video, "--model", model, "--device", "cuda:7")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared videos are not here")
def test_all_ten_samples_are_read(tmp_path, model):
    out = tmp_path / "rows.jsonl"
    result = run("predict", SHARED / "samples", "--model", model, "--out", out)
    assert result.exit_code == 0, result.output
    rows = list(read_rows(str(out)))
    assert len(rows) == 10
    assert all(row["error"] is None for row in rows)
