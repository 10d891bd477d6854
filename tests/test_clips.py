"""Clips to measure with: of videos, drawn, or given."""

from __future__ import annotations

import numpy as np
import pytest

from inference_runs import make_videos
from sta.video.clips import drawn_clips, full_batches, load_clips
from sta.video.views import ViewSpec

SPEC = ViewSpec(frames=4, stride=1, size=32, temporal=1, spatial=1)


def test_videos_that_cannot_be_read_are_named_and_the_others_taken(tmp_path):
    videos = make_videos(tmp_path / "v", 4)
    (videos / "001.mp4").write_bytes(b"no video")
    clips, failures = load_clips(videos, SPEC, workers=2)
    assert clips.shape == (3, 4, 32, 32, 3)
    assert [path.rsplit("/", 1)[-1] for path, _ in failures] == ["001.mp4"]
    alone, _ = load_clips([videos / "000.mp4", videos / "002.mp4"], SPEC)
    np.testing.assert_array_equal(clips[:2], alone)  # in their order, whoever decoded them
    with pytest.raises(ValueError, match=r"001\.mp4"):
        load_clips(videos / "001.mp4", SPEC)


def test_a_limit_takes_the_first_or_by_chance(tmp_path):
    videos = make_videos(tmp_path / "v", 5)
    everything, _ = load_clips(videos, SPEC)
    first, _ = load_clips(videos, SPEC, 2)
    np.testing.assert_array_equal(first, everything[:2])
    chosen, _ = load_clips(videos, SPEC, 5, seed=3)
    again, _ = load_clips(videos, SPEC, 5, seed=3)
    np.testing.assert_array_equal(chosen, again)
    assert sorted(clip.tobytes() for clip in chosen) == sorted(c.tobytes() for c in everything)
    assert not np.array_equal(chosen, everything)


def test_digits_are_drawn_and_seeds_do_not_share_clips():
    drawn, failures = load_clips("digits", SPEC, 3)
    assert not failures
    np.testing.assert_array_equal(drawn, drawn_clips(range(3), SPEC))
    other, _ = load_clips("digits", SPEC, 3, seed=1)
    np.testing.assert_array_equal(other, drawn_clips(range(3, 6), SPEC))
    with pytest.raises(ValueError, match="how many"):
        load_clips("digits", SPEC)


def test_given_clips_are_checked():
    clips = np.zeros((3, 4, 32, 32, 3), np.uint8)
    assert len(load_clips(clips, SPEC, 2)[0]) == 2
    for wrong in (clips[..., :2], clips[:, :3], clips.astype(np.float32), clips[:0]):
        with pytest.raises(ValueError, match=r"takes \(n, 4, 32, 32, 3\) uint8"):
            load_clips(wrong, SPEC)


def test_batches_are_full():
    clips = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1, 1)
    assert [batch.ravel().tolist() for batch in full_batches(clips, 2)] == [[0, 1], [2, 3], [4, 0]]
