"""Long, short, large and uneven videos through the decoding process, whose memory is watched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest

from sta.video import ViewSpec, protocol
from sta.video.encode import write_video
from sta.video.safe import SafeDecoder
from sta.video.views import Views, clip_indices
from video_files import make, number_of, numbered


def decoded(path: Path, spec: ViewSpec) -> tuple[Views, int]:
    """The views, and the most memory in megabytes that the process had."""
    with SafeDecoder(spec) as decoder:
        views = decoder(str(path))
        assert decoder._process is not None
        status = Path(f"/proc/{decoder._process.pid}/status")
        if not status.exists():
            return views, psutil.Process(decoder._process.pid).memory_info().rss // 2**20
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return views, int(peak.split()[1]) // 1024


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.avi", "mpeg4")])
def test_two_hours(tmp_path, name, codec):
    """Two hours at a frame per second: one container has an index, the other is counted."""
    hours = 2 * 60 * 60
    pictures = (numbered(second % 512, 108, 144) for second in range(hours))
    options = {"preset": "ultrafast", "g": "60"} if codec == "libx264" else {}
    path = write_video(tmp_path / name, pictures, codec=codec, fps=1, options=options)
    spec = ViewSpec(frames=16, stride=4, size=108, temporal=5)
    views, megabytes = decoded(path, spec)
    found = [[number_of(frame) for frame in clip] for clip in views.clips()]
    assert found == (clip_indices(hours, spec) % 512).tolist()
    assert megabytes < 230  # all pictures together have 168 MB, the bare process 70


def test_fifteen_views_of_a_4k_video(tmp_path):
    path = make(tmp_path / "a.mp4", 20, 2160, 3840, options={"preset": "ultrafast"})
    views, megabytes = decoded(path, protocol("k400"))
    assert views.clips().shape == (15, 16, 224, 224, 3)
    assert megabytes < 700


def test_one_frame_and_a_variable_frame_rate(tmp_path):
    one, _ = decoded(make(tmp_path / "one.mp4", 1), ViewSpec(size=72))
    assert one.clips().shape == (1, 16, 72, 72, 3)
    times = np.cumsum(np.random.default_rng(0).integers(1, 5000, size=90)).tolist()
    spec = ViewSpec(frames=10, stride=3, size=72, temporal=2)
    uneven, _ = decoded(make(tmp_path / "uneven.mkv", 90, times=times), spec)
    found = [[number_of(frame) for frame in clip] for clip in uneven.clips()]
    assert found == clip_indices(90, spec).tolist()
