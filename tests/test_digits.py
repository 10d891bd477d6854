"""Digit actions: the same clips every time, and each shows what its label says."""

from __future__ import annotations

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sta.video.digits import (
    CLASS_NAMES,
    COLOURS,
    FRAMES,
    MOTIONS,
    SIDE,
    DigitActions,
    factors_of,
    glyphs,
    render,
    write_videos,
)

MANY = 10**9  # the training split has no end
GOLDEN_NAMES = ["black growing", "yellow left", "black right"]
GOLDEN_MEANS = [
    [97.839, 96.287, 98.838],
    [87.756, 89.410, 87.637],
    [122.581, 110.372, 115.545],
]


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(0, MANY - 1), min_size=1, max_size=11),
    st.booleans(),
    st.sampled_from(["train", "test"]),
)
def test_a_clip_is_the_same_in_any_batch(indices, camera_jitter, split):
    data = DigitActions(split, size=MANY, camera_jitter=camera_jitter, seed=3)
    frames, labels = data.batch(indices)
    assert frames.shape == (len(indices), FRAMES, SIDE, SIDE, 3)
    assert frames.dtype == np.uint8
    alone, label = data[indices[-1]]
    np.testing.assert_array_equal(alone, frames[-1])
    assert label == labels[-1]


def test_the_fixed_test_split_stays_what_it_was():
    # Rendering goes through float matrix products, so a pixel may differ by a grey level between
    # machines; the mean over a clip may not.
    frames, labels = DigitActions("test").batch([0, 1, 4095])
    assert [CLASS_NAMES[label] for label in labels] == GOLDEN_NAMES
    np.testing.assert_allclose(frames.mean(axis=(1, 2, 3)), GOLDEN_MEANS, atol=0.02)


def test_seed_split_and_index_all_change_the_clip():
    base, _ = DigitActions("test", seed=0)[0]
    others = [DigitActions("test", seed=1)[0], DigitActions("train")[0], DigitActions("test")[1]]
    for other, _ in others:
        assert np.abs(base.astype(int) - other).mean() > 10


def test_no_digit_image_is_in_both_splits():
    train, test = glyphs("train"), glyphs("test")
    assert len(train) + len(test) == 1797
    assert len(test) >= 350
    # scikit-learn's images are all different, so equal pixels would mean the same image.
    seen = {image.tobytes() for image in train}
    assert not any(image.tobytes() in seen for image in test)


def test_labels_are_balanced_and_not_in_order():
    labels = DigitActions("test").labels(range(4096))
    counts = np.bincount(labels, minlength=80)
    assert counts.min() >= 51
    assert counts.max() <= 52
    assert not np.array_equal(labels[:80], labels[80:160])
    for label in range(80):
        motion, colour = factors_of(label)
        assert motion * len(COLOURS) + colour == label
        assert CLASS_NAMES[label] == f"{list(COLOURS)[colour]} {MOTIONS[motion]}"


def coloured(clip: np.ndarray, colour: int) -> np.ndarray:
    """Where a clip shows a colour: the pixels nearer to it than 60 levels, (T, H, W)."""
    distance = np.abs(clip.astype(int) - list(COLOURS.values())[colour]).max(axis=-1)
    return distance < 60


def measured_motion(mask: np.ndarray) -> str:
    """Name the motion of a digit from the pixels it covers, (T, H, W)."""
    area = mask.sum(axis=(1, 2))
    rows, columns = np.mgrid[:SIDE, :SIDE]
    y = (mask * rows).sum(axis=(1, 2)) / area
    x = (mask * columns).sum(axis=(1, 2)) / area
    # Twice the area that the path sweeps around its middle: large only on a circle.
    turned = np.sum((x - x.mean())[:-1] * np.diff(y) - (y - y.mean())[:-1] * np.diff(x))
    if abs(turned) > 100:
        return "clockwise" if turned > 0 else "anticlockwise"
    if max(abs(x[-1] - x[0]), abs(y[-1] - y[0])) < 8:
        return "growing" if area[-1] > area[0] else "shrinking"
    if abs(x[-1] - x[0]) > abs(y[-1] - y[0]):
        return "right" if x[-1] > x[0] else "left"
    return "down" if y[-1] > y[0] else "up"


@pytest.mark.parametrize("camera_jitter", [False, True])
def test_the_pixels_show_the_motion_and_colour_of_the_label(camera_jitter):
    frames, labels = DigitActions("test", camera_jitter=camera_jitter).batch(range(160))
    found = []
    for clip, label in zip(frames, labels, strict=True):
        motion, colour = factors_of(int(label))
        mask = coloured(clip, colour)
        assert mask.sum(axis=(1, 2)).min() > 10, "the mover is in view in every frame"
        found.append(measured_motion(mask) == MOTIONS[motion])
    # White and black are near a bright or dark background's colour, so a few may be misread.
    assert np.mean(found) > 0.95


def test_everything_but_the_mover_stands_still():
    scene = DigitActions("train", size=MANY).scene(range(40))
    still, mover = slice(0, -1), -1
    assert np.ptp(scene.centre[:, still], axis=2).max() == 0
    assert np.ptp(scene.size[:, still], axis=2).max() == 0
    moved = np.ptp(scene.centre[:, mover], axis=1).max(-1) + np.ptp(scene.size[:, mover], axis=1)
    assert moved.min() > 7


def test_hidden_distractors_leave_the_rest_as_it_is():
    alone, full = (DigitActions("train", size=8, distractors=n).scene(range(8)) for n in (0, 3))
    assert np.array_equal(alone.centre[:, -1], full.centre[:, -1])
    changed = (render(full, "train") != render(alone, "train")).any(-1)  # (B, T, H, W)
    assert changed[:, 0].any((1, 2)).all()
    for clip, time in np.ndindex(8, 16):  # only where a distractor was
        places = np.argwhere(changed[clip, time])[:, None]  # (places, 1, 2)
        apart = np.abs(places - full.centre[clip, :-1, time]).max(-1)  # (places, distractors)
        assert (apart <= 0.75 * full.size[clip, :-1, time]).any(-1).all()


def test_without_phase_all_circles_are_at_the_top_half_way():
    data = DigitActions("train", size=160, phase=0.0)
    y, x = np.moveaxis(data.scene(range(160)).centre[:, -1], -1, 0)  # (160, T)
    seen = set()
    for label, down, across in zip(data.labels(range(160)), y, x, strict=True):
        if "clockwise" in (motion := MOTIONS[factors_of(int(label))[0]]):
            assert down[FRAMES // 2] == pytest.approx(down.min(), abs=0.1)
            rightward = across[FRAMES // 2] > across[FRAMES // 2 - 1]
            assert rightward == (motion == "clockwise")
            seen.add(motion)
    assert len(seen) == 2


def test_distractors_have_other_colours_than_the_mover():
    data = DigitActions("train", size=MANY)
    colours = data.scene(range(200)).colour
    assert all(len(set(row)) == len(row) for row in colours)
    np.testing.assert_array_equal(colours[:, -1], data.labels(range(200)) % len(COLOURS))


def test_a_still_frame_does_not_give_the_mover_away_by_its_size():
    scene = DigitActions("train", size=MANY).scene(range(400))
    middle = scene.size[:, :, FRAMES // 2]
    assert abs(middle[:, -1].mean() - middle[:, :-1].mean()) < 1.0


@pytest.mark.parametrize(("crf", "error"), [(None, 0.0), (12, 8.0)])
def test_written_files_hold_the_clips(tmp_path, crf, error):
    data = DigitActions("test", size=3)
    files = list(write_videos(data, tmp_path, crf=crf))
    lines = (tmp_path / "test.txt").read_text().splitlines()
    frames, labels = data.batch(range(3))
    assert lines == [
        f"{path.relative_to(tmp_path)} {label}" for path, label in zip(files, labels, strict=True)
    ]
    assert (tmp_path / "classes.txt").read_text().splitlines() == list(CLASS_NAMES)
    for path, clip in zip(files, frames, strict=True):
        with av.open(str(path)) as container:
            decoded = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
        assert np.abs(np.stack(decoded).astype(int) - clip).mean() <= error


def test_takes_of_a_video_are_clips_of_its_label_that_no_other_video_has(tmp_path):
    data, every = DigitActions("test", size=100), DigitActions("test", size=MANY)
    taken = [data.alike(index, 3) for index in range(100)]
    assert len({number for numbers in taken for number in numbers}) == 300
    for index, numbers in enumerate(taken):
        assert numbers[0] == index
        assert min(numbers[1:]) >= 100
        assert set(every.labels(numbers)) == set(data.labels([index]))
    (path,) = write_videos(DigitActions("test", size=1), tmp_path, takes=3)
    frames, _ = every.batch(DigitActions("test", size=1).alike(0, 3))
    with av.open(str(path)) as container:
        decoded = np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])
    assert np.array_equal(decoded, frames.reshape(decoded.shape))


def test_an_unfinished_folder_has_no_list(tmp_path):
    files = write_videos(DigitActions("test", size=3), tmp_path)
    next(files)
    assert not (tmp_path / "test.txt").exists()


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"split='valid'.*train, test"):
        DigitActions("valid")
    with pytest.raises(ValueError, match="size=0"):
        DigitActions("test", size=0)
    with pytest.raises(ValueError, match="phase=2"):
        DigitActions("test", phase=2)
    with pytest.raises(IndexError, match=r"clip 5 .*test split"):
        DigitActions("test", size=5).batch([5])
    with pytest.raises(ValueError, match="crf=99"):
        next(write_videos(DigitActions("test", size=1), "unused", crf=99))
