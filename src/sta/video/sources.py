"""Where live video comes from, by a user's word for it. What opens it is `sta.video.live`, which
needs FFmpeg."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["camera", "rtsp", "pipe", "fifo", "file"]
#: Major number of video4linux devices.
_VIDEO4LINUX = 81
#: Frame rates that a live source may claim; others are taken for nonsense.
RATES = (1.0, 1000.0)


@dataclass(frozen=True)
class LiveSource:
    """Where live video comes from."""

    kind: Kind  # what it is
    address: str  # its path or address
    rate: float | None = None  # frames per second, if the source's own statement is not to be used
    idle: float = 10.0  # seconds without growth after which a file has ended

    @property
    def endless(self) -> bool:
        """Whether its end is a loss, after which it is opened again."""
        return self.kind in ("camera", "rtsp", "fifo")


def live_source(text: str, *, rate: float | None = None, idle: float = 10.0) -> LiveSource:
    """What a user's word for a source means: "-" is standard input; else a path of a camera, named
    pipe or file, or an RTSP address."""
    if rate is not None and not RATES[0] <= rate <= RATES[1]:
        raise ValueError(f"fps={rate:g}: use {RATES[0]:g} to {RATES[1]:g} frames per second")
    kind: Kind
    if text == "-":
        kind = "pipe"
    elif re.match(r"rtsps?://", text, re.I):
        kind = "rtsp"
    elif "://" in text:
        raise ValueError(
            f"{text}: not a live source; give rtsp://, a camera, a file, or - for a pipe"
        )
    else:
        kind = _kind_of_file(text)
    return LiveSource(kind, text, rate, idle)


def _kind_of_file(path: str) -> Kind:
    try:
        state = Path(path).stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file or camera") from None
    if stat.S_ISCHR(state.st_mode) and os.major(state.st_rdev) == _VIDEO4LINUX:
        return "camera"
    if stat.S_ISFIFO(state.st_mode):
        return "fifo"
    if stat.S_ISREG(state.st_mode):
        return "file"
    raise ValueError(f"{path}: neither a camera nor a file; give e.g. /dev/video0")
