"""Frame numbers and crops against the reference loaders' own arithmetic, written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sta.video.resize import Resizer
from sta.video.views import PROTOCOLS, Views, ViewSpec, clip_indices, crop_offsets, protocol
from sta.video.views import resized as resized_size

specs = st.builds(
    ViewSpec,
    frames=st.integers(1, 40),
    stride=st.integers(1, 8),
    size=st.integers(8, 320),
    temporal=st.integers(1, 7),
    spatial=st.integers(1, 5),
    sampling=st.sampled_from(["strided", "uniform", "centred"]),
    mmaction_crops=st.booleans(),
)


def test_videomae_k400_clips_of_a_ten_second_video():
    clips = clip_indices(300, protocol("k400"))
    # 75 frames at stride 4; starts int(i * 59 / 4)
    assert [clip[0] // 4 for clip in clips] == [0, 14, 29, 44, 59]
    assert clips[0].tolist() == list(range(0, 64, 4))
    assert clips[-1].tolist() == list(range(236, 300, 4))


@pytest.mark.parametrize("length", [1, 3, 15, 16, 61, 64, 65, 250, 299, 301, 1000])
def test_videomae_k400_is_the_reference_loader(length):
    strided = list(range(0, length, 4))
    while len(strided) < 16:
        strided.append(strided[-1])
    step = max(1.0 * (len(strided) - 16) / (5 - 1), 0)
    expected = [strided[int(i * step) : int(i * step) + 16] for i in range(5)]
    assert clip_indices(length, protocol("k400")).tolist() == expected


@pytest.mark.parametrize("length", [1, 2, 9, 16, 17, 31, 40, 117])
def test_videomae_ssv2_is_the_reference_loader(length):
    tick = length / 16
    both = sorted(
        [int(tick * i) for i in range(16)] + [int(tick / 2 + tick * i) for i in range(16)]
    )
    assert clip_indices(length, protocol("ssv2")).tolist() == [both[0::2], both[1::2]]


@pytest.mark.parametrize("length", [1, 10, 63, 64, 65, 100, 299, 300])
@pytest.mark.parametrize(("data_set", "clips"), [("k400", 4), ("ssv2", 1)])
def test_swin_is_the_reference_loader(length, data_set, clips):
    share = (length - 64 + 1) / clips
    starts = [int(i * share + share / 2) if length > 63 else 0 for i in range(clips)]
    expected = [[(start + 2 * i) % length for i in range(32)] for start in starts]
    assert clip_indices(length, protocol(data_set, "swin")).tolist() == expected


def test_a_short_video_repeats_its_last_frame():
    assert clip_indices(5, ViewSpec(frames=4, stride=2)).tolist() == [[0, 2, 4, 4]]
    assert clip_indices(1, ViewSpec()).tolist() == [[0] * 16]


def test_a_single_clip_is_in_the_middle():
    assert clip_indices(100, ViewSpec(frames=10, stride=1)).tolist() == [list(range(45, 55))]


@given(length=st.integers(1, 5000), spec=specs)
def test_every_frame_number_exists_and_clips_go_forward(length, spec):
    clips = clip_indices(length, spec)
    assert clips.shape == (spec.temporal, spec.frames)
    assert clips.min() >= 0
    assert clips.max() < length
    if spec.sampling != "centred" or length >= spec.frames * spec.stride:
        assert (np.diff(clips, axis=1) >= 0).all()
        assert (np.diff(clips[:, 0]) >= 0).all()


def test_no_frames_no_clips():
    with pytest.raises(ValueError, match="at least 1 frame"):
        clip_indices(0, ViewSpec())


@pytest.mark.parametrize(
    ("height", "width", "videomae", "mmaction"),
    [
        (256, 340, (224, 297), (224, 298)),  # 297.5
        (240, 320, (224, 298), (224, 299)),  # 298.67
        (360, 640, (224, 398), (224, 398)),  # 398.2
        (640, 360, (398, 224), (398, 224)),
        (272, 184, (331, 224), (331, 224)),
        (7, 5, (313, 224), (314, 224)),  # 313.6
        (500, 500, (224, 224), (224, 224)),
    ],
)
def test_the_short_side_becomes_the_size(height, width, videomae, mmaction):
    assert resized_size(height, width, protocol("k400")) == videomae
    assert resized_size(height, width, protocol("k400", "swin")) == mmaction


def test_three_crops_along_the_longer_side():
    vit, swin = protocol("k400"), protocol("k400", "swin")
    assert crop_offsets(224, 297, vit).tolist() == [[0, 0], [0, 36], [0, 73]]
    assert crop_offsets(224, 299, swin).tolist() == [[0, 0], [0, 37], [0, 74]]
    assert crop_offsets(331, 224, vit).tolist() == [[0, 0], [53, 0], [107, 0]]
    assert crop_offsets(331, 224, swin).tolist() == [[0, 0], [53, 0], [106, 0]]
    assert crop_offsets(224, 224, vit).tolist() == [[0, 0]] * 3


def test_one_crop_is_the_centre():
    assert crop_offsets(224, 299, ViewSpec()).tolist() == [[0, 37]]


@given(height=st.integers(2, 3000), width=st.integers(2, 3000), spec=specs)
def test_crops_lie_inside_the_resized_frame(height, width, spec):
    size = resized_size(height, width, spec)
    assert min(size) == spec.size
    offsets = crop_offsets(*size, spec)
    assert (offsets >= 0).all()
    assert (offsets + spec.size <= np.array(size)).all()


def test_views_are_clip_by_clip_and_crop_by_crop():
    frames = np.arange(3 * 2 * 4 * 3, dtype=np.uint8).reshape(3, 2, 4, 3)
    views = Views(frames, np.array([[0, 1], [1, 2]]), np.array([[0, 0], [0, 2]]), 2)
    clips = views.clips()
    assert clips.shape == (4, 2, 2, 2, 3)
    np.testing.assert_array_equal(clips[1], frames[[0, 1], :, 2:])
    np.testing.assert_array_equal(clips[2], frames[[1, 2], :, :2])


@pytest.mark.parametrize(
    ("old", "new"), [((256, 340), (224, 297)), ((90, 50), (403, 224)), ((11, 7), (5, 3))]
)
def test_resizing_is_torch_bilinear(old, new):
    image = np.random.default_rng(0).integers(0, 256, (*old, 3), dtype=np.uint8)
    batch = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    expected = torch.nn.functional.interpolate(batch, size=new, mode="bilinear")[0]
    expected = expected.permute(1, 2, 0).numpy()
    whole = np.empty((*new, 3), np.uint8)
    Resizer(old, new, (0, 0, *new))(image, whole)
    assert np.abs(whole - expected).max() <= 0.5 + 1e-3
    part = np.empty((new[0] - 2, new[1] - 1, 3), np.uint8)
    resizer = Resizer(old, new, (1, 1, new[0] - 2, new[1] - 1))
    for _ in range(2):  # its buffers carry nothing over
        resizer(image, part)
        np.testing.assert_array_equal(part, whole[1:-1, 1:])


def test_pictures_of_the_right_size_are_copied_and_not_blended():
    image = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    resizer = Resizer((6, 9), (6, 9), (1, 2, 4, 5))
    resizer.tall = None  # what blending needs
    part = np.empty((4, 5, 3), np.uint8)
    resizer(image, part)
    np.testing.assert_array_equal(part, image[1:5, 2:7])
    resizer = Resizer((6, 9), (6, 9), (1, 2, 4, 5))
    resizer.same = None
    blended = np.empty_like(part)
    resizer(image, blended)
    np.testing.assert_array_equal(part, blended)


def test_protocols_are_the_published_ones():
    table = {key: (s.frames, s.stride, s.temporal, s.spatial) for key, s in PROTOCOLS.items()}
    assert table == {
        ("k400", "vit"): (16, 4, 5, 3),
        ("ssv2", "vit"): (16, 2, 2, 3),
        ("k400", "swin"): (32, 2, 4, 3),
        ("ssv2", "swin"): (32, 2, 1, 3),
    }


@pytest.mark.parametrize("text", ["5", "x3", "0x1", "5x3x1", "axb"])
def test_views_that_are_not_understood_say_what_is(text):
    with pytest.raises(ValueError, match=r"5x3"):
        ViewSpec().with_views(text)


def test_wrong_specs_are_refused():
    assert ViewSpec().with_views("4x3").views == 12
    with pytest.raises(ValueError, match="frames=0"):
        ViewSpec(frames=0)
    with pytest.raises(ValueError, match="strided, uniform, centred"):
        ViewSpec(sampling="dense")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k400 for vit"):
        protocol("ucf101")


def test_crops_lie_in_the_middle_of_a_larger_short_side():
    spec = ViewSpec(size=32, spatial=3, short_side=40)
    assert resized_size(80, 120, spec) == (40, 60)
    assert crop_offsets(40, 60, spec).tolist() == [[4, 0], [4, 14], [4, 28]]
    assert crop_offsets(60, 40, spec).tolist() == [[0, 4], [14, 4], [28, 4]]
    assert (spec.enlarged(3).size, spec.enlarged(3).short_side) == (96, 120)
    with pytest.raises(ValueError, match="short_side=24 is not possible: crops of 32 pixels"):
        ViewSpec(size=32, short_side=24)
