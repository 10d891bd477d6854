"""Live video: `sta.Stream`, and `sta watch` on files, pipes and addresses made here."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import sta
from inference_runs import command, environment, run, save_model
from sta.backbones.zoo.video_model import VideoModel
from sta.inference import watch as watching
from sta.inference.stream import StreamModel
from sta.inference.watch import Watch
from sta.video.encode import write_video
from sta.video.errors import VideoError
from sta.video.live import _Clock
from sta.video.sources import LiveSource, live_source
from video_files import make, numbered

LOSSLESS = {"qp": "0"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"))  # clips of 4 frames, stride 4, 32 pixels


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Four seconds of MPEG-TS, which can be joined and cut anywhere."""
    path = tmp_path_factory.mktemp("ts") / "v.ts"
    return make(path, 100, 40, 56, fps=25, options={"g": "5", "bf": "0"}).read_bytes()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BACK_OFF", (0.05, 0.2))


def test_a_stream_gives_what_predict_gives(model: str, tmp_path: Path) -> None:
    pictures = [numbered(number, 40, 56) for number in range(60)]
    video = write_video(tmp_path / "v.mkv", pictures, codec="libx264rgb", fps=10, options=LOSSLESS)
    expected = list(sta.predict(video, model, every=0.5, r=4, progress=False))
    stream = sta.Stream(model, sta.STAConfig(r=4), every=0.5, fps=10)
    found = [row for picture in pictures if (row := stream.push(picture)) is not None]
    assert [row["start"] for row in found] == pytest.approx([row["start"] for row in expected])
    for mine, other in zip(found, expected, strict=True):
        assert mine["predictions"][0]["label"] == other["predictions"][0]["label"]
        assert mine["predictions"][0]["score"] == pytest.approx(
            other["predictions"][0]["score"], abs=1e-4
        )
    assert (stream.frames, stream.results) == (60, len(expected))


def test_a_stream_of_features_holds_no_more_frames_than_a_window(model: str) -> None:
    stream = sta.Stream(model, every="200ms", fps=10, features=True)
    rows = [stream.push(numbered(number % 512, 40, 56)) for number in range(300)]
    assert len(stream._held) <= 16
    made = [row for row in rows if row is not None]
    assert len(made) == 144
    assert made[0]["vector"].shape == (32,)


@pytest.mark.parametrize("features", [False, True])
def test_a_window_that_is_not_a_number_is_a_row_with_its_error(model: str, features: bool) -> None:
    broken = VideoModel.open(model)
    with torch.no_grad():
        next(broken.model.parameters()).fill_(torch.nan)
    stream = sta.Stream(broken, features=features)
    row = next(row for _ in range(100) if (row := stream.push(numbered(1, 40, 56))) is not None)
    assert "NaN" in row["error"]
    assert row["vector"] is None if features else row["predictions"] == []
    json.dumps(row, allow_nan=False)


def test_frames_that_are_none_are_refused(model: str) -> None:
    stream = sta.Stream(model)
    for frame in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)):
        with pytest.raises(ValueError, match="uint8 RGB"):
            stream.push(frame)


def test_what_a_source_is(tmp_path: Path) -> None:
    (tmp_path / "v.ts").touch()
    os.mkfifo(tmp_path / "fifo")
    assert live_source("-").kind == "pipe"
    assert live_source("rtsp://camera/1").kind == "rtsp"
    assert live_source(str(tmp_path / "v.ts")).kind == "file"
    assert live_source(str(tmp_path / "fifo")).kind == "fifo"
    for text in ("http://example.org/v.m3u8", "file:///etc/passwd", "/dev/zero", str(tmp_path)):
        with pytest.raises(ValueError, match=r"live source|neither a camera"):
            live_source(text)
    with pytest.raises(FileNotFoundError):
        live_source("/dev/video-that-is-not-there")


def test_a_growing_file_is_followed_to_its_end(
    model: str, recording: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "grows.ts"
    path.write_bytes(recording[: len(recording) // 4])

    def grow() -> None:
        for part in range(1, 4):
            time.sleep(0.3)
            with path.open("ab") as file:
                at = part * len(recording) // 4
                file.write(recording[at : at + len(recording) // 4])

    writer = threading.Thread(target=grow)
    writer.start()
    watch = Watch(live_source(str(path), idle=2.0), StreamModel(model, every=0.4))
    rows = list(watch.rows())
    writer.join()
    done = watch.summary
    assert done.windows == 9  # of 16 frames, every 10 of 100; the last frames come at the end
    assert done.results + done.skipped == done.windows
    assert len(rows) == done.results > 0
    assert done.latency(0.5) is not None
    assert [row["start"] for row in rows] == sorted(row["start"] for row in rows)


def test_windows_are_skipped_and_counted_when_the_model_is_slow(
    model: str, recording: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "v.ts"
    path.write_bytes(recording)
    slow = StreamModel(model, every=0.08)
    fast_row = slow.row

    def row(*args: object) -> dict[str, object]:
        time.sleep(0.7)
        return fast_row(*args)  # type: ignore[arg-type]

    slow.row = row  # type: ignore[method-assign, assignment]
    watch = Watch(live_source(str(path), idle=0.2), slow)
    rows = list(watch.rows())
    done = watch.summary
    assert done.windows > 30
    assert done.skipped > done.results > 0
    assert done.results + done.skipped == done.windows
    assert len(rows) == done.results
    # The newest window is taken, so the rows are apart.
    assert rows[1]["start"] - rows[0]["start"] > 0.08


def test_garbage_in_the_stream_is_passed_over(model: str, recording: bytes, tmp_path: Path) -> None:
    path = tmp_path / "v.ts"
    middle = len(recording) // 2
    noise = np.random.default_rng(0).bytes(20_000)
    path.write_bytes(recording[:middle] + noise + recording[middle:])
    watch = Watch(live_source(str(path), idle=0.2), StreamModel(model, every=0.4))
    rows = list(watch.rows())
    assert rows[-1]["end"] > 3


def test_a_stream_that_is_cut_off_is_opened_again(
    model: str, recording: bytes, tmp_path: Path, fast: None
) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    lost: list[str] = []
    noticed = threading.Event()

    def write() -> None:
        for _ in range(2):
            with path.open("wb") as file:
                file.write(recording)
            noticed.wait(60)

    def report(line: str) -> None:
        lost.append(line)
        noticed.set()

    threading.Thread(target=write, daemon=True).start()
    watch = Watch(live_source(str(path)), StreamModel(model, every=0.4), duration=60, report=report)
    starts: list[float] = []
    for row in watch.rows():
        starts.append(row["start"])
        if len(starts) > 1 and starts[-1] < starts[-2]:
            break  # times start anew: the second recording is there
    assert watch.summary.reopened == 1
    assert "it ended" in lost[0]
    assert watch.summary.results + watch.summary.skipped == watch.summary.windows


def test_a_pipe_and_its_lines(model: str, recording: bytes) -> None:
    done = subprocess.run(
        command("watch", "-", "--model", model, "--every", "0.5s", "--r", 4, "--top-k", 2),
        input=recording,
        env=environment(),
        capture_output=True,
        timeout=120,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert lines
    assert {"start", "end", "predictions", "latency", "skipped"} <= lines[0].keys()
    assert len(lines[0]["predictions"]) == 2
    assert b"results of" in done.stderr


def test_ctrl_c_ends_with_a_summary(model: str, recording: bytes, tmp_path: Path) -> None:
    path = tmp_path / "v.ts"
    path.write_bytes(recording)
    process = subprocess.Popen(
        command("watch", path, "--model", model, "--every", "0.2s", "--idle", 60),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Whoever runs the tests in the background ignores it, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"results of" in errors
    assert b"Traceback" not in errors


def test_an_mp4_is_watched_though_its_index_comes_last(model: str, tmp_path: Path) -> None:
    path = make(tmp_path / "v.mp4", 50, 40, 56, fps=25)
    assert path.read_bytes().index(b"mdat") < path.read_bytes().index(b"moov")
    watch = Watch(live_source(str(path), idle=0.2), StreamModel(model, every=0.4))
    assert list(watch.rows())
    assert watch.summary.windows == 4
    path.write_bytes(path.read_bytes()[: path.read_bytes().index(b"moov") - 4])
    with pytest.raises(VideoError, match="fragmented MP4"):  # still being written
        list(Watch(live_source(str(path), idle=0.2), StreamModel(model)).rows())


def test_what_never_gave_a_window_has_failed(model: str, tmp_path: Path, fast: None) -> None:
    make(tmp_path / "short.mkv", 10, 40, 56, fps=25)
    done = run("watch", tmp_path / "short.mkv", "--model", model, "--idle", 0.2)
    assert done.exit_code == 1
    assert "before its first window" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"rtsp://127.0.0.1:{server.getsockname()[1]}/live"
    done = run("watch", address, "--model", model, "--duration", 8)  # nobody listens any more
    assert done.exit_code == 1
    assert "Connection refused" in done.stderr
    assert "opening it again" in done.stderr


def test_a_stream_is_not_behind_by_the_time_that_opening_took() -> None:
    now = time.monotonic()
    late, calls = _Clock(now - 1.0, lambda: calls.append(1)), []
    late.wait(7.0)  # the first frame, a second after the first bytes
    late.wait(7.9)
    assert not calls
    early = _Clock(time.monotonic(), lambda: calls.append(1))
    early.wait(7.0)
    early.wait(7.15)
    assert calls
    assert time.monotonic() - now >= 0.15


@pytest.mark.parametrize("text", ["#EXTM3U\nhttp://127.0.0.1:{port}/x.ts\n", "v=0 c=IN IP4 x\n"])
def test_playlists_stay_refused(model: str, tmp_path: Path, text: str, listener: int) -> None:
    path = tmp_path / "list.ts"
    path.write_text(text.format(port=listener) + " " * 64)
    done = run("watch", path, "--model", model, "--idle", 0.2)
    assert done.exit_code == 1
    assert "playlist" in done.stderr or "stream description" in done.stderr


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that nothing may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        yield server.getsockname()[1]
        with pytest.raises(TimeoutError):
            server.accept()


def test_only_the_named_address_is_asked(model: str, fast: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"rtsp://127.0.0.1:{server.getsockname()[1]}/live"
        asked: list[bytes] = []

        def answer() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                asked.append(connection.recv(1000))
                connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        watch = Watch(live_source(address), StreamModel(model), duration=20)
        rows = watch.rows()
        taker = threading.Thread(target=lambda: list(rows), daemon=True)
        taker.start()
        thread.join(timeout=30)
        watch.duration = 0
        taker.join(timeout=30)
    assert len(asked) == 2  # opened again after it was lost
    assert all(b"RTSP/1.0" in request for request in asked)
    assert watch.summary.reopened >= 1


def test_other_commands_open_neither_devices_nor_addresses(model: str) -> None:
    for name in ("rtsp://127.0.0.1:9/live", "/dev/zero"):
        done = run("predict", name, "--model", model)
        assert done.exit_code in (1, 2)


def test_a_source_that_ends_before_it_begins(model: str, tmp_path: Path) -> None:
    (tmp_path / "empty.ts").touch()
    source = LiveSource("file", str(tmp_path / "empty.ts"), idle=0.2)
    with pytest.raises(VideoError, match="before it began"):
        list(Watch(source, StreamModel(model)).rows())
