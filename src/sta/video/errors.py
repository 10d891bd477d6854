"""What can go wrong with one video."""

from __future__ import annotations

from typing import Literal

#: missing: there is no such file. unreadable: it is there, but reading it failed (permission, I/O,
#: network, a folder). damaged: it was read, but does not decode. timeout: no sign of life while it
#: was read. killed: the decoding process died, of the file or of something else (out of memory).
#: refused: it is no video by itself, such as a playlist, and was not decoded.
ErrorKind = Literal["missing", "unreadable", "damaged", "timeout", "killed", "refused"]


class VideoError(Exception):
    """A video that cannot be read; the text says why, `kind` says it for programs.

    Only "damaged" and "refused" are known to be properties of the file. The others may be gone
    when the file is read again.
    """

    def __init__(self, message: str, kind: ErrorKind = "damaged") -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind

    def __reduce__(self) -> tuple[type[VideoError], tuple[str, ErrorKind]]:
        return type(self), (str(self), self.kind)  # exceptions forget attributes when pickled
