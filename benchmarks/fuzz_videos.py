"""Thousands of damaged and hostile files: a result for each, no crash, nothing fetched or read.

    python benchmarks/fuzz_videos.py [--files 10000] [--seed 0] [--timeout 20] [--json FILE]

Small videos of several containers are cut off, altered and mixed. Playlists, concat scripts and
stream descriptions, which name addresses and files, are altered, hidden in videos and named like
videos. All go through the decoding processes, by path and by ``file://``. Meanwhile a `Watch`
listens on the network addresses that the files name and watches the files that they name.

Prints what became of the files. The exit code is 1 if the watch noticed anything or a file has no
result.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sta.video import VideoError, Views, ViewSpec
from sta.video.encode import write_video
from sta.video.safe import SafeDecoder

#: File name, encoder, its options, the container's options.
VIDEOS: tuple[tuple[str, str, dict[str, str], dict[str, str]], ...] = (
    ("h264.mp4", "libx264", {}, {}),
    ("faststart.mp4", "libx264", {}, {"movflags": "faststart"}),
    ("h264.mkv", "libx264", {}, {}),
    ("h264.ts", "libx264", {}, {}),
    ("hevc.mov", "libx265", {"x265-params": "log-level=none"}, {}),
    ("mpeg4.avi", "mpeg4", {}, {}),
    ("mpeg4.mp4", "mpeg4", {}, {}),
    ("mjpeg.avi", "mjpeg", {}, {}),
    ("vp9.webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}, {}),
    ("mpeg2.mpg", "mpeg2video", {}, {}),
    ("flv1.flv", "flv", {}, {}),
    ("wmv2.wmv", "wmv2", {}, {}),
    ("frames.gif", "gif", {}, {}),
)
SPEC = ViewSpec(frames=8, stride=2, size=32, temporal=2, spatial=3)
MAGENTA = (220, 30, 220)  # of the watched video; no other video here is of one colour

# Files that name others. {http} and {udp} are watched addresses, {port} a watched UDP port,
# {video} and {key} watched files.
TEXTS: dict[str, str] = {
    "segments.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{http}/a.ts\n"
    "#EXTINF:9,\n{video}\n#EXT-X-ENDLIST\n",
    "files.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{video}\n#EXTINF:9,\n"
    "concat:{video}|{video}\n#EXTINF:9,\nsubfile,,start,0,end,0,,:{video}\n#EXT-X-ENDLIST\n",
    "key.m3u8": '#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXT-X-KEY:METHOD=AES-128,URI="{http}/key"\n'
    "#EXTINF:9,\n{video}\n#EXT-X-ENDLIST\n",
    "local-key.m3u8": '#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXT-X-KEY:METHOD=AES-128,URI="{key}"\n'
    "#EXTINF:9,\ndata:video/mp2t;base64,R0ARAABC\n#EXT-X-ENDLIST\n",
    "master.m3u8": "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=9\n{http}/low.m3u8\n",
    "plain.m3u": "{video}\n{http}/a.mp4\n{udp}\n",
    "list.pls": "[playlist]\nNumberOfEntries=2\nFile1={http}/a.mp4\nFile2={video}\n",
    "list.asx": '<asx version="3.0"><entry><ref href="{http}/a.wmv"/></entry></asx>\n',
    "list.xspf": '<?xml version="1.0"?><playlist><trackList><track><location>{http}/a.mp4'
    "</location></track></trackList></playlist>\n",
    "script.ffconcat": "ffconcat version 1.0\nfile {video}\nfile {http}/a.mp4\n",
    "script.txt": "file '{video}'\nfile '{http}/a.mp4'\n",
    "stream.sdp": "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=a\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
    "m=video {port} RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n",
    "manifest.mpd": '<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" '
    'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011" type="static" '
    'mediaPresentationDuration="PT9S"><Period><AdaptationSet mimeType="video/mp4">'
    '<Representation id="1" bandwidth="9" width="64" height="48"><BaseURL>{http}/a.mp4</BaseURL>'
    '<SegmentBase indexRange="0-99"/></Representation></AdaptationSet></Period></MPD>\n',
    "source.avs": 'FFmpegSource2("{video}")\n# a script that AviSynth would run\n',
    "source.vpy": 'import urllib.request\nurllib.request.urlopen("{http}/a")\n',
}


# The watch


class Watch:
    """Notices connections to its addresses, use of its UDP port and reading of its files.

    Args:
        folder: Where the watched files are made.
    """

    def __init__(self, folder: Path) -> None:
        self.noticed: list[str] = []
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._port = _free_port()
        self.video = write_video(folder / "watched.ts", [_picture(MAGENTA)] * 24)
        self.key = folder / "watched.key"
        self.key.write_bytes(bytes(16))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def names(self) -> dict[str, object]:
        """What the files of `TEXTS` name."""
        return {
            "http": f"http://127.0.0.1:{self._tcp.getsockname()[1]}",
            "udp": f"udp://127.0.0.1:{self._udp.getsockname()[1]}",
            "port": self._port,
            "video": self.video,
            "key": self.key,
        }

    def text(self, name: str) -> bytes:
        """One of `TEXTS`, with what is watched in it."""
        return TEXTS[name].format(**self.names()).encode()

    def check(self, views: Views) -> None:
        """Notice frames of the watched video."""
        if np.abs(views.frames.mean(axis=(0, 1, 2)) - MAGENTA).max() < 40:
            self.noticed.append("frames of the watched video")

    def __enter__(self) -> Watch:
        for path in (self.video, self.key):
            state = path.stat()
            long_ago = state.st_mtime - 10**6  # file systems note a reading if the last is old
            os.utime(path, (long_ago, state.st_mtime))
        self._before = [path.stat().st_atime_ns for path in (self.video, self.key)]
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        time.sleep(0.2)  # what is under way arrives
        self._stop.set()
        self._thread.join()
        self._tcp.close()
        self._udp.close()
        for path, before in zip((self.video, self.key), self._before, strict=True):
            if path.stat().st_atime_ns != before:
                self.noticed.append(f"{path.name} was read")

    def _listen(self) -> None:
        while not self._stop.is_set():
            ready, _, _ = select.select([self._tcp, self._udp], [], [], 0.05)
            if self._tcp in ready:
                connection, _ = self._tcp.accept()
                connection.close()
                self.noticed.append("a TCP connection")
            if self._udp in ready:
                self._udp.recv(2048)
                self.noticed.append("a UDP packet")
            if self._port in _open_udp_ports():
                self.noticed.append("a UDP port was opened")


def _free_port() -> int:
    """An even one, as RTP wants it."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port % 2 == 0:
            return port


def _open_udp_ports() -> set[int]:
    """Of this machine; none where the system does not tell."""
    ports = set()
    for table in (Path("/proc/net/udp"), Path("/proc/net/udp6")):
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                ports.add(int(line.split()[1].rpartition(":")[2], 16))
    return ports


# The files


def _picture(colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    return np.full((48, 64, 3), colour, dtype=np.uint8)


def originals(folder: Path, seed: int = 0) -> list[Path]:
    """A small moving picture in every container and codec."""
    rng = np.random.default_rng(seed)
    texture = rng.integers(0, 256, (12, 16, 3)).repeat(4, axis=0).repeat(4, axis=1)
    pictures = [np.roll(texture, 3 * i, axis=1).astype(np.uint8) for i in range(24)]
    return [
        write_video(folder / name, pictures, codec=codec, options=options, container_options=muxer)
        for name, codec, options, muxer in VIDEOS
    ]


def external_track(movie: bytes, target: Path) -> bytes:
    """A QuickTime file, its index at the end, whose video track is said to be in another file."""
    path = str(target).encode()
    alias = bytes(10) + b"\x01a".ljust(28, b"\0") + bytes(12) + b"\x01b".ljust(64, b"\0")
    alias += bytes(16) + b"\0\1\0\1" + bytes(16)
    alias += b"\0\2" + len(path).to_bytes(2, "big") + path + bytes(len(path) % 2)
    alias += b"\xff\xff\0\0"
    entry = b"alis" + bytes(4) + alias
    entry = (len(entry) + 4).to_bytes(4, "big") + entry
    at = movie.index(b"dref") + 12  # the name, its version, the number of entries
    old = int.from_bytes(movie[at : at + 4], "big")
    changed = bytearray(movie)
    changed[at : at + old] = entry
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        start = movie.index(box) - 4
        size = int.from_bytes(movie[start : start + 4], "big") + len(entry) - old
        changed[start : start + 4] = size.to_bytes(4, "big")
    return bytes(changed)


@dataclass
class Case:
    """A file to try: its name, its bytes, and what was done to it."""

    name: str
    data: bytes
    change: str


class Cases:
    """Draws damaged and hostile files.

    Args:
        folder: Where the undamaged videos are made.
        watch: What hostile files name.
        seed: Of the drawing.
    """

    def __init__(self, folder: Path, watch: Watch, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.videos = [(path.name, path.read_bytes()) for path in originals(folder, seed)]
        self.texts = [(name, watch.text(name)) for name in TEXTS]
        self.watch = watch
        self.changes: dict[str, Callable[[], tuple[str, bytes]]] = {
            "truncated": self._truncated,
            "flipped bytes": self._flipped,
            "zeroed blocks": self._zeroed,
            "header of another video": self._swapped,
            "external track": self._external,
            "playlist": self._text,
            "playlist named as video": self._renamed,
            "altered playlist": self._altered,
            "playlist in a video": self._hidden,
        }

    def draw(self, count: int) -> Iterator[Case]:
        """`count` files, each kind of change in turn."""
        changes = list(self.changes.items())
        for number in range(count):
            change, make = changes[number % len(changes)]
            name, data = make()
            yield Case(f"{number:06d} {name}", data, change)

    def _video(self) -> tuple[str, bytes]:
        return self.videos[self.rng.integers(len(self.videos))]

    def _truncated(self) -> tuple[str, bytes]:
        name, data = self._video()
        return name, data[: self.rng.integers(len(data))]

    def _flipped(self) -> tuple[str, bytes]:
        name, data = self._video()
        broken = np.frombuffer(data, np.uint8).copy()
        places = self.rng.integers(0, len(data), size=int(2 ** self.rng.uniform(0, 8)))
        broken[places] ^= self.rng.integers(1, 256, size=len(places), dtype=np.uint8)
        return name, broken.tobytes()

    def _zeroed(self) -> tuple[str, bytes]:
        name, data = self._video()
        broken = bytearray(data)
        for _ in range(self.rng.integers(1, 4)):
            start = int(self.rng.integers(len(data)))
            end = min(len(data), start + int(2 ** self.rng.uniform(4, 11)))
            broken[start:end] = bytes(end - start)
        return name, bytes(broken)

    def _swapped(self) -> tuple[str, bytes]:
        name, data = self._video()
        _, other = self._video()
        length = int(2 ** self.rng.uniform(2, 10))
        return name, other[:length] + data[length:]

    def _external(self) -> tuple[str, bytes]:
        movie = dict(self.videos)["hevc.mov"]
        target = (self.watch.video, self.watch.key)[self.rng.integers(2)]
        return "external.mov", external_track(movie, target)

    def _text(self) -> tuple[str, bytes]:
        return self.texts[self.rng.integers(len(self.texts))]

    def _renamed(self) -> tuple[str, bytes]:
        return self._video()[0], self._text()[1]

    def _altered(self) -> tuple[str, bytes]:
        name, data = self._text()
        tag = b"ID3\4\0\0\0\0\0\x0a" + bytes(10)  # FFmpeg skips these
        prefix = (b"", b"\xef\xbb\xbf", b"\n \t", b"\0", tag, tag + tag)[self.rng.integers(6)]
        broken = np.frombuffer(data, np.uint8).copy()
        places = self.rng.integers(0, len(data), size=self.rng.integers(0, 4))
        broken[places] = self.rng.integers(0, 256, size=len(places), dtype=np.uint8)
        if self.rng.random() < 0.5:
            name = self._video()[0]
        return name, prefix + broken.tobytes()

    def _hidden(self) -> tuple[str, bytes]:
        name, data = self._video()
        other, text = self._text()
        at = int(self.rng.choice([0, 4, 8, self.rng.integers(len(data)), len(data)]))
        if self.rng.random() < 0.3:
            name = other
        return name, data[:at] + text + data[at:]


# The run


def try_files(cases: Iterator[Case], folder: Path, watch: Watch, timeout: float) -> list[str]:
    """The outcome of each file: "read" or the kind of its error."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        local = threading.local()

        def outcome(numbered: tuple[int, Case]) -> str:
            number, case = numbered
            if not hasattr(local, "decoder"):
                local.decoder = stack.enter_context(SafeDecoder(SPEC, timeout))
            path = folder / case.name
            path.write_bytes(case.data)
            try:
                watch.check(local.decoder(f"file://{path}" if number % 2 else str(path)))
                return "read"
            except VideoError as error:
                return error.kind
            finally:
                path.unlink()

        return list(pool.map(outcome, enumerate(cases)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as inside, tempfile.TemporaryDirectory() as outside:
        watch = Watch(Path(outside))
        cases = list(Cases(Path(inside), watch, options.seed).draw(options.files))
        with watch:
            outcomes = try_files(iter(cases), Path(inside), watch, options.timeout)
    seconds = time.monotonic() - start
    counts = Counter(zip((case.change for case in cases), outcomes, strict=True))
    changes = list(dict.fromkeys(case.change for case in cases))
    kinds = ("read", "refused", "damaged", "unreadable", "missing", "timeout", "killed")
    table = Table("change", *kinds, box=None, padding=(0, 1, 0, 0))
    for change in changes:
        table.add_row(change, *(str(counts[change, kind]) for kind in kinds))
    console = Console()
    console.print(table)
    console.print(f"{len(cases)} files, {len(outcomes)} results, {seconds:.0f} s")
    noticed = Counter(watch.noticed)
    console.print(f"noticed by the watch: {dict(noticed) or 'nothing'}", markup=False)
    if options.json:
        report = {change: {kind: counts[change, kind] for kind in kinds} for change in changes}
        options.json.write_text(
            json.dumps({"files": len(cases), "noticed": noticed, "changes": report}, indent=1)
        )
    sys.exit(1 if noticed or len(outcomes) != len(cases) else 0)


if __name__ == "__main__":
    main()
