"""Files that name other files or addresses are refused; FFmpeg opens nothing for them."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import av
import fsspec
import pytest

import sta
from sta.video import VideoError, Views, ViewSpec, opening, read_views
from sta.video.containers import FORMATS, not_a_video
from sta.video.safe import SafeDecoder
from video_files import make

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from fuzz_videos import TEXTS, Watch, external_track

SPEC = ViewSpec(frames=2, stride=1, size=32)
HLS = "a playlist (HLS), which names other files; give the video itself"
DASH = "a playlist (DASH), which names other files; give the video itself"
CONCAT = "a playlist (FFmpeg's concat script), which names other files; give the video itself"
OTHER = "a playlist, which names other files; give the video itself"
SDP = "a stream description (SDP), which names network addresses; give the video itself"
SCRIPT = "a script that makes a video; run it yourself and give its result"
TEXT = "not a video: a text file"

#: The message under its own ending, and under another's.
MESSAGES = {
    **dict.fromkeys(
        ("segments.m3u8", "files.m3u8", "key.m3u8", "local-key.m3u8", "master.m3u8"), (HLS, HLS)
    ),
    "plain.m3u": (HLS, TEXT),
    **dict.fromkeys(("list.pls", "list.asx", "list.xspf"), (OTHER, OTHER)),
    **dict.fromkeys(("script.ffconcat", "script.txt"), (CONCAT, CONCAT)),
    "stream.sdp": (SDP, SDP),
    "manifest.mpd": (DASH, DASH),
    **dict.fromkeys(("source.avs", "source.vpy"), (SCRIPT, TEXT)),
}
Reader = Callable[[Path], Views]


def by_path(path: Path) -> Views:
    return read_views(str(path), SPEC)


def by_file_address(path: Path) -> Views:
    return read_views(f"file://{path}", SPEC)


def by_memory(path: Path) -> Views:
    with fsspec.open(f"memory://playlists/{path.name}", "wb") as file:
        file.write(path.read_bytes())
    return read_views(f"memory://playlists/{path.name}", SPEC)


def by_cache(path: Path) -> Views:
    return read_views(f"simplecache::file://{path}", SPEC)


def in_other_process(path: Path) -> Views:
    with SafeDecoder(SPEC, timeout=60) as decoder:
        decoder(str(path.parent / "good.mp4"))
        with pytest.raises(VideoError) as first:
            decoder(f"file://{path}")
        with pytest.raises(VideoError) as second:
            decoder(str(path))
    assert (str(first.value), first.value.kind) == (str(second.value), second.value.kind)
    raise second.value


READERS = [by_path, by_file_address, by_memory, by_cache]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", TEXTS)
def test_refused_by_name_whatever_its_ending(tmp_path, name, read: Reader):
    with Watch(tmp_path) as watch:
        for path, message in zip(
            (tmp_path / name, tmp_path / f"{name}.mp4"), MESSAGES[name], strict=True
        ):
            path.write_bytes(watch.text(name))
            with pytest.raises(VideoError) as caught:
                read(path)
            assert (str(caught.value), caught.value.kind) == (message, "refused")
    assert not watch.noticed


@pytest.mark.parametrize("name", ["key.m3u8", "stream.sdp", "manifest.mpd", "script.ffconcat"])
def test_refused_in_the_decoding_process(tmp_path, name):
    make(tmp_path / "good.mp4", 3)
    with Watch(tmp_path) as watch:
        path = tmp_path / f"{name}.mp4"
        path.write_bytes(watch.text(name))
        with pytest.raises(VideoError) as caught:
            in_other_process(path)
        assert (str(caught.value), caught.value.kind) == (MESSAGES[name][1], "refused")
    assert not watch.noticed


@pytest.mark.parametrize("barrier", ["formats", "protocols"])
@pytest.mark.parametrize("read", READERS)
def test_nothing_is_opened_even_if_the_text_is_not_recognised(
    tmp_path, monkeypatch, read: Reader, barrier
):
    """The formats that FFmpeg may use stop it alone, and so does the lack of protocols."""
    monkeypatch.setattr(opening, "not_a_video", lambda head, ending: None)
    if barrier == "formats":
        monkeypatch.delitem(opening._OPTIONS, "protocol_whitelist")
        monkeypatch.setattr(opening.ByteSource, "refuse", None)
    else:
        monkeypatch.delitem(opening._OPTIONS, "format_whitelist")
    tag = b"ID3\4\0\0\0\0\0\x0a" + bytes(10)
    with Watch(tmp_path) as watch:
        for name in TEXTS:
            for prefix in (b"", tag, b"\n"):
                for ending in ("", ".mp4"):
                    path = tmp_path / f"{len(prefix)} {name}{ending}"
                    path.write_bytes(prefix + watch.text(name))
                    with pytest.raises(VideoError):
                        read(path)
    assert not watch.noticed


def test_the_watch_notices_what_ffmpeg_does_when_it_is_let(tmp_path):
    """Without this, the tests above would prove nothing."""
    found = {}
    for name in ("segments.m3u8", "key.m3u8", "script.ffconcat", "stream.sdp"):
        folder = tmp_path / name
        folder.mkdir()
        with Watch(folder) as watch:
            file = io.BytesIO(watch.text(name))
            file.name = name  # type: ignore[misc]
            let = {"safe": "0", "protocol_whitelist": "file,http,tcp,udp,rtp,crypto,data"}
            with (
                suppress(av.FFmpegError),
                av.open(file, timeout=0.5, container_options=let) as container,
            ):
                assert len(list(container.decode(video=0))) == 24  # of the watched video
        found[name] = set(watch.noticed)
    assert "a TCP connection" in found["segments.m3u8"]
    assert "a TCP connection" in found["key.m3u8"]
    assert "a TCP connection" in found["script.ffconcat"]
    if Path("/proc/net/udp").exists():
        assert "a UDP port was opened" in found["stream.sdp"]


def test_an_external_track_is_not_opened(tmp_path):
    movie = make(tmp_path / "a.mov", 3).read_bytes()
    with Watch(tmp_path) as watch:
        path = tmp_path / "external.mov"
        path.write_bytes(external_track(movie, watch.video))
        for read in READERS:
            with suppress(VideoError):
                watch.check(read(path))
    assert not watch.noticed


def test_patterns_and_devices_are_refused(tmp_path):
    make(tmp_path / "picture001.mp4", 1)
    for name, words in (("picture%03d.mp4", "a pattern of pictures"), ("/dev/null", "a device")):
        with pytest.raises(VideoError, match=words) as caught:
            by_path(tmp_path / name)
        assert caught.value.kind == "refused"


def test_a_video_whose_name_is_a_pattern_is_read(tmp_path):
    path = make(tmp_path / "a.mp4", 3).rename(tmp_path / "100%d.mp4")
    for read in READERS:
        assert read(path).clips().shape == (1, 2, 32, 32, 3)


def test_a_real_video_is_read_under_the_ending_of_a_playlist(tmp_path):
    path = make(tmp_path / "a.mp4", 3).rename(tmp_path / "a.m3u8")
    for read in READERS:
        assert read(path).clips().shape == (1, 2, 32, 32, 3)


def test_the_allowed_formats_are_ffmpegs_and_none_opens_others():
    for name in FORMATS:
        assert name in av.formats_available
    opens_others = {"hls", "dash", "concat", "sdp", "rtsp", "rtp", "sap", "image2", "lavfi", "imf"}
    opens_others |= {"vobsub", "mlv", "webm_dash_manifest", "tty", "alsa", "fbdev", "v4l2"}
    assert not opens_others & set(FORMATS)


def test_the_start_of_a_video_is_not_taken_for_text(tmp_path):
    for name, codec in (("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4")):
        head = make(tmp_path / name, 3, codec=codec).read_bytes()[:4096]
        for length in range(1, 64):
            assert not_a_video(head[:length], ".mp4") is None
    assert not_a_video(b"YUV4MPEG2 W64 H48 F25:1 Ip A1:1 C420\nFRAME\n" + b"A" * 4000) is None


@pytest.mark.parametrize("text", ["# ", "#\n", "<", "<a ", "c=", "\n", "file", "ID3", "v=0 c=IN"])
def test_no_text_takes_long_to_recognise(text):
    head = (text * 4096).encode()[:4096]
    start = time.process_time()
    not_a_video(head, ".mp4")
    assert time.process_time() - start < 1  # exponential in 4096 if the patterns were careless


def test_ffmpeg_opens_files_in_one_place():
    package = Path(sta.__file__).parent
    users = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "av.open(" in path.read_text(encoding="utf-8")
    }
    assert users == {"video/opening.py", "video/encode.py"}  # to read, to write


def test_standard_input_is_for_watching():
    with pytest.raises(VideoError, match="see sta watch") as refused:
        read_views("-", SPEC)
    assert refused.value.kind == "refused"
