"""What the first bytes of a file tell: which formats are read, which are refused, how long it is.

FFmpeg reads some 370 formats. Many are no video by themselves: playlists, scripts, stream
descriptions and patterns of pictures name other files, addresses or devices, which FFmpeg would
open. `FORMATS` are the ones that may be opened; all of them hold their video within the file.
"""

from __future__ import annotations

import re

#: Enough for a playlist to show what it is.
HEAD_BYTES = 4096

#: FFmpeg's names of the demuxers that may be used. None of them opens a second file.
FORMATS = (
    # containers
    *("mov", "matroska", "avi", "mpegts", "mpeg", "flv", "asf", "ogg", "gif", "apng", "ivf"),
    *("mxf", "nut", "rm", "dv", "yuv4mpegpipe"),
    # bare streams of one codec
    *("h264", "hevc", "vvc", "av1", "obu", "h263", "m4v", "mpegvideo", "mjpeg"),
    # sound, so that the error can say that it is sound
    *("wav", "mp3", "aac", "flac"),
)

_GIVE = "which names other files; give the video itself"
_PLAYLIST = f"a playlist, {_GIVE}"
_HLS = f"a playlist (HLS), {_GIVE}"
_DASH = f"a playlist (DASH), {_GIVE}"
_CONCAT = f"a playlist (FFmpeg's concat script), {_GIVE}"
_SDP = "a stream description (SDP), which names network addresses; give the video itself"
_SCRIPT = "a script that makes a video; run it yourself and give its result"
_TEXT = "not a video: a text file"

# At the start of the text, or where stated at the start of a line. Case does not matter.
_TEXTS = (
    (re.compile(rb"#EXTM3U", re.I), _HLS),
    (re.compile(rb"\[playlist\]|\[reference\]|rtsptext", re.I), _PLAYLIST),
    (re.compile(rb"ffconcat|(#[^\n]*\n\s*)*file\s+\S", re.I), _CONCAT),
    (re.compile(rb"<[^\0]*?<?MPD\b", re.I), _DASH),
    (
        re.compile(
            rb"<[^\0]*?<?(SmoothStreamingMedia|smil|asx|wpl|playlist|CompositionPlaylist|AssetMap)\b",
            re.I,
        ),
        _PLAYLIST,
    ),
    (re.compile(rb"v=0\s|([^\0]*\n)?c=IN IP", re.I), _SDP),
)
_ENDINGS = {
    **dict.fromkeys((".m3u", ".m3u8"), _HLS),
    **dict.fromkeys((".pls", ".asx", ".wpl", ".xspf", ".smil", ".ism"), _PLAYLIST),
    **dict.fromkeys((".ffconcat", ".concat"), _CONCAT),
    **dict.fromkeys((".avs", ".vpy"), _SCRIPT),
    ".mpd": _DASH,
    ".sdp": _SDP,
}
_PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"BM", b"8BPS")
_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b"))  # bytes that no text has
_LEAST_TEXT = 32  # bytes; fewer may as well be the start of a video that was cut off


def not_a_video(head: bytes, ending: str = "") -> str | None:
    """What a file is that must not be given to FFmpeg; None if it may be a video.

    This is for a clear error. That such files are never opened does not depend on it: `FORMATS`
    sees to that, whatever they are disguised as.
    """
    text = _without_id3(head).lstrip(b"\xef\xbb\xbf \t\r\n\0")
    for pattern, kind in _TEXTS:
        if pattern.match(text):
            return kind
    if text.translate(None, _CONTROL) != text or text.startswith(b"YUV4MPEG2"):
        return None
    if ending.lower() in _ENDINGS:
        return _ENDINGS[ending.lower()]
    return _TEXT if len(text) >= _LEAST_TEXT else None


def is_picture(head: bytes) -> bool:
    """Whether the first bytes are those of a single picture (or of a video made of them)."""
    return head.startswith(_PICTURES) or head[8:12] == b"WEBP"


def _without_id3(head: bytes) -> bytes:
    """FFmpeg skips tags of this kind before it asks what a file is."""
    while head[:3] == b"ID3" and len(head) >= 10:
        size = 0
        for byte in head[6:10]:  # seven bits each
            size = size << 7 | byte & 127
        head = head[10 + size + (10 if head[5] & 16 else 0) :]
    return head


# Does a file end before its container says it does? FFmpeg reads a file that was cut off as far as
# it goes and reports nothing. Two common containers state their own length at the start.

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
