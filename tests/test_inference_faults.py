"""Nothing is lost: passing failures, changed files, two runs at once, Ctrl-C, full disks."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import sta
from inference_runs import environment, make_videos, run
from sta.cli import main
from sta.inference.outputs import OutputError, locked
from sta.inference.rows import read_rows
from sta.video import prefetch
from sta.video.prefetch import Sample
from video_files import make


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    return make_videos(tmp_path_factory.mktemp("videos") / "v", 6)


@pytest.fixture
def faults(monkeypatch):
    """Kinds of failure by file name, each for as many tries as it is listed; counts the tries."""
    planned: dict[str, list[str]] = {}
    tries: Counter[str] = Counter()
    original = prefetch.decode_entry

    def decode(decoder, entry):
        name = Path(entry.path).name
        tries[name] += 1
        if planned.get(name):
            kind = planned[name].pop(0)
            return Sample(entry.path, None, entry.label, f"made up: {kind}", kind)
        return original(decoder, entry)

    monkeypatch.setattr(prefetch, "decode_entry", decode)
    decode.planned, decode.tries = planned, tries
    return decode


def rows_of(path: Path) -> list[dict]:
    return list(read_rows(str(path)))


# Failures that pass


@pytest.mark.parametrize("kind", ["missing", "unreadable", "timeout", "killed"])
def test_a_failure_that_passes_is_none(tmp_path, folder, videos, faults, kind):
    whole = sta.predict(videos, folder, out=tmp_path / "whole.jsonl", progress=False)
    faults.planned.update({"001.mp4": [kind], "004.mp4": [kind]})
    faults.tries.clear()
    result = sta.predict(videos, folder, out=tmp_path / "rows.jsonl", progress=False)
    assert result.failures == []
    assert [faults.tries[f"00{n}.mp4"] for n in range(6)] == [1, 2, 1, 1, 2, 1]
    assert rows_of(tmp_path / "rows.jsonl") == rows_of(tmp_path / "whole.jsonl")  # in order, too
    assert whole.records() == result.records()


def test_a_killed_decoder_gets_the_machine_for_itself(folder, videos, faults, monkeypatch):
    workers = []
    original = prefetch.prefetch_clips

    def noted(entries, spec, **options):
        workers.append(options["workers"])
        return original(entries, spec, **options)

    monkeypatch.setattr("sta.video.clips.prefetch_clips", noted)
    faults.planned.update({"001.mp4": ["killed"], "002.mp4": ["missing"]})
    result = sta.predict(videos, folder, workers=3, progress=False)
    assert workers == [3, 3, 1]
    assert result.failures == []


def test_resume_tries_passing_failures_again_and_others_if_asked(tmp_path, folder, videos, faults):
    out = tmp_path / "rows.csv"
    words = ("predict", videos, "--model", folder, "--out", out)
    faults.planned.update({"001.mp4": ["missing"] * 2, "002.mp4": ["damaged"]})
    first = run(*words)
    assert first.exit_code == 1
    assert "2 of 6 videos failed" in first.stderr
    assert {row["error_kind"] for row in rows_of(out)} == {None, "missing", "damaged"}
    faults.tries.clear()
    second = run(*words, "--resume")
    assert second.exit_code == 1
    assert "1 of 6 videos failed" in second.stderr
    assert dict(faults.tries) == {"001.mp4": 1}
    third = run(*words, "--resume", "--retry-failed")
    assert third.exit_code == 0, third.output
    assert dict(faults.tries) == {"001.mp4": 1, "002.mp4": 1}
    paths = [Path(row["path"]).name for row in rows_of(out)]
    assert paths == [f"00{n}.mp4" for n in range(6)]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.csv"]


def test_retry_failed_goes_with_resume(tmp_path, folder, videos, refused):
    words = ("predict", videos, "--model", folder, "--out", tmp_path / "rows.csv")
    assert "--resume" in refused(*words, "--retry-failed")


# Rows that are out of date


def test_rows_are_made_again_where_what_they_were_made_of_changed(tmp_path, folder, faults):
    videos = make_videos(tmp_path / "v", 4)
    out, names = tmp_path / "rows.jsonl", videos / "list.txt"
    words = ("eval", names, "--model", folder, "--views", "1x1", "--out", out, "--r", 0, 4)
    assert run(*words).exit_code == 0
    before = rows_of(out)
    make(videos / "001.mp4", 30, 40, 56)  # another film of the same name
    lines = names.read_text().splitlines()
    names.write_text("\n".join([*lines[:2], "002.mp4 5", lines[3]]))
    faults.tries.clear()
    assert run(*words, "--resume").exit_code == 0
    assert dict(faults.tries) == {"001.mp4": 1, "002.mp4": 1}
    after = rows_of(out)
    assert [row["path"] for row in after] == [row["path"] for row in before]
    assert [row["label"] for row in after][4:6] == [5, 5]
    assert after[2]["origin"]["size"] != before[2]["origin"]["size"]
    assert after[0:2] + after[6:] == before[0:2] + before[6:]
    # The same names in another folder are other files.
    make_videos(tmp_path / "w", 4)
    faults.tries.clear()
    assert run(*words, "--resume", "--root", tmp_path / "w").exit_code == 0
    assert sum(faults.tries.values()) == 4


def test_the_summary_counts_the_videos_of_this_run(tmp_path, folder, videos):
    out, table = tmp_path / "rows.jsonl", tmp_path / "table.json"
    names = tmp_path / "list.txt"
    words = ("eval", names, "--root", videos, "--model", folder, "--out", out, "--json", table)
    names.write_text("000.mp4 0\n001.mp4 1\nnone.mp4 1\n")
    assert run(*words).exit_code == 1
    names.write_text("001.mp4 1\n002.mp4 2\n003.mp4 3\n")
    result = run(*words, "--resume")
    assert result.exit_code == 0, result.output
    assert "3 videos; rows in" in result.stderr
    assert json.loads(table.read_text())[0]["clips"] == 3
    assert len(rows_of(out)) == 5  # the others' rows stay


# Two runs at once


def test_a_second_run_on_one_file_is_refused(tmp_path, folder, videos, refused):
    out = tmp_path / "rows.parquet"
    words = ("predict", videos, "--model", folder, "--out", out)
    with locked(str(out)):
        message = refused(*words)
    assert f"process {os.getpid()} on" in message
    assert "rows.parquet: another run writes it" in message
    assert not list(tmp_path.iterdir())
    assert run(*words).exit_code == 0
    with locked(str(out)):  # more to the point than that the file is there
        assert "another run writes it" in refused(*words)
        assert "another run writes it" in refused(*words, "--resume")
    out.unlink()
    (tmp_path / "rows.csv").write_text("path,predictions,error\na.mp4,[],\n")
    message = refused(*words[:-1], tmp_path / "rows.csv", "--resume")
    assert "do not say what they were made of" in message


def test_the_lock_of_a_dead_run_is_taken_over(tmp_path):
    out = tmp_path / "rows.jsonl"
    code = (
        "import os, sys\nfrom sta.inference.outputs import locked\n"
        "with locked(sys.argv[1]):\n    os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(out)], env=environment(), check=False)
    lock = tmp_path / "rows.jsonl.lock"
    assert "pid" in lock.read_text()
    with locked(str(out)):
        assert json.loads(lock.read_text())["pid"] == os.getpid()
    assert not lock.exists()
    lock.write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    with pytest.raises(OSError, match=r"process 1 on elsewhere.*remove .*rows\.jsonl\.lock"):
        locked(str(out)).__enter__()


# Ctrl-C


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C when the fourth video is scored."""
    from sta.inference import run as run_module

    original = run_module.score_samples

    def scored(*given):
        for number, video in enumerate(original(*given)):
            if number == 3:
                raise KeyboardInterrupt
            yield video

    monkeypatch.setattr(run_module, "score_samples", scored)


def test_ctrl_c_shows_what_is_done(folder, videos, interrupted):
    result = run("predict", videos, "--model", folder, "--batch-size", 1)
    assert result.exit_code == 130
    assert "002.mp4" in result.stdout
    assert "003.mp4" not in result.stdout
    assert "interrupted after 3 of 6 videos" in result.stderr


def test_ctrl_c_writes_what_is_done(tmp_path, folder, videos, interrupted, monkeypatch):
    out, table = tmp_path / "rows.parquet", tmp_path / "table.json"
    words = ("eval", videos / "list.txt", "--model", folder, "--views", "1x1", "--batch-size", 1)
    result = run(*words, "--out", out, "--json", table)
    assert result.exit_code == 130
    assert json.loads(table.read_text())[0]["clips"] == 3
    assert len(rows_of(out)) == 3
    assert "--resume goes on with" in result.stderr
    monkeypatch.undo()
    assert run(*words, "--out", out, "--json", table, "--resume").exit_code == 0
    assert json.loads(table.read_text())[0]["clips"] == 6


def test_in_python_ctrl_c_is_a_keyboard_interrupt(folder, videos, interrupted):
    with pytest.raises(KeyboardInterrupt) as stopped:
        sta.predict(videos, folder, batch_size=1, progress=False)
    assert len(stopped.value.result) == 3


# Files that cannot be written


def test_a_wrong_path_is_found_before_the_work(tmp_path, videos, refused, monkeypatch):
    monkeypatch.setattr(sta, "load", lambda *_, **__: pytest.fail("the model was loaded"))
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").touch()
    words = ("eval", videos / "list.txt")
    for option, name in (("--out", "folder.jsonl"), ("--json", "folder.jsonl"), ("--csv", ".")):
        assert "is a folder" in refused(*words, option, tmp_path / name)
    assert "its folder cannot be made" in refused(*words, "--json", tmp_path / "file" / "t.json")
    assert "cannot be written here" in refused(*words, "--out", "nowhere://rows.jsonl")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "sta-video[parquet]" in refused(*words, "--out", tmp_path / "rows.parquet")


def test_a_full_disk_names_the_file_and_has_its_own_code(
    tmp_path, folder, videos, monkeypatch, capsys
):
    out = tmp_path / "rows.jsonl"
    out.symlink_to("/dev/full")
    words = ("predict", videos, "--model", folder, "--out", out, "--overwrite")
    monkeypatch.setattr("sys.argv", ["sta", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"Error: {out}: cannot be written (No space left on device)")
    assert "--resume" in said


# Errors


def test_a_bug_shows_its_traceback_and_a_wrong_call_one_line(folder, videos, monkeypatch, refused):
    words = ("predict", str(videos), "--model", folder)
    assert refused(*words, "--shard", "9").startswith("Error: --shard 9")
    monkeypatch.setattr("sys.argv", ["sta", "--debug", *words, "--shard", "9"])
    with pytest.raises(ValueError, match='shard="9"'):
        main()
    monkeypatch.setattr("sta.inference.predict.prediction_row", lambda *_, **__: int("bug"))
    monkeypatch.setattr("sys.argv", ["sta", *words])
    with pytest.raises(ValueError, match="invalid literal"):
        main()


def test_timeouts_that_never_end_are_refused(folder, videos, refused):
    for seconds in ("inf", "nan", "0"):
        message = refused("predict", videos, "--model", folder, "--timeout", seconds)
        assert message.startswith(f"Error: --timeout {seconds}: use a finite number of seconds")


def test_many_failures_are_counted_and_the_first_named(tmp_path, folder, videos):
    names = tmp_path / "list.txt"
    names.write_text("".join(f"gone {n}.mp4\n" for n in range(14)) + f"{videos}/000.mp4\n")
    result = run("predict", names, "--model", folder, "--out", tmp_path / "rows.jsonl")
    assert result.exit_code == 1
    assert result.stderr.count("there is no such file") == 10
    assert "failed: 4 more; all are in the rows" in result.stderr
    assert "14 of 15 videos failed" in result.stderr
    assert sum(row["error"] is not None for row in rows_of(tmp_path / "rows.jsonl")) == 14


def test_a_config_has_its_own_method_and_r(tmp_path, folder, videos, refused):
    sta.STAConfig(r=3).to_file(tmp_path / "c.json")
    words = ("predict", videos, "--model", folder, "--config", tmp_path / "c.json")
    assert "leave method and r out" in refused(*words, "--r", 0)
    assert "leave method and r out" in refused(*words, "--method", "sta")
    assert run(*words).exit_code == 0


def test_tables_fit_eighty_columns(videos):
    methods = ("sta", "random", "tome", "frame-difference")
    result = run("eval", "digits", "--clips", 4, "--method", *methods, "--r", 0, 16)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout
    for name in ("gflops", "top1", "agreement", "difference", "motion", "colour"):
        assert name in result.stdout


# Everything at once; benchmarks/faults.py does the same to thousands of videos and real processes


class PowerCut(BaseException):
    """Ends a run as nothing that it could handle."""


def test_a_run_that_everything_happens_to_ends_with_every_row(tmp_path, folder, monkeypatch):
    videos = make_videos(tmp_path / "v", 40)
    names = tmp_path / "list.txt"
    names.write_text("".join(f"{file}\n" for file in sorted(videos.glob("*.mp4"))))
    whole = sta.predict(names, folder, out=tmp_path / "whole.jsonl", batch_size=1, progress=False)
    rng = np.random.default_rng(0)
    away = [videos / f"{n:03d}.mp4" for n in rng.choice(40, 6, replace=False)]
    for file in away:
        file.rename(file.with_suffix(".away"))
    original = prefetch.decode_entry

    def decode(decoder, entry):
        if rng.random() < 0.1:
            return Sample(entry.path, None, entry.label, "the decoding process died", "killed")
        sample = original(decoder, entry)
        if sample.error == "there is no such file":
            sample.error_kind = "missing"
        return sample

    monkeypatch.setattr(prefetch, "decode_entry", decode)
    out = tmp_path / "rows.jsonl"

    def cut(after):
        def report(now):
            if now.done >= after:
                raise PowerCut

        return report

    with pytest.raises(PowerCut):
        sta.predict(names, folder, out=out, batch_size=1, progress=cut(10))
    with out.open("ab") as file:
        file.write(b'{"path": "half a ro')
    with disk_full_after(out.stat().st_size + 1500), pytest.raises(OutputError, match="cannot be"):
        sta.predict(names, folder, out=out, batch_size=1, resume=True, progress=False)
    with pytest.raises(PowerCut):
        sta.predict(names, folder, out=out, batch_size=1, resume=True, progress=cut(26))
    first = sta.predict(names, folder, out=out, batch_size=1, resume=True, progress=False)
    assert {failure.path for failure in first.failures} >= {str(file) for file in away}
    for file in away:
        file.with_suffix(".away").rename(file)
    last = first
    for _ in range(9):
        if not last.failures:
            break
        last = sta.predict(names, folder, out=out, batch_size=1, resume=True, progress=False)
    assert last.records() == whole.records()
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"v", "list.txt", "whole.jsonl", "rows.jsonl"}


@contextmanager
def disk_full_after(size: int):
    """Files may not grow beyond a size: the write that would is cut short, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
