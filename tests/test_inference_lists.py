from __future__ import annotations

import json
import sys
import warnings

import pytest

from sta import cli
from sta.video import lists
from sta.video.lists import Entry, find_labelled, find_videos

CLASSES = ("apply lipstick", "archery", "riding a bike")


@pytest.fixture
def folder(tmp_path):
    for name in ("b/2.mp4", "b/1.AVI", "a.mkv", "notes.txt", "b/poster.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def labels_of(entries: list[Entry]) -> dict[str, int | None]:
    return {entry.path: entry.label for entry in entries}


def test_files_folders_and_lists_mix(folder):
    (folder / "more.txt").write_text("b/2.mp4\n\nfar away.mp4 7\n/abs/x.mp4\n")
    entries = find_videos(["one.mp4", str(folder), str(folder / "more.txt")])
    assert [entry.source for entry in entries] == [
        "one.mp4",
        *(f"{folder}/{name}" for name in ("a.mkv", "b/1.AVI", "b/2.mp4")),
        f"{folder}/far away.mp4",
        "/abs/x.mp4",
    ]
    assert entries[-2].path == "far away.mp4"


@pytest.mark.parametrize(
    ("line", "path", "label"),
    [
        ("val/a.mp4 2", "val/a.mp4", 2),
        ("val/a.mp4,2", "val/a.mp4", 2),
        ("val/a.mp4, 2", "val/a.mp4", 2),
        ("val/a.mp4\t2", "val/a.mp4", 2),
        ("val/riding a bike/x 1.mp4 2", "val/riding a bike/x 1.mp4", 2),
        ("val/a,b.mp4,0", "val/a,b.mp4", 0),
        ("val/a.mp4,Riding_A_Bike", "val/a.mp4", 2),
        ("val/a.mp4 300 2", "val/a.mp4", 2),
        ("val/a b.MP4, 300, 2", "val/a b.MP4", 2),
        ("val/a.mp4 copy 7.webm 12 1", "val/a.mp4 copy 7.webm", 1),
    ],
)
def test_kinetics_lines(tmp_path, line, path, label):
    file = tmp_path / "val.csv"
    file.write_text(line + "\r\n")
    assert find_labelled(str(file), classes=CLASSES) == [Entry(path, f"{tmp_path}/{path}", label)]


def test_the_root_is_where_paths_start(tmp_path):
    (tmp_path / "val.txt").write_text("a.mp4 0")
    (tmp_path / "videos").mkdir()
    [entry] = find_labelled(str(tmp_path / "val.txt"), str(tmp_path / "videos"))
    assert entry == Entry("a.mp4", f"{tmp_path}/videos/a.mp4", 0)
    with pytest.raises(FileNotFoundError, match=r"nowhere: there is no such folder"):
        find_labelled(str(tmp_path / "val.txt"), "nowhere")


def ssv2(tmp_path):
    records = [
        {"id": "78687", "label": "holding a pen", "template": "Holding [something] next to [it]"},
        {"id": 42326, "label": "moving cup up", "template": "Moving [something] up"},
    ]
    (tmp_path / "validation.json").write_text(json.dumps(records))
    labels = {"Moving something up": "0", "Holding something next to it": "1"}
    return str(tmp_path / "validation.json"), labels


def test_something_something(tmp_path):
    name, labels = ssv2(tmp_path)
    (tmp_path / "42326.mp4").touch()
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    assert find_labelled(name) == [
        Entry("78687", f"{tmp_path}/78687.webm", 1),
        Entry("42326", f"{tmp_path}/42326.mp4", 0),
    ]
    assert len(find_videos([name])) == 2


def test_something_something_with_labels_elsewhere(tmp_path):
    name, labels = ssv2(tmp_path)
    with pytest.raises(ValueError, match="has no label"):
        find_labelled(name)
    elsewhere = tmp_path / "theirs.json"
    elsewhere.write_text(json.dumps(labels))
    assert labels_of(find_labelled(name, labels=str(elsewhere))) == {"78687": 1, "42326": 0}
    elsewhere.write_text(json.dumps({"Moving something up": "0"}))
    with pytest.raises(ValueError, match=r"Holding \[something\].*78687 is not in the labels"):
        find_labelled(name, labels=str(elsewhere))
    elsewhere.write_text("[]")
    with pytest.raises(ValueError, match=r"theirs\.json: not a Something-Something labels file"):
        find_labelled(name, labels=str(elsewhere))


def test_a_folder_per_class_is_matched_by_name(tmp_path):
    for name in ("riding_a_bike/1.mp4", "ApplyLipstick/2.mp4", "riding_a_bike/deep/3.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    entries = find_labelled(str(tmp_path), classes=CLASSES)
    assert {e.path.removeprefix(f"{tmp_path}/"): e.label for e in entries} == {
        "riding_a_bike/1.mp4": 2,
        "ApplyLipstick/2.mp4": 0,
        "riding_a_bike/deep/3.mp4": 2,
    }
    (tmp_path / "cooking").mkdir()
    (tmp_path / "cooking" / "4.mp4").touch()
    with pytest.raises(
        ValueError, match=r"1 of 3 folders are not a class of the model, e\.g\. 'cooking'"
    ):
        find_labelled(str(tmp_path), classes=CLASSES)


def by_folder(entries: list[Entry]) -> set[tuple[str, int | None]]:
    return {(entry.path.split("/")[-2], entry.label) for entry in entries}


def test_folders_that_are_no_classes_are_refused_until_a_file_maps_them(tmp_path):
    data = tmp_path / "data"
    for name in ("walk/1.mp4", "run/2.mp4"):
        (data / name).parent.mkdir(parents=True)
        (data / name).touch()
    numbered = ("LABEL_0", "LABEL_1")
    with pytest.raises(ValueError, match=r"2 of 2 folders.*'run'.*'LABEL_0'.*label order.*labels"):
        find_labelled(str(data), classes=numbered)
    names = tmp_path / "classes.txt"
    names.write_text("walk\nrun\n")
    found = find_labelled(str(data), classes=numbered, labels=str(names))
    assert by_folder(found) == {("walk", 0), ("run", 1)}
    names.write_text("walk\n")
    with pytest.raises(ValueError, match=r"1 of 2 folders are not in the labels file"):
        find_labelled(str(data), classes=numbered, labels=str(names))
    names.write_text("walk\nwalk\n")
    with pytest.raises(ValueError, match=r"'walk' is class 0 and class 1"):
        find_labelled(str(data), classes=numbered, labels=str(names))


def test_linked_class_folders_are_followed_and_the_rest_is_named(tmp_path):
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for folder in (data / "a", data / "c", elsewhere):
        folder.mkdir(parents=True)
        (folder / "1.mp4").touch()
    (data / "b").symlink_to(elsewhere)
    (data / "c" / "2.mp4").symlink_to(elsewhere / "1.mp4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = find_labelled(str(data))
    assert by_folder(found) == {("a", 0), ("b", 1), ("c", 2)}
    assert len(found) == 4
    (data / "c" / "gone.mp4").symlink_to(tmp_path / "nowhere.mp4")
    (data / "c" / "loop").symlink_to(data)
    (data / "top.mp4").touch()
    (data / "a" / "poster.jpg").touch()
    with pytest.warns(UserWarning, match="left out") as caught:
        again = find_labelled(str(data))
    assert labels_of(again) == labels_of(found)
    said = str(caught[0].message)
    for part in ("gone.mp4 (a link to nothing)", "loop (a link to a folder", "top.mp4 (in no"):
        assert part in said
    assert "poster.jpg (not a video's ending)" in said
    with pytest.warns(UserWarning, match=r"gone\.mp4 \(a link to nothing\)"):
        assert len(find_videos([str(data)])) == 5


def test_a_dangling_class_folder_does_not_shift_the_labels(tmp_path):
    for name in ("apply lipstick", "riding a bike"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.mp4").touch()
    (tmp_path / "archery").symlink_to(tmp_path / "nowhere")
    with pytest.warns(UserWarning, match=r"archery \(a link to nothing\)"):
        found = find_labelled(str(tmp_path), classes=CLASSES)
    assert by_folder(found) == {("apply lipstick", 0), ("riding a bike", 2)}


def test_names_that_are_not_utf8_survive(tmp_path):
    (tmp_path / "l.txt").write_bytes(b"caf\xe9.mp4 1\n")
    [entry] = find_labelled(str(tmp_path / "l.txt"))
    assert entry.path.encode("utf-8", "surrogateescape") == b"caf\xe9.mp4"


def test_remote_lists_and_folders():
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.pipe({"/lists/val.txt": b"x/a.mp4 1\ns3://b/c.mp4 0\n", "/clips/q/a.mp4": b"x"})
    assert [e.source for e in find_labelled("memory://lists/val.txt")] == [
        "memory://lists/x/a.mp4",
        "s3://b/c.mp4",
    ]
    [entry] = find_videos(["memory://clips"])
    assert entry.source.endswith("clips/q/a.mp4")
    assert entry.source.startswith("memory://")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.mp4 0\na.mp4 1", "listed twice, with labels 0 and 1"),
        ("a.mp4 3", "label 3 of 'a.mp4' is not a class of the model, which has 0..2"),
        ("a.mp4 -1", "label -1 of 'a.mp4' is not a class of the model"),
        ("a.mp4", "'a.mp4' has no label"),
        ("a.mp4,cooking", "'cooking' in the line"),
        ("  \n", "the list is empty"),
    ],
)
def test_lists_that_are_wrong_say_where(tmp_path, text, message):
    (tmp_path / "val.txt").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        find_labelled(str(tmp_path / "val.txt"), classes=CLASSES)
    assert "val.txt" in str(caught.value)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt: the list cannot be read"):
        find_videos([str(tmp_path / "none.txt")])
    with pytest.raises(ValueError, match="there are no videos in this folder"):
        find_videos([str(tmp_path)])
    with pytest.raises(ValueError, match="one folder of videos per class"):
        find_labelled(str(tmp_path))
    (tmp_path / "l.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"l\.json: not a Something-Something list"):
        find_videos([str(tmp_path / "l.json")])


def test_a_video_listed_again_is_counted_once_and_said(tmp_path):
    (tmp_path / "val.txt").write_text("a.mp4 1\nb.mp4 0\na.mp4 1\n")
    with pytest.warns(UserWarning, match=r"val\.txt: 1 of 3 videos are listed again"):
        assert labels_of(find_labelled(str(tmp_path / "val.txt"))) == {"a.mp4": 1, "b.mp4": 0}


def test_the_command_line_warns_without_a_line_of_code(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", ["sta", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert warnings.formatwarning("two", UserWarning, lists.__file__, 117) == "Warning: two\n"
    monkeypatch.setattr(sys, "warnoptions", [])
    assert warnings.formatwarning("two", UserWarning, json.__file__, 1) == ""  # libraries' own
    monkeypatch.setattr(sys, "warnoptions", ["default"])  # python -W default
    assert "json" in warnings.formatwarning("two", UserWarning, json.__file__, 1)


def test_minus_one_is_no_label_where_none_is_needed(tmp_path):
    (tmp_path / "test.txt").write_text("a.mp4 -1\n")
    assert find_videos([str(tmp_path / "test.txt")]) == [
        Entry("a.mp4", f"{tmp_path}/a.mp4", None),
    ]
