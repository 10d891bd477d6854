"""Windows over long videos: the same as clips of the same frames, each frame prepared once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sta.inference.windows import decode_windows
from sta.video.decode import read_views
from sta.video.encode import write_video
from sta.video.errors import VideoError
from sta.video.lists import Entry
from sta.video.safe import SafeWindows
from sta.video.views import ViewSpec
from sta.video.windows import Cut, Cutter, Window, WindowSpec, assemble, read_windows, seconds_of
from video_files import make, number_of
from video_files import numbered as drawn

VIEW = ViewSpec(4, 3, 72)
#: What goes in comes out, so that windows can be compared to the bit.
LOSSLESS = {"codec": "ffv1"}


def numbers(clip: np.ndarray) -> list[int]:
    return [number_of(frame) for frame in clip]


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("windows") / "long.mkv", 100, 72, 72, fps=10, **LOSSLESS)


def test_windows_lie_every_so_many_seconds_and_know_their_times(video: Path) -> None:
    windows = list(read_windows(str(video), WindowSpec(VIEW, every=0.5)))
    assert [numbers(window.clip) for window in windows[:3]] == [
        [0, 3, 6, 9],
        [5, 8, 11, 14],
        [10, 13, 16, 19],
    ]
    assert [round(window.start, 3) for window in windows] == [0.5 * k for k in range(19)]
    assert windows[0].end == pytest.approx(1.2)  # 12 frames at 10 per second
    assert numbers(windows[-1].clip)[-1] == 99


def test_windows_of_a_length_spread_their_frames(video: Path) -> None:
    windows = list(read_windows(str(video), WindowSpec(VIEW, every=1.0, length=2.0)))
    assert numbers(windows[1].clip) == [10, 15, 20, 25]
    assert (windows[1].start, windows[1].end) == pytest.approx((1.0, 3.0))


@pytest.mark.parametrize("sampling", ["strided", "uniform", "centred"])
@pytest.mark.parametrize("length", [None, 1.1])
def test_windows_equal_the_same_frames_cut_out_as_clips(
    video: Path, tmp_path: Path, sampling: str, length: float | None
) -> None:
    view = ViewSpec(4, 3, 48, sampling=sampling)  # type: ignore[arg-type]
    spec = WindowSpec(view, every=0.7, length=length)
    for number, window in enumerate(read_windows(str(video), spec)):
        if number % 4:
            continue
        start = spec.start(number, 10)
        frames = [drawn(start + k, 72, 72) for k in range(spec.span(10))]
        cut = write_video(tmp_path / f"{number}.mkv", frames, fps=10, **LOSSLESS)  # type: ignore[arg-type]
        assert (window.clip == read_views(str(cut), spec.view).clips()[0]).all()


def test_each_frame_is_prepared_once_and_few_are_held() -> None:
    spec = WindowSpec(VIEW, every=0.3)  # four windows over every frame
    cutter, prepared, events = Cutter(spec, 10.0), [], []

    def frames() -> object:
        for number in range(200):
            made = cutter.push(None, lambda n=number: prepared.append(n) or np.full((1,), n))
            for event in made:
                events.append(event)
                yield event

    windows = list(assemble(frames()))
    assert len(prepared) == len(set(prepared))
    assert len(windows) == 64
    held, most = set(), 0
    for event in events:
        if isinstance(event, Cut):
            held = {number for number in held if number >= event.keep}
        else:
            held.add(event[0])
            most = max(most, len(held))
    assert most <= spec.span(10)


def test_a_window_ends_when_its_last_frame_does() -> None:
    """Frames of a telephone are not equally far apart; frames of a camera may lack a time."""
    times = [5.0, 5.1, 5.2, 5.9, 6.0, 6.1, 8.0, 8.1, 8.2, 8.3, 8.4, 8.5, 2.0, 2.1, 2.2, 2.3]
    cutter = Cutter(WindowSpec(ViewSpec(2, 2, 72)), 10.0)  # frames 0 and 2 of every four
    cuts = [
        event
        for time in times
        for event in cutter.push(time, lambda: np.zeros(1))
        if isinstance(event, Cut)
    ]
    found = [(round(cut.start, 6), round(cut.end, 6)) for cut in cuts]
    # The last window is of another clock.
    assert found == [(0.0, 0.4), (1.0, 3.2), (3.2, 3.6), (-3.0, -2.6)]


def test_the_clock_set_back_within_a_window_leaves_its_length() -> None:
    cutter = Cutter(WindowSpec(ViewSpec(2, 2, 72)), 10.0)
    events = [event for time in (5.0, 5.1, 1.0) for event in cutter.push(time, lambda: np.zeros(1))]
    assert (events[-1].start, events[-1].end) == pytest.approx((0.0, 0.4))  # type: ignore[union-attr]


def test_frames_that_no_window_needs_are_not_prepared() -> None:
    spec = WindowSpec(ViewSpec(2, 5, 72), every=10.0)
    cutter, prepared = Cutter(spec, 10.0), []
    for number in range(300):
        list(cutter.push(None, lambda n=number: prepared.append(n) or np.zeros(1)))
    assert prepared[6:] == [100, 105, 200, 205]


def test_a_short_video_gives_one_window_as_predict_sees_it(tmp_path: Path) -> None:
    short = make(tmp_path / "short.mkv", 7, 72, 72, fps=10, **LOSSLESS)
    (window,) = read_windows(str(short), WindowSpec(VIEW))
    assert (window.clip == read_views(str(short), VIEW).clips()[0]).all()
    assert (window.start, window.end) == pytest.approx((0.0, 0.7))


def test_the_decoding_process_gives_the_same_and_goes_on_after_errors(
    video: Path, tmp_path: Path
) -> None:
    (tmp_path / "no.mp4").write_bytes(b"no video" * 100)
    spec = WindowSpec(VIEW, every=1.0)
    decoder = SafeWindows(spec)
    try:
        with pytest.raises(VideoError):
            list(decoder(str(tmp_path / "no.mp4")))
        next(iter(decoder(str(video))))  # left in the middle
        here = list(read_windows(str(video), spec))
        there = list(decoder(str(video)))
    finally:
        decoder.close()
    assert [window.start for window in there] == [window.start for window in here]
    assert all((a.clip == b.clip).all() for a, b in zip(here, there, strict=True))


def _take(windows: Iterable[Window], into: list[Window]) -> None:
    for window in windows:
        into.append(window)


def test_a_truncated_video_gives_its_windows_then_its_error(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.mkv", 200, 72, 72, fps=10, options={"g": "10"})
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    windows: list[Window] = []
    with pytest.raises(VideoError, match="truncated"):
        _take(read_windows(str(cut), WindowSpec(VIEW)), windows)
    assert len(windows) > 3


@pytest.mark.parametrize(("text", "seconds"), [("2s", 2.0), ("1.5", 1.5), ("500ms", 0.5), (3, 3.0)])
def test_lengths_of_time(text: str | float, seconds: float) -> None:
    assert seconds_of(text, "every") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "0", "-1s", "inf", "nan"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="every"):
        seconds_of(text, "every")


def test_an_error_that_no_video_explains_is_raised_and_not_waited_for(monkeypatch) -> None:
    class Broken:
        def __init__(self, *args: object) -> None:
            pass

        def __call__(self, source: object) -> Iterator[object]:
            raise RuntimeError("a bug")
            yield

        def close(self) -> None:
            pass

    monkeypatch.setattr("sta.inference.windows.SafeWindows", Broken)
    with pytest.raises(RuntimeError, match="a bug"):
        list(decode_windows([Entry("a", "a")], WindowSpec(VIEW)))
