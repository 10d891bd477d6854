"""The cache of frames: clips from it are those of the videos."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest

from inference_runs import make_videos, run, save_model
from sta.train.clips import FileClips
from sta.video.cache import INDEX, Index, is_cache, make_cache
from sta.video.decode import VideoError, read_views
from sta.video.lists import find_labelled, find_videos
from sta.video.views import ViewSpec
from video_files import make


@pytest.fixture
def videos(tmp_path):
    return make_videos(tmp_path / "videos", 4)  # of 40 x 56 pixels


def cached(source, out, **options) -> dict[str, str | None]:
    return dict(make_cache(str(source), out, **options))


@pytest.mark.parametrize("sampling", ["strided", "uniform", "centred"])
def test_clips_are_those_of_the_files(videos, tmp_path, sampling):
    out = tmp_path / "cache"
    assert set(cached(videos / "list.txt", out, size=40).values()) == {None}
    spec = ViewSpec(4, 2, 40, 2, 3, sampling)
    entries = find_labelled(str(videos / "list.txt"))
    again = find_labelled(str(out))
    assert [(e.path, e.label) for e in again] == [(e.path, e.label) for e in entries]
    for entry, other in zip(entries, again, strict=True):
        assert (
            read_views(other.source, spec).clips() == read_views(entry.source, spec).clips()
        ).all()
    smaller = ViewSpec(4, 3, 20, 1, 3, sampling, short_side=24)
    for entry, other in zip(entries, again, strict=True):
        here, there = (read_views(e.source, smaller).clips() for e in (entry, other))
        assert here.shape == there.shape
        assert np.abs(here.astype(int) - there).mean() < 1


def test_training_reads_it_as_it_reads_files(videos, tmp_path):
    cached(videos / "list.txt", tmp_path / "cache", size=40)
    names = [f"class {number}" for number in range(6)]
    for spec in (ViewSpec(4, 1, 40), ViewSpec(4, 2, 32, short_side=40)):
        files, frames = (
            FileClips(str(name), spec, names) for name in (videos / "list.txt", tmp_path / "cache")
        )
        for index in range(4):
            assert (files[index][0] == frames[index][0]).all()
            assert files[index][1] == frames[index][1]


def test_the_index_tells_what_is_there(videos, tmp_path):
    cached(videos / "list.txt", tmp_path / "cache", size=20, frames=5)
    assert is_cache(str(tmp_path / "cache"))
    assert not is_cache(str(videos))
    index = Index.read(tmp_path / "cache")
    assert (index.size, index.frames, index.class_names) == (20, 5, None)
    for number, video in enumerate(index.videos.values()):
        source = videos / video.path
        assert (video.label, video.frames, video.height, video.width) == (number, 5, 20, 28)
        assert (video.bytes, video.modified) == (source.stat().st_size, source.stat().st_mtime_ns)
        assert video.fps == pytest.approx(25, abs=10)
        array = np.load(tmp_path / "cache" / video.file, mmap_mode="r")
        assert (array.shape, array.dtype) == ((5, 20, 28, 3), np.uint8)
        spread = ViewSpec(5, 1, 20, spatial=2, sampling="uniform")
        assert (array == read_views(str(source), spread).frames).all()


def test_it_goes_on_where_it_was_and_notices_changes(videos, tmp_path):
    out, listed = tmp_path / "cache", videos / "list.txt"
    some = make_cache(str(listed), out, size=20, workers=1)
    next(some)
    some.close()  # as an interrupt does
    done = set(Index.read(out).videos)
    assert 0 < len(done) < 4
    files = {path: path.stat().st_mtime_ns for path in (out / "frames").iterdir()}
    cached(listed, out, size=20)
    index = Index.read(out)
    assert len(index.videos) == 4
    for path in done:
        file = out / index.videos[path].file
        assert file.stat().st_mtime_ns == files[file]  # not made again

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_videos([str(out)])
    make(videos / "001.mp4", 30, 40, 56)
    with pytest.warns(UserWarning, match=r"1 videos have changed.*e\.g\. 001\.mp4"):
        find_labelled(str(out))
    listed.write_text("001.mp4 5\n000.mp4 0\n")
    cached(listed, out, size=20)
    index = Index.read(out)
    assert index.videos["001.mp4"].frames == 30
    assert {path: video.label for path, video in index.videos.items()} == {
        "001.mp4": 5,
        "000.mp4": 0,
    }
    assert len(list((out / "frames").iterdir())) == 2  # what is no longer listed is removed
    with pytest.raises(ValueError, match=r"has size=20, not 24; use the same, or another folder"):
        cached(listed, out, size=24)
    with pytest.raises(ValueError, match=r"has frames=all, not 3"):
        cached(listed, out, size=20, frames=3)
    with pytest.raises(ValueError, match=r"this is a cache already"):
        cached(out, tmp_path / "other")


def test_damaged_videos_are_named_and_left_out(videos, tmp_path):
    (videos / "002.mp4").write_bytes(b"nothing of a video")
    (videos / "003.mp4").unlink()
    out = tmp_path / "cache"
    result = run("data", "cache", videos / "list.txt", "--out", out, "--size", 24)
    assert result.exit_code == 1
    assert "left out: 002.mp4: not a video" in result.stderr
    assert "left out: 003.mp4: there is no such file" in result.stderr
    with pytest.warns(UserWarning, match="2 videos could not be cached and are left out"):
        assert len(find_labelled(str(out))) == 2
    make(videos / "003.mp4", 12, 40, 56)  # tried again
    assert run("data", "cache", videos / "list.txt", "--out", out, "--size", 24).exit_code == 1
    assert set(Index.read(out).left_out) == {"002.mp4"}


def test_class_folders_are_matched_by_name(tmp_path):
    for name in ("walk", "run"):
        (tmp_path / "data" / name).mkdir(parents=True)
        make(tmp_path / "data" / name / "1.mp4", 8, 40, 40)
    out = tmp_path / "cache"
    cached(tmp_path / "data", out, size=20)
    assert Index.read(out).class_names == ("run", "walk")
    labels = {
        e.path.split("/")[-2]: e.label for e in find_labelled(str(out), classes=["walk", "run"])
    }
    assert labels == {"walk": 0, "run": 1}
    with pytest.raises(ValueError, match="2 of 2 folders are not a class of the model"):
        find_labelled(str(out), classes=["fly", "sit"])


def test_eval_and_predict_take_a_cache(videos, tmp_path):
    model = save_model(tmp_path / "model")
    assert (
        run("data", "cache", videos / "list.txt", "--out", tmp_path / "c", "--size", 32).exit_code
        == 0
    )
    tables = []
    for source in (videos / "list.txt", tmp_path / "c"):
        table = tmp_path / "table.json"
        result = run("eval", source, "--model", model, "--json", table)
        assert result.exit_code == 0, result.output
        row = json.loads(table.read_text())[0]
        tables.append((row["clips"], row["top1"], row["top5"]))
    assert tables[0] == tables[1]
    rows = tmp_path / "rows.jsonl"
    assert run("predict", tmp_path / "c", "--model", model, "--out", rows).exit_code == 0
    paths = [json.loads(line)["path"] for line in rows.read_text().splitlines()]
    assert paths == ["000.mp4", "001.mp4", "002.mp4", "003.mp4"]


def test_arrays_that_are_no_videos_and_damaged_indices_are_named(videos, tmp_path):
    spec = ViewSpec(2, 1, 8)
    np.save(tmp_path / "flat.npy", np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(VideoError, match="is no video"):
        read_views(str(tmp_path / "flat.npy"), spec)
    np.save(tmp_path / "cut.npy", np.zeros((3, 8, 8, 3), np.uint8))
    os.truncate(tmp_path / "cut.npy", 200)
    with pytest.raises(VideoError, match="cannot be read"):
        read_views(str(tmp_path / "cut.npy"), spec)
    np.save(tmp_path / "code.npy", np.array([{}], dtype=object))
    with pytest.raises(VideoError, match="cannot be read"):
        read_views(str(tmp_path / "code.npy"), replace(spec, size=4))
    cached(videos / "list.txt", tmp_path / "cache", size=20)
    path = tmp_path / "cache" / INDEX
    path.write_text(path.read_text()[:300])
    with pytest.raises(ValueError, match=r"index\.json: not the index of a cache"):
        find_videos([str(tmp_path / "cache")])
    with pytest.raises(ValueError, match="--frames some"):
        raise run("data", "cache", videos, "--out", tmp_path / "x", "--frames", "some").exception
