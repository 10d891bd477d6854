"""Decoding in another process: same views, and nothing a file does reaches this process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import get_args

import numpy as np
import psutil
import pytest

from sta.video import ErrorKind, VideoError, ViewSpec, process, read_views
from sta.video.pixels import receive_pixels, send_pixels
from sta.video.safe import SafeDecoder
from video_files import make

SPEC = ViewSpec(frames=4, stride=2, size=32, temporal=2, spatial=3)


def child_of(decoder: SafeDecoder) -> psutil.Process:
    assert decoder._process is not None
    return psutil.Process(decoder._process.pid)


def test_the_views_are_those_decoded_here(tmp_path):
    files = [make(tmp_path / "a.mp4", 30), make(tmp_path / "b.avi", 20, codec="mpeg4")]
    with SafeDecoder(SPEC) as decoder:
        for path in files:
            there, here = decoder(str(path)), read_views(str(path), SPEC)
            np.testing.assert_array_equal(there.clips(), here.clips())
        child = child_of(decoder)
        loaded = {os.path.basename(entry.path) for entry in child.memory_maps()}  # noqa: PTH119
        assert not any("torch" in name for name in loaded)  # it starts fast and stays small
    assert not child.is_running()


def test_a_process_that_was_started_early_is_the_first_one_taken(tmp_path):
    video = str(make(tmp_path / "a.mp4", 8))
    process.start_early()
    process.start_early()
    (early,) = process._early
    with SafeDecoder(SPEC, niceness=10) as decoder, SafeDecoder(SPEC) as other:
        assert len(decoder(video).clips()) == len(other(video).clips())
        child = child_of(decoder)
        assert child.pid == early.process.pid != child_of(other).pid
        assert (child.nice(), child_of(other).nice()) == (10, 0)
    assert not child.is_running()


def test_ctrl_c_is_nothing_to_a_process_that_starts(tmp_path, capfd):
    process.start_early()
    (early,) = process._early
    early.process.send_signal(signal.SIGINT)
    with SafeDecoder(SPEC) as decoder:
        assert len(decoder(str(make(tmp_path / "a.mp4", 8))).clips())
        assert child_of(decoder).pid == early.process.pid
    assert capfd.readouterr() == ("", "")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("how", ["dead", "needs our standard input"])
def test_a_process_that_was_started_early_in_vain_ends(tmp_path, how):
    process.start_early()
    (early,) = process._early
    if how == "dead":
        early.process.kill()
        early.process.wait()
    with SafeDecoder(SPEC) as decoder:
        if how != "dead":
            decoder.stdin = None
        assert len(decoder(str(make(tmp_path / "a.mp4", 8))).clips())
        assert child_of(decoder).pid != early.process.pid
    assert early.process.returncode is not None
    process.start_early()
    (early,) = process._early
    process.close_early()
    assert early.process.returncode is not None
    assert not process._early


def test_pixels_that_end_too_early_are_the_death_of_their_process():
    pixels = np.arange(400_000, dtype=np.uint8).reshape(4, 100, 1000)
    ours, theirs = multiprocessing.Pipe()
    sender = threading.Thread(target=send_pixels, args=(theirs, pixels[:, ::2]))
    sender.start()
    np.testing.assert_array_equal(receive_pixels(ours, (4, 50, 1000)), pixels[:, ::2])
    sender.join()
    send_pixels(theirs, pixels[0])
    theirs.close()
    with pytest.raises(EOFError):
        receive_pixels(ours, pixels.shape)


def test_errors_arrive_in_words_and_the_process_stays(tmp_path):
    good = make(tmp_path / "a.mp4", 8)
    with SafeDecoder(SPEC) as decoder:
        with pytest.raises(VideoError, match="no such file") as caught:
            decoder(str(tmp_path / "none.mp4"))
        assert caught.value.kind == "missing"
        first = child_of(decoder).pid
        decoder(str(good))
        assert child_of(decoder).pid == first


@pytest.fixture
def silent() -> Iterator[str]:
    """A file that can be opened and never says anything: a pipe of this process."""
    ends = os.pipe()
    yield f"/proc/{os.getpid()}/fd/{ends[0]}"
    for end in ends:
        os.close(end)


def test_a_read_that_hangs_is_given_up_and_the_next_video_is_read(tmp_path, silent):
    good = make(tmp_path / "a.mp4", 8)
    with SafeDecoder(SPEC, timeout=3) as decoder:
        decoder(str(good))
        child = child_of(decoder)
        start = time.monotonic()
        with pytest.raises(
            VideoError, match="given up: nothing was read or decoded for 3 s"
        ) as caught:
            decoder(silent)
        assert caught.value.kind == "timeout"
        assert 2.9 < time.monotonic() - start < 6
        assert not child.is_running()
        assert decoder(str(good)).clips().shape == (6, 4, 32, 32, 3)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])  # a crash; what a full memory leads to
def test_a_dead_process_is_an_error_of_that_video_alone(tmp_path, name, silent):
    good = make(tmp_path / "a.mp4", 8)
    with SafeDecoder(SPEC, timeout=30) as decoder:
        decoder(str(good))
        pid = child_of(decoder).pid
        threading.Timer(0.5, os.kill, (pid, signal.Signals[name])).start()
        with pytest.raises(VideoError, match=rf"the decoding process died \({name}\)") as caught:
            decoder(silent)
        assert caught.value.kind == "killed"
        assert decoder(str(good)).clips().shape == (6, 4, 32, 32, 3)


def test_ctrl_c_is_the_parents_alone(tmp_path, silent):
    """A terminal sends it to every process: one that decodes goes on until it is ended."""
    good = make(tmp_path / "a.mp4", 8)
    with SafeDecoder(SPEC, timeout=60) as decoder:
        decoder(str(good))
        child = child_of(decoder)
        child.send_signal(signal.SIGINT)  # between videos
        assert decoder(str(good)).clips().shape == (6, 4, 32, 32, 3)
        for seconds, number in ((0.5, signal.SIGINT), (1.0, signal.SIGKILL)):
            threading.Timer(seconds, child.send_signal, (number,)).start()
        with pytest.raises(VideoError, match="SIGKILL"):
            decoder(silent)  # in the middle of one


def test_a_slow_but_living_read_is_waited_for(tmp_path):
    """The time limit is on silence, so a long video is not a hanging one."""
    path = make(tmp_path / "a.ts", 60)
    data = path.read_bytes()
    reading, writing = os.pipe()

    def drip() -> None:
        with os.fdopen(writing, "wb") as file:
            for start in range(0, len(data), len(data) // 8 + 1):
                file.write(data[start : start + len(data) // 8 + 1])
                file.flush()
                time.sleep(0.3)

    with SafeDecoder(SPEC, timeout=2.0) as decoder:
        decoder(str(path))
        writer = threading.Thread(target=drip)
        writer.start()
        start = time.monotonic()
        decoder(f"/proc/{os.getpid()}/fd/{reading}")
        writer.join()
        os.close(reading)
        assert time.monotonic() - start > 2.0


def test_no_process_is_left_when_the_parent_is_killed(silent):
    code = (
        "import sys; from sta.video.safe import SafeDecoder; from sta.video import ViewSpec\n"
        "SafeDecoder(ViewSpec(), timeout=600)(sys.argv[1])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code, silent], env=environment)
    try:
        deadline = time.monotonic() + 60
        children: list[psutil.Process] = []
        while not children and time.monotonic() < deadline:
            children = psutil.Process(parent.pid).children()
            time.sleep(0.1)
        time.sleep(1.5)  # let it reach the pipe
    finally:
        parent.kill()
        parent.wait()
    gone, alive = psutil.wait_procs(children, timeout=5)
    assert gone
    assert not alive


def test_modules_in_the_working_folder_are_not_imported(tmp_path):
    """Whoever works in a folder of strangers' files does not run them."""
    make(tmp_path / "a.mp4", 3)
    for name in ("json", "numpy", "av", "fsspec", "sta", "resource", "multiprocessing"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'a').close()\n")
    code = (
        "from sta.video.safe import SafeDecoder; from sta.video import ViewSpec\n"
        "with SafeDecoder(ViewSpec(size=32)) as decoder: print(decoder('a.mp4').clips().shape)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "(1, 16, 32, 32, 3)\n", done.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(ValueError, match=f"timeout={timeout}"):
        SafeDecoder(SPEC, timeout=timeout)


@pytest.mark.parametrize("kind", get_args(ErrorKind))
def test_an_error_keeps_its_kind_between_processes(kind):
    error = pickle.loads(pickle.dumps(VideoError("why", kind)))
    assert (str(error), error.kind) == ("why", kind)
