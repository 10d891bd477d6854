"""What the page does without Gradio: exported files and lower precision beside models."""

from __future__ import annotations

from pathlib import Path

import pytest

import sta
from inference_runs import make_videos
from sta.ui.session import Refused, Session


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> str:
    return str(next(make_videos(tmp_path_factory.mktemp("page") / "v", 1).glob("*.mp4")))


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("file") / "m.pt2"
    sta.export(folder, path, format="pt2", r=6, progress=False)
    return path


def test_a_file_is_shown_with_its_own_method(file, folder, video, tmp_path) -> None:
    session = Session([str(file), folder], tmp_path)
    assert session.most[str(file)] == 0  # nothing to choose
    assert session.most[folder] > 0
    views = session.read(video)
    page = session.run(views, str(file), "tome", 3, ["random"])
    (result,) = session.results.values()
    assert "STA, r = 6" in result.page
    assert "ToMe" not in result.page
    assert "film.mp4" in page
    assert "Unpruned" not in result.page


def test_a_model_is_shown_in_lower_precision(folder, video, tmp_path) -> None:
    scores = []
    for precision in ("float32", "bfloat16"):
        session = Session([folder], tmp_path, precision=precision)
        session.run(session.read(video), folder, "sta", 6)
        scores.append(next(iter(session.results.values())).page)
    assert scores[0] != scores[1]


def test_what_the_page_cannot_show_is_refused(file, folder, tmp_path) -> None:
    with pytest.raises(ValueError, match="sta export --format openvino --precision int8"):
        Session([folder], tmp_path, precision="int8")
    with pytest.raises(ValueError, match="cannot compute in bfloat16"):
        Session([str(file)], tmp_path, precision="bfloat16")
    dense = tmp_path / "dense.pt2"
    sta.export(folder, dense, format="pt2", progress=False)
    with pytest.raises(ValueError, match="exported without a method"):
        Session([str(dense)], tmp_path)
    with pytest.raises(Refused, match="Upload a video"):
        Session([str(file)], tmp_path).run(None, str(file), "sta", 3)
