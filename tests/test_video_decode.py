"""Decoded frames carry their number, so each test reads which frames really came out."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import av
import fsspec
import numpy as np
import psutil
import pytest
from fsspec import AbstractFileSystem

import sta
from sta.video import VideoError, ViewSpec, decode, opening, protocol, read_views
from sta.video.containers import declared_size
from sta.video.encode import write_video
from sta.video.views import clip_indices
from video_files import make, number_of, numbered, pictures

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "videos" / "samples"
QUICK = {
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libx265": {"x265-params": "log-level=none"},
}


def shown(path: Path, spec: ViewSpec) -> list[list[int]]:
    """The numbers of the frames in each view."""
    return [[number_of(frame) for frame in clip] for clip in read_views(str(path), spec).clips()]


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "libx264"),
        ("a.mkv", "libx264"),
        ("a.ts", "libx264"),
        ("a.mov", "libx265"),
        ("a.webm", "libvpx-vp9"),
        ("b.webm", "libvpx"),
        ("a.avi", "mpeg4"),
        ("b.mp4", "mpeg4"),
        ("b.avi", "mjpeg"),
        ("a.mpg", "mpeg2video"),
        ("a.wmv", "wmv2"),
        ("a.flv", "flv"),
        ("a.gif", "gif"),
        ("a.h264", "libx264"),
    ],
)
@pytest.mark.parametrize("sampling", ["strided", "uniform"])
def test_the_wanted_frames_come_out_of_every_container(tmp_path, name, codec, sampling):
    path = make(tmp_path / name, 83, codec=codec, options=QUICK.get(codec, {}))
    spec = ViewSpec(frames=5, stride=3, size=72, temporal=3, spatial=1, sampling=sampling)
    assert shown(path, spec) == clip_indices(83, spec).tolist()


@pytest.mark.parametrize("gop", [1, 2, 7, 50])
@pytest.mark.parametrize("b_frames", [0, 3])
def test_seeking_is_exact_with_any_key_frames(tmp_path, gop, b_frames):
    options = {"g": str(gop), "bf": str(b_frames), "sc_threshold": "0"}
    path = make(tmp_path / "a.mp4", 200, options=options)
    spec = ViewSpec(frames=3, stride=2, size=72, temporal=4)
    assert shown(path, spec) == clip_indices(200, spec).tolist()


def test_open_gops_are_exact(tmp_path):
    options = {"x264-params": "open-gop=1:keyint=8:min-keyint=8:bframes=3:scenecut=0"}
    path = make(tmp_path / "a.mp4", 120, options=options)
    spec = ViewSpec(frames=4, stride=5, size=72, temporal=5)
    assert shown(path, spec) == clip_indices(120, spec).tolist()


def test_a_late_clip_is_reached_without_decoding_from_the_start(tmp_path, monkeypatch):
    path = make(tmp_path / "a.mp4", 400, options={"g": "10", "bf": "0"})
    decoded = []
    original = decode.decode_frames

    def counting(*args, **kwargs):
        for frame in original(*args, **kwargs):
            decoded.append(frame.pts)
            yield frame

    monkeypatch.setattr(decode, "decode_frames", counting)
    read_views(str(path), ViewSpec(frames=2, stride=1, size=72, temporal=3))
    assert len(decoded) <= 3 * 12


def test_variable_frame_rate_counts_frames_not_time(tmp_path):
    times = np.cumsum(np.random.default_rng(1).integers(5, 400, size=60)).tolist()
    path = make(tmp_path / "a.mp4", 60, times=times)
    spec = ViewSpec(frames=6, stride=2, size=72, temporal=3)
    assert shown(path, spec) == clip_indices(60, spec).tolist()


def test_an_index_that_the_decoder_contradicts_is_not_used(tmp_path, monkeypatch):
    path = make(tmp_path / "a.mkv", 40)
    scan = decode.scan

    def lying(video, heartbeat):
        index = scan(video, heartbeat)
        index.times = np.insert(index.times, 20, index.times[20] - 1)  # a frame that never comes
        return index

    monkeypatch.setattr(decode, "scan", lying)
    spec = ViewSpec(frames=40, stride=1, size=72)
    assert shown(path, spec) == clip_indices(40, spec).tolist()


def test_a_one_frame_video(tmp_path):
    for name in ("a.mp4", "a.avi", "a.gif"):
        codec = {"avi": "mpeg4", "gif": "gif"}.get(name[2:], "libx264")
        path = make(tmp_path / name, 1, codec=codec)
        assert shown(path, ViewSpec(size=72, temporal=2)) == [[0] * 16] * 2


@pytest.mark.parametrize(("height", "width"), [(50, 334), (334, 50), (72, 72), (98, 74)])
def test_odd_and_portrait_sizes(tmp_path, height, width):
    path = make(tmp_path / "a.mp4", 6, height, width)
    views = read_views(str(path), ViewSpec(frames=2, stride=1, size=64, spatial=3))
    assert views.clips().shape == (3, 2, 64, 64, 3)
    assert [number_of(clip[0]) for clip in views.clips()][1] == 2  # the centre crop


def test_three_crops_show_the_left_the_middle_and_the_right(tmp_path):
    picture = np.zeros((64, 192, 3), dtype=np.uint8)
    picture[:, :64, 0] = picture[:, 64:128, 1] = picture[:, 128:, 2] = 220
    path = write_video(tmp_path / "a.mp4", [picture] * 3)
    clips = read_views(str(path), ViewSpec(frames=1, stride=1, size=64, spatial=3)).clips()
    assert [int(clip[0, 32, 32].argmax()) for clip in clips] == [0, 1, 2]
    lying = write_video(tmp_path / "b.mp4", [np.ascontiguousarray(picture.transpose(1, 0, 2))] * 3)
    clips = read_views(str(lying), ViewSpec(frames=1, stride=1, size=64, spatial=3)).clips()
    assert [int(clip[0, 32, 32].argmax()) for clip in clips] == [0, 1, 2]


def test_pixels_are_the_decoders_resized(tmp_path):
    rng = np.random.default_rng(0)
    smooth = np.kron(rng.integers(0, 256, (6, 8, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    path = write_video(tmp_path / "a.mkv", [smooth] * 4, codec="ffv1")
    clips = read_views(str(path), ViewSpec(frames=1, stride=1, size=96)).clips()
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0)).to_ndarray(format="rgb24")
    np.testing.assert_array_equal(clips[0, 0], frame[:, 16:112])


def test_converting_colours_starts_no_threads():
    """Waking one for each core took longer than a frame's conversion, in every decoding process."""
    (frame,) = (
        av.VideoFrame.from_ndarray(p, "rgb24").reformat(format="yuv420p") for p in pictures(1)
    )
    canvas = decode.Canvas(ViewSpec(size=32), 1)
    before = psutil.Process().num_threads()
    canvas.put(0, frame)
    assert psutil.Process().num_threads() == before


def test_a_phone_video_is_turned_upright(tmp_path):
    path = make(tmp_path / "a.mp4", 4, 64, 96)
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40
    quarter = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 2**30)
    data[matrix : matrix + 36] = quarter  # "turn by 90 degrees clockwise to show"
    path.write_bytes(data)
    plain = make(tmp_path / "b.mp4", 4, 64, 96)
    spec = ViewSpec(frames=1, stride=1, size=64)
    turned, upright = (read_views(str(p), spec).clips()[0, 0] for p in (path, plain))
    np.testing.assert_array_equal(turned, np.rot90(upright, -1))


def test_a_long_video_keeps_memory_bounded(tmp_path, monkeypatch):
    """Counting keeps no more pictures than allowed, and the second pass finds the same frames."""
    path = make(tmp_path / "a.avi", 300, codec="mpeg4")
    spec = ViewSpec(frames=4, stride=9, size=72, temporal=3)
    expected = read_views(str(path), spec)
    monkeypatch.setattr(decode, "KEEP_BYTES", 5 * 72 * 96 * 2)
    again = read_views(str(path), spec)
    np.testing.assert_array_equal(again.frames, expected.frames)
    assert shown(path, spec) == clip_indices(300, spec).tolist()


def test_a_4k_frame(tmp_path):
    path = make(tmp_path / "a.mp4", 3, 2160, 3840, options={"preset": "ultrafast"})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert shown(path, ViewSpec(size=224)) == [[0] * 16]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024  # kB


def test_remote_file_systems(tmp_path):
    path = make(tmp_path / "a.avi", 30, codec="mpeg4")
    for name, source in (("a.avi", path), ("a.mp4", make(tmp_path / "a.mp4", 30))):
        with fsspec.open(f"memory://videos/{name}", "wb") as file:
            file.write(source.read_bytes())
        spec = ViewSpec(frames=4, stride=2, size=72)
        remote, local = read_views(f"memory://videos/{name}", spec), read_views(str(source), spec)
        np.testing.assert_array_equal(remote.frames, local.frames)
    with pytest.raises(VideoError, match="no such file"):
        read_views("memory://videos/none.mp4", spec)


class Unsteady(AbstractFileSystem):
    """Fails in the middle of a file ("broken"), or cannot seek ("stream")."""

    protocol = "unsteady"
    data = b""

    def _open(self, path: str, *args: object, **kwargs: object) -> io.BytesIO:
        return Broken(self.data) if "broken" in path else Stream(self.data)


class Broken(io.BytesIO):
    last = 0

    def read(self, count: int | None = -1) -> bytes:
        if self.tell() > self.last:
            raise RuntimeError("the server hung up")
        return super().read(2000)


class Stream(io.BytesIO):
    def seek(self, offset: int, whence: int = 0) -> int:
        raise ValueError("streams cannot seek")

    def seekable(self) -> bool:
        return False


@pytest.fixture
def unsteady(tmp_path, monkeypatch):
    fsspec.register_implementation("unsteady", Unsteady, clobber=True)
    path = make(tmp_path / "a.mkv", 60, options={"g": "5", "crf": "1"})
    monkeypatch.setattr(Unsteady, "data", path.read_bytes())
    return path


def test_seeking_before_the_start_raises_nothing_into_ffmpeg():
    """PyAV keeps what is raised there and raises it later, perhaps at another video."""
    source = opening.ByteSource(io.BytesIO(bytes(100)), ".mp4")
    assert source.seek(-5) < 0
    assert source.error is None
    assert source.read(10) == bytes(10)


@pytest.mark.parametrize("last", [-1, 1000, 3000])
def test_a_failing_server_is_not_called_a_damaged_file(unsteady, monkeypatch, last):
    monkeypatch.setattr(Broken, "last", last)
    with pytest.raises(VideoError, match=r"cannot be read.*the server hung up") as caught:
        read_views("unsteady://broken.mkv", ViewSpec(frames=60, stride=1, size=72))
    assert caught.value.kind == "unreadable"
    assert read_views(str(unsteady), ViewSpec(size=72)).clips().shape == (1, 16, 72, 72, 3)


def test_a_file_that_cannot_seek_is_read(unsteady):
    spec = ViewSpec(frames=60, stride=1, size=72)
    streamed = read_views("unsteady://stream.mkv", spec)
    np.testing.assert_array_equal(streamed.frames, read_views(str(unsteady), spec).frames)


def test_names_that_look_like_protocols(tmp_path):
    for name in ("take 2: http, ünï.mp4", "zip::a.mp4", "concat:a.mp4", "-", "data:,a.mp4"):
        path = make(tmp_path / "a.mp4", 3).rename(tmp_path / name)
        assert shown(path, ViewSpec(frames=3, stride=1, size=72)) == [[0, 1, 2]]


# What cannot be read


def error_of(path: Path, kind: str = "damaged") -> str:
    with pytest.raises(VideoError) as caught:
        read_views(str(path), protocol("k400"))
    assert caught.value.kind == kind
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4")]
)
@pytest.mark.parametrize("faststart", [False, True])
def test_a_truncated_file_is_an_error(tmp_path, name, codec, faststart):
    options = {"movflags": "faststart"} if faststart and name.endswith("mp4") else {}
    path = make(tmp_path / name, 60, codec=codec, container_options=options)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 7 // 10])
    assert error_of(path).startswith(("truncated", "not a video, or damaged"))


def test_a_matroska_of_unknown_length_is_not_called_truncated(tmp_path):
    path = make(tmp_path / "a.mkv", 20, container_options={"live": "1"})
    assert declared_size(path.read_bytes()[:64]) is None
    assert shown(path, ViewSpec(frames=20, stride=1, size=72)) == [list(range(20))]


def test_declared_sizes_are_the_files_own(tmp_path):
    for name, codec in (("a.avi", "mpeg4"), ("a.mkv", "libx264"), ("a.webm", "libvpx")):
        path = make(tmp_path / name, 10, codec=codec)
        assert declared_size(path.read_bytes()[:64]) == path.stat().st_size
    assert declared_size(b"") is None
    assert declared_size(b"\x1a\x45\xdf\xa3") is None


def test_everything_that_is_no_video_says_what_it_is(tmp_path):
    assert error_of(tmp_path / "none.mp4", "missing") == "there is no such file"
    assert "folder" in error_of(tmp_path, "unreadable")
    with pytest.raises(VideoError, match="folder") as caught:
        read_views(f"file://{tmp_path}", protocol("k400"))
    assert caught.value.kind == "unreadable"
    with pytest.raises(VideoError, match=r"cannot be read: .*nowhere") as caught:
        read_views("nowhere://a.mp4", protocol("k400"))
    assert caught.value.kind == "unreadable"
    empty = tmp_path / "empty.mp4"
    empty.touch()
    assert error_of(empty) == "the file is empty"
    text = tmp_path / "words.txt"
    text.write_text("a list of words\n" * 50)
    assert "not a video" in error_of(text, "refused")
    text.rename(tmp_path / "words.mp4")
    assert "not a video" in error_of(tmp_path / "words.mp4", "refused")


def test_a_picture_is_no_video(tmp_path):
    from PIL import Image

    for name in ("a.png", "a.jpg", "b.mp4"):
        Image.fromarray(numbered(1, 64, 64)).save(tmp_path / name, format="PNG")
        assert error_of(tmp_path / name, "refused") == "not a video: a picture"


def test_sound_alone_is_no_video(tmp_path):
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(16000))
    assert error_of(path, "refused") == "there is no video stream in it (audio only)"


READ_AS_NOBODY = """
import os, sys
from sta.video import ViewSpec, VideoError, read_views
if os.geteuid() == 0:
    os.setuid(65534)  # root may read everything
try:
    read_views(sys.argv[1], ViewSpec())
except VideoError as error:
    print(error.kind, error)
"""


def test_no_permission():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = make(Path(folder) / "a.mp4", 3)
        path.chmod(0)
        command = [sys.executable, "-c", READ_AS_NOBODY, path]
        environment = {**os.environ, "PYTHONPATH": str(Path(sta.__file__).parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.stdout.strip() == "unreadable permission to read it is denied"


def test_absurd_sizes_are_refused_before_memory_is_asked_for(tmp_path, monkeypatch):
    path = make(tmp_path / "a.mp4", 3)
    monkeypatch.setattr(decode, "MAX_PIXELS", 50 * 50)
    assert "damaged" in error_of(path)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample videos are not here")
def test_every_sample_is_read_also_the_one_with_foreign_metadata():
    files = sorted(SAMPLES.iterdir())
    assert len(files) == 10
    for path in files:
        views = read_views(str(path), ViewSpec(size=64))
        assert views.clips().shape == (1, 16, 64, 64, 3)
        assert views.frames.std() > 5


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample videos are not here")
@pytest.mark.parametrize("name", ["R6llTwEh07w.mp4", "basketball.mp4"])
def test_seeking_in_real_files_finds_the_same_frames_as_decoding_all(name, monkeypatch):
    spec = ViewSpec(frames=4, stride=7, size=64, temporal=4)
    sought = read_views(str(SAMPLES / name), spec)
    monkeypatch.setattr(decode, "_INDEXED_FORMATS", set())
    counted = read_views(str(SAMPLES / name), spec)
    np.testing.assert_array_equal(sought.frames, counted.frames)


def test_pictures_carry_their_numbers():
    assert [number_of(p[:, 12:84]) for p in pictures(300)] == list(range(300))
