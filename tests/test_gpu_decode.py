"""Decoding with torchcodec: against PyAV where it is installed, and with a stand-in everywhere."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import sta
from sta.video import VideoError, Views, ViewSpec, decode, gpu_decode, read_views, worker
from sta.video.encode import write_video
from sta.video.safe import SafeDecoder, SafeWindows
from sta.video.views import clip_indices
from sta.video.windows import WindowSpec, read_windows
from video_files import make, number_of, numbered

SPEC = ViewSpec(frames=5, stride=3, size=72, temporal=3)
WITH = replace(SPEC, decoder="torchcodec")
FRAMES = 83


# With torchcodec itself


@pytest.fixture(scope="module")
def real() -> None:
    try:
        gpu_decode.check_torchcodec()
    except ImportError as error:
        pytest.skip(str(error))


def coloured(height: int = 72, width: int = 96) -> list[NDArray[np.uint8]]:
    """Numbered pictures with patches of colour above and below."""
    colours = np.random.default_rng(0).integers(0, 256, (FRAMES, 2, width, 3), dtype=np.uint8)
    pictures = [numbered(number, height, width) for number in range(FRAMES)]
    for picture, (above, below) in zip(pictures, colours, strict=True):
        picture[: height // 4] = above
        picture[-height // 4 :] = below
    return pictures


def turned(path: Path, matrix: tuple[int, ...]) -> Path:
    """The same MP4, to be shown turned."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    data[at : at + 36] = struct.pack(">9i", *(65536 * n for n in matrix), 0, 0, 0, 2**30)
    path.write_bytes(data)
    return path


def cut_by_edit_list(path: Path) -> Path:
    """The same without its first ten frames, which are decoded and not shown."""
    whole = path.rename(path.with_name("whole.mp4"))
    with av.open(str(whole)) as source, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                ticks = int(10 / 25 / packet.time_base)
                packet.pts, packet.dts = packet.pts - ticks, packet.dts - ticks
                packet.stream = stream
                out.mux(packet)
    return path


TIMES = np.cumsum(np.random.default_rng(1).integers(5, 400, size=FRAMES)).tolist()
B_FRAMES = {"g": "12", "bf": "3"}
OPEN = {"x264-params": "open-gop=1:keyint=8:min-keyint=8:bframes=3:scenecut=0"}
AV1 = {"preset": "12"}
VP9 = {"deadline": "realtime", "cpu-used": "8"}
FILES: dict[str, Callable[[Path], Path]] = {
    "h264": lambda to: write_video(to / "a.mp4", coloured()),
    "b-frames": lambda to: write_video(to / "a.mp4", coloured(), options=B_FRAMES),
    "open-gop": lambda to: write_video(to / "a.mkv", coloured(), options=OPEN),
    "hevc": lambda to: write_video(
        to / "a.mov", coloured(), codec="libx265", options={"x265-params": "log-level=none"}
    ),
    "vp9": lambda to: write_video(to / "a.webm", coloured(98, 74), codec="libvpx-vp9", options=VP9),
    "av1": lambda to: write_video(to / "a.mkv", coloured(), codec="libsvtav1", options=AV1),
    "ffv1": lambda to: write_video(to / "a.mkv", coloured(), codec="ffv1"),
    "mjpeg": lambda to: write_video(to / "a.mov", coloured(), codec="mjpeg"),
    "rate": lambda to: write_video(to / "a.mp4", coloured(), times=TIMES),
    "edit-list": lambda to: cut_by_edit_list(
        write_video(to / "a.mp4", coloured(), options=B_FRAMES)
    ),
    "right": lambda to: turned(write_video(to / "a.mp4", coloured()), (0, 1, 0, -1, 0)),
    "left": lambda to: turned(write_video(to / "a.mp4", coloured()), (0, -1, 0, 1, 0)),
    "over": lambda to: turned(write_video(to / "a.mp4", coloured()), (-1, 0, 0, 0, -1)),
}


@pytest.mark.parametrize("name", FILES)
def test_the_frames_are_pyavs(real, tmp_path, name, monkeypatch):
    path = FILES[name](tmp_path)
    expected = read_views(str(path), SPEC)
    for wanted in ("_seek_and_take", "_count_and_take"):  # only torchcodec decodes
        monkeypatch.setattr(decode, wanted, None)
    monkeypatch.setattr(gpu_decode, "CHUNK_BYTES", 100_000)  # a few frames at a time
    found = read_views(str(path), WITH)
    np.testing.assert_array_equal(found.index, expected.index)
    np.testing.assert_array_equal(found.offsets, expected.offsets)
    apart = np.abs(found.frames.astype(int) - expected.frames)
    assert apart.max() <= 4  # of 255; the same on the machine where this was made
    if name not in ("edit-list", "right", "left", "over"):
        numbers = [[number_of(frame) for frame in clip] for clip in found.clips()]
        assert numbers == clip_indices(FRAMES, SPEC).tolist()


def test_colours_that_the_two_convert_differently(real, tmp_path):
    """What docs/performance.md says of 10 bits and of interlaced video."""
    ten = tmp_path / "a.mkv"
    with av.open(str(ten), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.height, stream.width, stream.pix_fmt = 72, 96, "yuv420p10le"
        for picture in coloured():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    fields = {"x264-params": "tff=1"}
    for path in (ten, write_video(tmp_path / "a.mp4", coloured(), options=fields)):
        expected, found = (read_views(str(path), spec) for spec in (SPEC, WITH))
        apart = np.abs(found.frames.astype(int) - expected.frames)
        assert 0 < apart.mean() < 12, path  # of noise in all colours; real ones are closer
        numbers = [[number_of(frame) for frame in clip] for clip in found.clips()]
        assert numbers == clip_indices(FRAMES, SPEC).tolist()


def test_windows_are_pyavs(real, tmp_path):
    path = write_video(tmp_path / "a.mp4", coloured(), options=B_FRAMES)
    windows = WindowSpec(SPEC, every=0.4)
    pairs = list(
        zip(
            read_windows(str(path), windows),
            SafeWindows(replace(windows, view=WITH))(str(path)),
            strict=True,
        )
    )
    assert len(pairs) == 8
    for one, other in pairs:
        assert (one.start, one.end) == (other.start, other.end)
        assert np.abs(one.clip.astype(int) - other.clip).max() <= 4


def test_it_fits_the_decoding_process(real, tmp_path):
    files = [make(tmp_path / "a.mp4", 3, 2160, 3840, options={"preset": "ultrafast"})]
    files += [make(tmp_path / "b.mp4", 30), make(tmp_path / "c.avi", 30, codec="mpeg4")]
    with SafeDecoder(WITH) as decoder:
        for path in files:
            found = decoder(str(path))
            np.testing.assert_allclose(found.frames, read_views(str(path), SPEC).frames, atol=4)


def test_frames_that_change_their_size_are_pyavs(real, tmp_path):
    encoded = b"".join(make(tmp_path / f"{n}.h264", 20, *n).read_bytes() for n in SIZES)
    (tmp_path / "a.h264").write_bytes(encoded)
    with av.open(str(tmp_path / "a.h264")) as source, av.open(str(tmp_path / "a.mkv"), "w") as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                packet.stream = stream
                packet.pts = packet.dts = round(number / 25 / packet.time_base)
                out.mux(packet)
    spec = ViewSpec(frames=8, stride=1, size=32, sampling="uniform")
    found = read_views(str(tmp_path / "a.mkv"), replace(spec, decoder="torchcodec"))
    np.testing.assert_array_equal(found.frames, read_views(str(tmp_path / "a.mkv"), spec).frames)


SIZES = ((64, 96), (128, 192))


# With a stand-in for it


@pytest.fixture
def stand_in(monkeypatch) -> Callable[[str], None]:
    """Put `fake_torchcodec` in its place, here and in the decoding processes; gives its faults."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fake_torchcodec"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchcodec"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("torchcodec.decoders")
    for name in ("torchcodec", "torchcodec.decoders"):  # gone afterwards
        monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))
    return lambda fault: monkeypatch.setenv("FAKE_TORCHCODEC", fault)


def by_torchcodec(views: Views) -> bool:
    return bool((views.frames[:, :4, :4] > 200).all())


def test_it_decodes_what_has_an_index_and_pyav_the_rest(stand_in, tmp_path):
    spec = replace(WITH, short_side=72)
    indexed = make(tmp_path / "a.mp4", FRAMES, 72, 72)
    assert by_torchcodec(read_views(str(indexed), spec))
    with SafeDecoder(spec) as decoder:
        assert by_torchcodec(decoder(str(indexed)))
    other = make(tmp_path / "a.avi", FRAMES, 72, 72, codec="mpeg4")
    assert not by_torchcodec(read_views(str(other), spec))


@pytest.mark.parametrize("fault", ["fails", "other frames"])
def test_what_it_does_not_give_as_it_should_is_pyavs(stand_in, tmp_path, fault):
    stand_in(fault)
    path = str(make(tmp_path / "a.mp4", FRAMES))
    np.testing.assert_array_equal(read_views(path, WITH).frames, read_views(path, SPEC).frames)
    windows = WindowSpec(SPEC, every=0.4)
    found = list(read_windows(path, replace(windows, view=WITH)))
    assert [w.start for w in found] == [w.start for w in read_windows(path, windows)]


def test_windows_that_were_given_are_not_given_again(stand_in, tmp_path, monkeypatch):
    path = str(make(tmp_path / "a.mp4", FRAMES))
    get = sys.modules["torchcodec.decoders"].VideoDecoder.get_frames_at

    def failing(self, indices):
        if indices[0] > 40:
            raise RuntimeError("no more")
        return get(self, indices)

    monkeypatch.setattr(sys.modules["torchcodec.decoders"].VideoDecoder, "get_frames_at", failing)
    monkeypatch.setattr(gpu_decode, "CHUNK_BYTES", 10 * 72 * 96 * 3)
    windows = read_windows(path, WindowSpec(WITH, every=0.4))
    next(windows)
    with pytest.raises(VideoError, match="torchcodec fails after 50 frames"):
        list(windows)


def test_the_file_is_checked_before(stand_in, tmp_path):
    path = make(tmp_path / "a.mp4", 60, container_options={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(VideoError, match="truncated"):
        read_views(str(path), WITH)
    path.write_text("#EXTM3U\nhttp://127.0.0.1/a.ts\n")
    with pytest.raises(VideoError, match="playlist") as caught:
        read_views(str(path), WITH)
    assert caught.value.kind == "refused"


def test_a_gpu_that_gives_up_costs_one_process(stand_in, tmp_path, capfd):
    stand_in("gpu")
    with SafeDecoder(WITH) as decoder, pytest.raises(VideoError, match="exit code 1") as caught:
        decoder(str(make(tmp_path / "a.mp4", FRAMES)))
    assert caught.value.kind == "killed"  # and so tried again, alone
    assert "decoding on the GPU ended: CUDA out of memory\n" in capfd.readouterr().err


class Sink:
    def send(self, message: object) -> None:
        assert message is None


@pytest.mark.parametrize(("device", "limit"), [("cuda", None), ("cpu", 8 * 2**30)])
def test_only_cuda_lifts_the_limit_of_memory(monkeypatch, device, limit):
    monkeypatch.setattr(worker, "import_torchcodec", lambda: device)
    assert worker._start_torchcodec(Sink()) == limit  # type: ignore[arg-type]


@pytest.mark.parametrize("there", [True, False])
def test_it_decodes_on_a_gpu_if_there_is_one(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert gpu_decode.device() == ("cuda" if there else "cpu")


def test_without_torchcodec_it_is_refused_before_any_video(monkeypatch, refused, tmp_path):
    for name in ("torchcodec", "torchcodec.decoders"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "class").mkdir()
    make(tmp_path / "class" / "a.mp4", 3)
    for command in ("predict", "eval", "features"):
        said = refused(command, tmp_path, "--decoder", "torchcodec")
        assert "pip install torchcodec" in said
        assert "FFmpeg's shared libraries" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("fault", "reason"), [("libraries", "Could not load libtorchcodec"), ("old", "rotation")]
)
def test_a_torchcodec_that_does_not_work_is_refused(stand_in, fault, reason):
    stand_in(fault)
    with pytest.raises(ImportError, match=rf"pip install torchcodec.*{reason}"):
        sta.predict("none.mp4", decoder="torchcodec")


def test_other_decoders_and_ray_are_refused(stand_in, refused):
    with pytest.raises(ValueError, match="decoder='vlc' is unknown: use one of pyav, torchcodec"):
        sta.predict("none.mp4", decoder="vlc")  # type: ignore[arg-type]
    said = refused("predict", "none.mp4", "--decoder", "torchcodec", "--engine", "ray")
    assert "--decoder torchcodec is for --engine local" in said


def test_rows_say_what_decoded_them(stand_in, folder, tmp_path):
    make(tmp_path / "a.mp4", 40)
    out = tmp_path / "rows.jsonl"
    how = {"model": folder, "out": out, "progress": False, "runtime": "torch"}
    assert sta.predict(tmp_path, decoder="torchcodec", **how).failures == []
    assert sta.predict(tmp_path, decoder="torchcodec", resume=True, **how).done == 1
    with pytest.raises(ValueError, match="cannot be resumed with views"):
        sta.predict(tmp_path, resume=True, **how)
