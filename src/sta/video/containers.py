"""Does a file end before its container says it does?

FFmpeg reads a file that was cut off as far as it goes and reports nothing. Two common container
formats state their own length at the start, so a few bytes tell.
"""

from __future__ import annotations

HEAD_BYTES = 64
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def declared_size(head: bytes) -> int | None:
    """The least size in bytes that the file says it has, from its first bytes; None if unsaid."""
    if head[:4] == b"RIFF" and len(head) >= 8:
        return 8 + int.from_bytes(head[4:8], "little")
    if head[:4] == _EBML:
        return _matroska_size(head)
    return None


def _matroska_size(head: bytes) -> int | None:
    header = _vint(head, 4)
    if header is None:
        return None
    segment = sum(header)  # the header's body ends where the segment starts
    if head[segment : segment + 4] != _SEGMENT:
        return None
    body = _vint(head, segment + 4)
    return None if body is None else sum(body)


def _vint(data: bytes, at: int) -> tuple[int, int] | None:
    """EBML's variable-length number at `at`: its value and where it ends; None if unknown."""
    if at >= len(data) or data[at] == 0:
        return None
    length = 9 - data[at].bit_length()
    if at + length > len(data):
        return None
    mask = (1 << (7 * length)) - 1
    value = int.from_bytes(data[at : at + length], "big") & mask
    return None if value == mask else (value, at + length)  # all ones: a live recording
