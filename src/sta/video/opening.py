"""Opening a video: the one place where a file meets FFmpeg.

FFmpeg gets a stream of bytes and nothing else, whether the file is local, remote or in memory:

* Python reads the file; FFmpeg learns neither its path nor its address.
* Only demuxers of `containers.FORMATS` may take it. FFmpeg checks that after guessing the format
  and before the demuxer reads.
* No protocol is allowed (`protocol_whitelist`), and a demuxer that asks for another file, as
  playlists and external tracks do, gets nothing (`io_open`).

The second and the third each keep FFmpeg from opening anything by themselves. Recognising playlists
by their first bytes, which comes before, is for a clear error.

There are two exceptions. `open_live`, for `sta watch` alone: a camera or an RTSP address has no
bytes to hand over. And `sta.video.gpu_decode`, where it is asked for: torchcodec's own FFmpeg gets
the bytes of a file that was opened here, but knows neither the second nor the third point.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import av
from av.container import InputContainer

from sta.video.containers import FORMATS, HEAD_BYTES, is_picture, not_a_video
from sta.video.errors import VideoError

#: Demuxer and options of live sources. RTSP's media come over the connection to the server.
_LIVE = {
    "camera": ("v4l2", {"protocol_whitelist": "file"}),
    "rtsp": (
        "rtsp",
        {
            "rtsp_transport": "tcp",
            "protocol_whitelist": "rtsp,rtsps,rtp,tcp,tls",
            "timeout": "10000000",  # microseconds
        },
    ),
}
_OPTIONS = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": ""}


@dataclass
class OpenVideo:
    """A file that FFmpeg has opened."""

    container: InputContainer  # PyAV's container
    head: bytes  # the first bytes of the file
    size: int  # in bytes; 0 if unknown
    source: ByteSource  # what FFmpeg reads
    seekable: bool  # whether any part of it can be read at any time; a pipe cannot


@contextmanager
def open_video(path: str) -> Iterator[OpenVideo]:
    """Open a local path or any address that fsspec knows (``s3://``, ``memory://`` ...).

    Whatever goes wrong while it is open is turned into a `VideoError`, too.
    """
    with errors_named(path), _open_file(path) as file:
        source = ByteSource(file, PurePosixPath(path).suffix)
        if not source.head:
            raise VideoError("the file is empty")
        refusal = not_a_video(source.head, PurePosixPath(path).suffix)
        if refusal is not None:
            raise VideoError(refusal, "refused")
        try:
            container = open_container(source)
            try:
                yield OpenVideo(container, source.head, source.size, source, source.seekable())
            finally:
                container.close()
        finally:
            # Whatever FFmpeg made of it: a file that could not be read is not a damaged one.
            if source.error is not None:
                raise source.error


def open_container(source: ByteSource) -> InputContainer:
    """What FFmpeg makes of bytes; it can open nothing else."""
    try:
        return av.open(
            source, metadata_errors="ignore", container_options=_OPTIONS, io_open=source.refuse
        )
    except av.ArgumentError:  # what FFmpeg says of a format that is not in `FORMATS`
        if is_picture(source.head):
            raise VideoError("not a video: a picture", "refused") from None
        raise VideoError("not a video, damaged, or in a format that is not read") from None


def open_live(address: str, kind: Literal["camera", "rtsp"]) -> InputContainer:
    """Let FFmpeg itself open a camera or an RTSP address that a user has named.

    The demuxer is given, so that whatever answers cannot be taken for a playlist.
    """
    name, options = _LIVE[kind]
    return av.open(address, format=name, container_options=options)


class ByteSource:
    """What FFmpeg reads: the bytes of an open file, under a name that tells only its ending.

    Nothing is raised into FFmpeg: PyAV would keep it and might raise it at the next video. Errors
    are kept in `error`.
    """

    def __init__(self, file: IO[bytes], ending: str) -> None:
        self.name = f"video{ending}"  # the ending helps to tell bare streams
        self.error: Exception | None = None
        with _reading():
            self.head = file.read(HEAD_BYTES)
        self._file = file
        try:
            self.size = int(file.seek(0, os.SEEK_END))
            file.seek(0)
            self._seekable, self._unread = True, b""
        except (OSError, TypeError, ValueError):  # a pipe, or a server that only streams
            self.size = 0
            self._seekable, self._unread = False, self.head

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def read(self, count: int) -> bytes:
        if self._unread:
            data, self._unread = self._unread[:count], self._unread[count:]
            return data
        try:
            with _reading():
                return self._file.read(count)
        except Exception as error:
            self.error = self.error or error
            return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        """The new position, or as FFmpeg has it, a negative error number."""
        try:
            return self._file.seek(offset, whence)
        except ValueError:  # before the start; damaged files lead there
            return -errno.EINVAL
        except Exception as error:
            if not isinstance(error, OSError) or error.errno != errno.EINVAL:
                self.error = self.error or error
            return -errno.EINVAL

    def tell(self) -> int:
        return self._file.tell()

    def refuse(self, url: str, flags: int, options: dict[str, str]) -> IO[bytes]:
        """What FFmpeg gets when it wants another file: nothing."""
        self.error = VideoError("it names other files, which are not read", "refused")
        return io.BytesIO()


@contextmanager
def _open_file(path: str) -> Iterator[IO[bytes]]:
    # Local paths do without fsspec: it cannot open pipes, and "::" in a name is a chain to it.
    if "://" not in path:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise VideoError("this is a folder, not a video", "unreadable")
        if stat.S_ISFIFO(mode) and not path.startswith(("/proc/", "/dev/")):  # an open file's pipe
            raise VideoError("a named pipe, which may never be written; see sta watch", "refused")
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
            raise VideoError("a device or a socket; give a video file", "refused")
        with Path(path).open("rb", buffering=0) as local:  # FFmpeg has a buffer
            yield local
        return
    with _reading():
        import fsspec

        opened = fsspec.open(path, "rb")
        remote: IO[bytes] = opened.__enter__()
    try:
        yield remote
    finally:
        opened.__exit__(None, None, None)


@contextmanager
def _reading() -> Iterator[None]:
    """Errors of fsspec's back ends, which have their own types, as opposed to FFmpeg's."""
    try:
        yield
    except (VideoError, OSError, MemoryError):
        raise
    except Exception as error:
        raise VideoError(f"cannot be read: {type(error).__name__}: {error}", "unreadable") from None


@contextmanager
def errors_named(path: str) -> Iterator[None]:
    """Turn whatever goes wrong with one file into a VideoError in plain words."""
    try:
        yield
    except VideoError:
        raise
    except MemoryError:
        raise VideoError("damaged: decoding it asks for more memory than there is") from None
    except av.FFmpegError as error:  # some are OSErrors as well, but FFmpeg opens no file
        raise VideoError(f"not a video, or damaged: {error.strerror}") from None
    except (FileNotFoundError, NotADirectoryError):
        if re.search(r"%0?\d*d", path):
            raise VideoError(
                f"a pattern of pictures, {path!r}, is not read; give a video", "refused"
            ) from None
        if path == "-":
            raise VideoError("standard input is not read here; see sta watch", "refused") from None
        raise VideoError("there is no such file", "missing") from None
    except PermissionError:
        raise VideoError("permission to read it is denied", "unreadable") from None
    except IsADirectoryError:
        raise VideoError("this is a folder, not a video", "unreadable") from None
    except OSError as error:
        raise VideoError(f"cannot be read: {error.strerror or error}", "unreadable") from None
    except Exception as error:  # PyAV raises a few of its own
        raise VideoError(f"damaged: {type(error).__name__}: {error}") from error
