"""`sta.features` and `sta.predict` over windows: rows, arrays, resuming, damaged files."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import VideoMAEConfig, VideoMAEForPreTraining, VideoMAEModel, VJEPA2Model

import sta
from backbones import _vjepa2
from inference_runs import command, environment, run, save_model
from sta.backbones.zoo.video_model import VideoModel
from sta.inference.clip_model import Encoder
from sta.video.decode import read_views
from sta.video.encode import write_video
from video_files import make, numbered

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))  # clips of 4 frames, 32 pixels


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    folder.mkdir()
    make(folder / "a.mp4", 100, 40, 56, fps=10)
    make(folder / "b.mp4", 40, 40, 56, fps=10)
    (folder / "c.mp4").write_bytes(b"no video at all " * 40)
    make(folder / "d.mp4", 5, 40, 56, fps=10)
    return folder


def vectors(rows: object) -> dict[tuple[str, float], np.ndarray]:
    found = {}
    for row in rows:  # type: ignore[attr-defined]
        if row["vector"] is not None:
            found[Path(row["path"]).name, row["start"]] = np.asarray(row["vector"], np.float32)
    return found


def test_features_are_those_of_the_same_frames_as_clips(model: str, tmp_path: Path) -> None:
    pictures = [numbered(number, 40, 56) for number in range(60)]
    long = write_video(tmp_path / "long.mkv", pictures, codec="ffv1", fps=10)
    opened = VideoModel.open(model)
    rows = list(sta.features(long, model, every="0.8s", batch_size=3, **QUIET))
    assert [row["start"] for row in rows] == pytest.approx([0.8 * k for k in range(len(rows))])
    for row in rows[:2]:
        first = round(row["start"] * 10)
        cut = write_video(
            tmp_path / f"{first}.mkv", pictures[first : first + 16], codec="ffv1", fps=10
        )
        clip = read_views(str(cut), opened.clip.views.with_views("1x1")).clips()
        with torch.no_grad():
            logits = opened.model(opened.clip.pixels(clip)).logits[0]
            own = opened.model.classifier(torch.from_numpy(row["vector"]))
        torch.testing.assert_close(own, logits, atol=1e-5, rtol=0)


def test_batches_do_not_change_the_features(model: str, videos: Path) -> None:
    one, many = (
        vectors(sta.features(videos, model, every=1, r=4, batch_size=size, **QUIET))
        for size in (1, 5)
    )
    assert one.keys() == many.keys()
    for key, vector in one.items():
        np.testing.assert_allclose(vector, many[key], atol=1e-5)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_files_of_rows_hold_what_memory_holds(
    model: str, videos: Path, tmp_path: Path, ending: str
) -> None:
    here = sta.features(videos, model, every=1, **QUIET)
    there = sta.features(videos, model, every=1, out=tmp_path / f"f.{ending}", **QUIET)
    assert vectors(here).keys() == vectors(there).keys()
    for key, vector in vectors(here).items():
        np.testing.assert_array_equal(vector, vectors(there)[key])
    assert [Path(failure.path).name for failure in there.failures] == ["c.mp4"]
    assert here.vectors().shape == (len(vectors(here)), 32)


@pytest.mark.parametrize("kind", ["npy", "npz"])
@pytest.mark.parametrize("dense", [False, True])
def test_a_folder_gets_an_array_per_video(
    model: str, videos: Path, tmp_path: Path, kind: str, dense: bool
) -> None:
    options = {"every": 1, "dense": dense, **QUIET}
    here = sta.features(videos, model, **options)
    made = sta.features(videos, model, out=tmp_path / "out", array_format=kind, **options)
    rows = {Path(row["path"]).name: row for row in made}
    assert rows["c.mp4"]["file"] is None
    assert rows["c.mp4"]["error_kind"] == "refused"
    for name in ("a", "b", "d"):
        mine = [row for row in here if Path(row["path"]).stem == name]
        loaded = np.load(tmp_path / "out" / f"{name}.{kind}")
        array = loaded if kind == "npy" else loaded["features"]
        np.testing.assert_array_equal(array, np.stack([row["vector"] for row in mine]))
        if kind == "npz":
            np.testing.assert_allclose(loaded["start"], [row["start"] for row in mine], atol=1e-6)
        assert rows[f"{name}.mp4"]["windows"] == len(array)
    assert not list((tmp_path / "out").glob("*.part*"))
    assert array.shape[1:] == ((2, 16, 32) if dense else (32,))


def test_videos_of_one_name_get_arrays_of_their_own(model: str, tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        make(tmp_path / folder / "same.mp4", 20, 40, 56)
    made = sta.features([tmp_path / "x", tmp_path / "y"], model, out=tmp_path / "out", **QUIET)
    files = [row["file"] for row in made]
    assert len(set(files)) == 2
    assert all((tmp_path / "out" / file).is_file() for file in files)


def test_a_truncated_video_has_rows_and_an_error(model: str, tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.mkv", 200, 40, 56, fps=10, options={"g": "10"})
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    rows = list(sta.features(whole, model, out=tmp_path / "f.jsonl", **QUIET))
    assert len(rows) > 2
    assert "truncated" in rows[-1]["error"]
    assert all(row["error"] is None for row in rows[:-1])
    again = sta.features(whole, model, out=tmp_path / "f.jsonl", resume=True, **QUIET)
    assert list(map(str, again)) == list(map(str, rows))


def test_resuming_makes_each_window_once(model: str, videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.jsonl"
    expected = vectors(sta.features(videos, model, every=1, **QUIET))
    sta.features(videos / "a.mp4", model, every=1, out=out, **QUIET)
    lines = out.read_bytes().splitlines(keepends=True)
    # Killed in the middle of the video, and of a line.
    out.write_bytes(b"".join(lines[:4]) + lines[4][:30])
    rows = list(sta.features(videos, model, every=1, out=out, resume=True, **QUIET))
    keys = [(Path(row["path"]).name, row["start"]) for row in rows if row["vector"] is not None]
    assert sorted(keys) == sorted(expected)
    with pytest.raises(ValueError, match="cannot be resumed"):
        sta.features(videos, model, every=2, out=out, resume=True, **QUIET)


def test_a_killed_run_is_gone_on_with(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in "abc":
        make(folder / f"{name}.mp4", 400, 40, 56, fps=10)
    out = tmp_path / "f.parquet"
    words = command(
        *("features", folder, "--model", model, "--every", "0.1", "--out", out),
        *("--batch-size", 1, "--workers", 1),
    )
    process = subprocess.Popen(words, env=environment(), stderr=subprocess.DEVNULL)
    partial = Path(f"{out}.partial.jsonl")
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if partial.exists() and partial.read_bytes().count(b"\n") > 30:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = list(sta.features(folder, model, every=0.1, out=out, resume=True, **QUIET))
    keys = [(row["path"], row["start"]) for row in rows]
    assert len(keys) == len(set(keys)) == 3 * 388


def test_ctrl_c_leaves_whole_videos_only(model: str, videos: Path, tmp_path: Path) -> None:
    seen = []

    def stop(now: object) -> None:
        seen.append(now)
        if len(seen) == 2:
            raise KeyboardInterrupt

    from sta.inference.collect import Interrupted

    with pytest.raises(Interrupted) as caught:
        sta.features(videos, model, every=1, out=tmp_path / "f.jsonl", progress=stop)
    assert len({row["path"] for row in caught.value.result}) == 1
    done = sta.features(videos, model, every=1, out=tmp_path / "f.jsonl", resume=True, **QUIET)
    assert vectors(done).keys() == vectors(sta.features(videos, model, every=1, **QUIET)).keys()


def break_windows(
    monkeypatch: pytest.MonkeyPatch, bad: list[np.ndarray], *, only_in_batches: bool = False
) -> None:
    """Let the encoder's results be NaN where they would be these."""
    usual = Encoder.__call__

    def call(self: Encoder, clips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        results, seconds = usual(self, clips)
        for number in range(len(clips) if len(clips) > 1 or not only_in_batches else 0):
            if any(np.allclose(results[0, number], one, atol=1e-4) for one in bad):
                results[:, number] = np.nan
        return results, seconds

    monkeypatch.setattr(Encoder, "__call__", call)


def test_a_window_that_is_not_a_number_is_tried_alone(
    model: str, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = vectors(sta.features(videos / "a.mp4", model, every=1, **QUIET))
    bad = [expected["a.mp4", 2.0], expected["a.mp4", 3.0]]
    break_windows(monkeypatch, bad, only_in_batches=True)
    found = sta.features(videos / "a.mp4", model, every=1, batch_size=4, **QUIET)
    assert not found.failures
    assert vectors(found).keys() == expected.keys()
    for key, vector in vectors(found).items():
        np.testing.assert_allclose(vector, expected[key], atol=1e-5)


def test_a_window_that_is_not_a_number_is_a_row_with_its_error(
    model: str, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "f.parquet"
    whole = vectors(sta.features(videos / "a.mp4", model, every=1, **QUIET))
    for first in (0.0, 2.0):  # also before anything has a shape
        with monkeypatch.context() as patch:
            break_windows(patch, [whole["a.mp4", first]])
            given = {"every": 1, "overwrite": True, **QUIET}
            rows = list(sta.features(videos / "a.mp4", model, out=out, **given))
            made = sta.features(
                videos / "a.mp4", model, out=tmp_path / "out", array_format="npz", **given
            )
        assert [row["start"] for row in rows if row["error"]] == [first]
        (bad,) = (row for row in rows if row["error"])
        assert (bad["vector"], bad["error_kind"], bad["end"]) == (None, "scores", first + 1.6)
        assert "NaN" in bad["error"]
        assert len(rows) == len(whole)
        (row,) = made
        assert "NaN" in row["error"]
        assert [Path(failure.path).name for failure in made.failures] == ["a.mp4"]
        loaded = np.load(tmp_path / "out" / row["file"])
        at = list(whole).index(("a.mp4", first))
        assert np.isnan(loaded["features"][at]).all()
        assert np.isfinite(np.delete(loaded["features"], at, 0)).all()
        assert loaded["start"].shape == (len(whole),)
    # The last window is whole, yet the video has failed, and can be made again.
    again = sta.features(
        videos / "a.mp4", model, every=1, out=out, resume=True, retry_failed=True, **QUIET
    )
    assert not again.failures
    assert vectors(again).keys() == whole.keys()


def test_without_any_numbers_there_is_no_array(
    model: str, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = vectors(sta.features(videos / "b.mp4", model, **QUIET))
    break_windows(monkeypatch, list(whole.values()))
    (row,) = sta.features(videos / "b.mp4", model, out=tmp_path / "out", **QUIET)
    assert (row["file"], row["windows"], row["error_kind"]) == (None, 0, "scores")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["index.jsonl"]


def test_bare_encoders_load_from_their_folders(tmp_path: Path) -> None:
    small = {"image_size": 32, "patch_size": 8, "num_frames": 4, "hidden_size": 32}
    small |= {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    decoder = {"decoder_num_hidden_layers": 1, "decoder_hidden_size": 32}
    decoder |= {"decoder_num_attention_heads": 2, "decoder_intermediate_size": 32}
    config = VideoMAEConfig(**small, **decoder)
    video = make(tmp_path / "v.mp4", 40, 40, 56, fps=10)
    for made in (VideoMAEModel(config), VideoMAEForPreTraining(config), VJEPA2Model(_vjepa2())):
        folder = tmp_path / type(made).__name__
        made.save_pretrained(folder)
        rows = sta.features(video, str(folder), r=2, **QUIET)
        assert rows.vectors().shape[1] == 32
        assert VideoModel.open(folder, bare=True).class_names == ()
    with pytest.raises(ValueError, match="classifier"):
        sta.load(tmp_path / "VideoMAEModel")


def test_wrong_arguments_are_refused_before_the_work(model: str, videos: Path) -> None:
    for options, message in (
        ({"every": "soon"}, "every soon"),
        ({"block": 9}, "blocks 1 to 3"),
        ({"dense": True, "out": videos / "x.parquet"}, "dense"),
        ({"array_format": "npy"}, "folder"),
        ({"fill": "mean"}, "nearest or delta"),
        ({"fill": "delta"}, "give dense=True as well"),
        ({"out": videos / "features.npy"}, "to a folder"),
    ):
        with pytest.raises(ValueError, match=message):
            sta.features(videos, model, **options, **QUIET)  # type: ignore[arg-type]


def test_a_call_that_is_refused_leaves_no_folder(model: str, videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "features"
    with pytest.raises(ValueError, match="leaves no tokens"):
        sta.features(videos, model, r=10_000, out=out, progress=False)
    assert not out.parent.exists()
    sta.features(videos, model, out=out, progress=False)
    assert (out / "index.jsonl").exists()


def test_windows_that_are_too_long_are_no_damage(model: str, videos: Path) -> None:
    (row,) = sta.features(videos / "b.mp4", model, windows="3000s", **QUIET)
    assert row["error_kind"] == "refused"
    assert row["error"].startswith("windows of 3000 s are 30000 frames")


def test_the_command_writes_and_names_failures(model: str, videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.parquet"
    done = run("features", videos, "--model", model, "--every", "1s", "--r", 4, "--out", out)
    assert done.exit_code == 1
    assert "c.mp4" in done.stderr
    assert out.is_file()


def test_predictions_of_windows_are_those_of_cut_out_clips(model: str, tmp_path: Path) -> None:
    pictures = [numbered(number, 40, 56) for number in range(60)]
    long = write_video(tmp_path / "long.mkv", pictures, codec="ffv1", fps=10)
    rows = list(sta.predict(long, model, windows="2s", every=1, top_k=2, **QUIET))
    assert [(row["start"], row["end"]) for row in rows] == [(k, k + 2.0) for k in range(5)]
    cut = write_video(tmp_path / "cut.mkv", pictures[10:30], codec="ffv1", fps=10)
    (alone,) = sta.predict(cut, model, windows="2s", top_k=2, **QUIET)
    assert alone["predictions"] == rows[1]["predictions"]


def test_predict_draws_timelines_and_writes_segments(
    model: str, videos: Path, tmp_path: Path
) -> None:
    words = ("predict", videos / "a.mp4", videos / "c.mp4", "--model", model, "--every", "1s")
    for ending in ("html", "png"):
        done = run(*words, "--timeline", tmp_path / f"t.{ending}", "--smooth", 3)
        assert done.exit_code == 1, done.output
        assert (tmp_path / f"t.{ending}").stat().st_size > 1000
    page = (tmp_path / "t.html").read_text()
    assert "a.mp4" in page
    assert "<script" not in page
    done = run(*words, "--segments", tmp_path / "s.jsonl", "--threshold", 0)
    found = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert found[0]["start"] == 0
    assert all(one["end"] > one["start"] for one in found)
    assert run("predict", videos / "a.mp4", "--segments", tmp_path / "s.jsonl").exit_code != 0


def test_files_beside_the_rows_are_not_overwritten(
    model: str, videos: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    words = ("predict", videos / "a.mp4", "--model", model, "--every", "1s")
    for option, name in (("--timeline", "t.html"), ("--segments", "s.jsonl")):
        file = tmp_path / name
        file.write_text("mine")
        message = refused(*words, option, file)
        assert f"{option} {file}: is there already; --overwrite replaces it" in message
        assert file.read_text() == "mine"
        assert run(*words, option, file, "--overwrite").exit_code == 0
        assert file.read_text() != "mine"
        file.write_text("mine")
        out = ("--out", tmp_path / f"{name}.rows.jsonl")
        assert run(*words, *out).exit_code == 0
        assert run(*words, *out, option, file, "--resume").exit_code == 0
        assert file.read_text() != "mine"


def window(start: float, **scores: float) -> dict[str, object]:
    listed = sorted(scores.items(), key=lambda one: -one[1])
    predictions = [{"label": label, "score": score} for label, score in listed]
    times = {"start": start, "end": start + 2.0}
    return {"path": "v", **times, "predictions": predictions, "error": None}


def test_segments() -> None:
    rows = [
        window(0, run=0.9, sit=0.1),
        window(1, run=0.8, sit=0.2),
        window(2, sit=0.7, run=0.3),
        window(3, sit=0.4, run=0.3),
        window(4, run=0.9),
    ]
    found = sta.segments(rows, threshold=0.5)
    assert [(one["label"], one["start"], one["end"]) for one in found] == [
        ("run", 0, 2.5),
        ("sit", 2.5, 4.0),
        ("run", 4, 6.0),
    ]
    assert found[0]["score"] == pytest.approx(0.85)
    calm = sta.segments(
        [window(0, a=1.0), window(1, a=1.0), window(2, b=0.9), window(3, a=1.0), window(4, a=1.0)],
        smooth=3,
    )
    assert [one["label"] for one in calm] == ["a"]
    with pytest.raises(ValueError, match="odd"):
        sta.segments(rows, smooth=2)


def test_memory_does_not_grow_with_the_video(model: str, tmp_path: Path) -> None:
    """The peak of a process over a video of 4,000 frames is that over one of 400, and little."""
    peaks = []
    for count in (400, 4000):
        pictures = (numbered(number % 512, 40, 56) for number in range(count))
        video = write_video(tmp_path / f"{count}.mp4", pictures, fps=25)
        program = (
            "import resource, sys, torch, sta\n"
            "torch.set_num_threads(1)\n"
            "sta.features(sys.argv[1], sys.argv[2], every=0.2, dense=True, out=sys.argv[3],"
            " progress=False)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        words = [*command()[:1], "-c", program, str(video), model, str(tmp_path / f"o{count}")]
        done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    assert peaks[1] < peaks[0] + 25
