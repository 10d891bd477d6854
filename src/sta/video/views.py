"""Which frames and which crops make the views of a video: pure index arithmetic.

The four test protocols are the reference implementations' own, to the frame and to the pixel:

* VideoMAE on Kinetics-400 (``strided``): every `stride`-th frame of the whole video; `temporal`
  clips of neighbouring frames, evenly spread from the first to the last possible start.
* VideoMAE on Something-Something V2 (``uniform``): `frames` frames spread over the whole video;
  each further clip is the same pattern, shifted by a fraction of the spacing.
* VideoSwin on both (``centred``): `temporal` clips, each in the centre of its share of the video.

All arithmetic is on integers, where the references use floats that happen to be exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Sampling = Literal["strided", "uniform", "centred"]
#: What decodes; see `sta.video.gpu_decode` for the second.
Decoder = Literal["pyav", "torchcodec"]


@dataclass(frozen=True)
class ViewSpec:
    """How a video is cut into views.

    Attributes:
        frames: Frames per clip.
        stride: Distance between neighbouring frames of a clip (``uniform`` does without).
        size: Side of the square crops, in pixels.
        temporal: Clips per video.
        spatial: Crops per clip, spread along the longer side.
        sampling: Where the clips lie in the video (see the module's text).
        mmaction_crops: Round the long side to the nearest pixel and take equal crop steps, as
            VideoSwin's loader does; VideoMAE's cuts the fraction and ends at the far edge.
        place: Where a video's only clip lies, from 0 (at its start) to 1 (at its end); None leaves
            it where the protocol has it. Training draws it.
        short_side: Short side of the frames after resizing, in pixels; None is `size`.
        decoder: What decodes: ``pyav``, or ``torchcodec``, on a GPU where there is one. Both give
            the same frames, but colours may differ by some levels.
    """

    frames: int = 16
    stride: int = 4
    size: int = 224
    temporal: int = 1
    spatial: int = 1
    sampling: Sampling = "strided"
    mmaction_crops: bool = False
    place: float | None = None
    short_side: int | None = None
    decoder: Decoder = "pyav"

    def __post_init__(self) -> None:
        for name in ("frames", "stride", "size", "temporal", "spatial"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} is not possible: use an integer of 1 or more")
        if self.sampling not in get_args(Sampling):
            raise ValueError(
                f"sampling={self.sampling!r} is unknown: use one of {', '.join(get_args(Sampling))}"
            )
        if self.decoder not in get_args(Decoder):
            raise ValueError(
                f"decoder={self.decoder!r} is unknown: use one of {', '.join(get_args(Decoder))}"
            )
        if self.short_side is not None and self.short_side < self.size:
            raise ValueError(
                f"short_side={self.short_side} is not possible: crops of {self.size} pixels need "
                f"as much or more"
            )
        if self.place is not None and (self.temporal != 1 or not 0 <= self.place <= 1):
            raise ValueError(
                f"place={self.place} with temporal={self.temporal} is not possible: give a number "
                f"from 0 to 1, for one clip per video"
            )

    @property
    def views(self) -> int:
        return self.temporal * self.spatial

    def enlarged(self, times: int) -> ViewSpec:
        """The same cuts of a video that is this many times as large."""
        short_side = None if self.short_side is None else self.short_side * times
        return replace(self, size=self.size * times, short_side=short_side)

    def with_views(self, text: str) -> ViewSpec:
        """The same with `text` views, e.g. ``"5x3"`` for 5 clips of 3 crops each."""
        try:
            temporal, spatial = (int(part) for part in text.lower().split("x"))
            return replace(self, temporal=temporal, spatial=spatial)
        except ValueError:
            raise ValueError(
                f"views {text!r} are not understood: give clips x crops, e.g. 5x3 or 1x1"
            ) from None


#: The published test protocols, by data set and backbone family.
PROTOCOLS: dict[tuple[str, str], ViewSpec] = {
    ("k400", "vit"): ViewSpec(16, 4, 224, 5, 3, "strided"),
    ("ssv2", "vit"): ViewSpec(16, 2, 224, 2, 3, "uniform"),
    ("k400", "swin"): ViewSpec(32, 2, 224, 4, 3, "centred", mmaction_crops=True),
    ("ssv2", "swin"): ViewSpec(32, 2, 224, 1, 3, "centred", mmaction_crops=True),
}


def protocol(data_set: str, family: str = "vit") -> ViewSpec:
    """The test protocol of a data set (``k400``, ``ssv2``) for a family (``vit``, ``swin``)."""
    try:
        return PROTOCOLS[data_set, family]
    except KeyError:
        known = ", ".join(f"{d} for {f}" for d, f in PROTOCOLS)
        raise ValueError(
            f"there is no protocol {data_set!r} for {family!r} backbones: choose {known}"
        ) from None


def clip_indices(length: int, spec: ViewSpec) -> NDArray[np.int64]:
    """The frame numbers of each clip of a video of `length` frames, as ``(temporal, frames)``.

    A video shorter than a clip repeats its last frame (``centred``: starts over, as VideoSwin's
    loader does); numbers are always in ``0..length-1``.
    """
    if length < 1:
        raise ValueError(f"a video of {length} frames has no clips: at least 1 frame is needed")
    steps = np.arange(spec.frames, dtype=np.int64)  # (F,)
    clips = np.arange(spec.temporal, dtype=np.int64)[:, None]  # (T, 1)
    if spec.place is not None:
        return _placed_clip(length, spec, spec.place)[None]
    if spec.sampling == "uniform":
        # tick = length / frames; clip v starts v / temporal of a tick late.
        return (length * (steps * spec.temporal + clips)) // (spec.frames * spec.temporal)
    if spec.sampling == "centred":
        room = max(0, length - spec.frames * spec.stride + 1)
        starts = (room * (2 * clips + 1)) // (2 * spec.temporal)
        return (starts + steps * spec.stride) % length
    strided = -(-length // spec.stride)  # frames left when every stride-th is taken
    room = max(0, strided - spec.frames)
    starts = _spread(room, spec.temporal)[:, None]  # (T, 1)
    return np.minimum(starts + steps, strided - 1) * spec.stride


def _placed_clip(length: int, spec: ViewSpec, place: float) -> NDArray[np.int64]:
    """The frame numbers, ``(frames,)``, of a clip at `place` (0..1) of where it can lie."""
    steps = np.arange(spec.frames, dtype=np.int64)
    if spec.sampling == "uniform":
        late = min(int(place * length), length - 1)  # of a tick, in parts of 1 / length
        return (length * steps + late) // spec.frames
    room = max(0, length - (spec.frames - 1) * spec.stride - 1)
    start = min(int(place * (room + 1)), room)
    return np.minimum(start + steps * spec.stride, length - 1)


def resized(height: int, width: int, spec: ViewSpec) -> tuple[int, int]:
    """Height and width of a frame once its short side is `spec.short_side`."""
    short, long = min(height, width), max(height, width)
    new_short = spec.short_side or spec.size
    if spec.mmaction_crops:
        new_long = (2 * new_short * long + short) // (2 * short)  # to the nearest pixel
    else:
        new_long = new_short * long // short
    return (new_short, new_long) if height <= width else (new_long, new_short)


def crop_offsets(height: int, width: int, spec: ViewSpec) -> NDArray[np.int64]:
    """Top and left of each crop of a resized frame, as ``(spatial, 2)``.

    They are spread along the longer side, and in the middle of the shorter one.
    """
    room = max(height, width) - spec.size
    if spec.mmaction_crops and spec.spatial > 1:
        along = np.arange(spec.spatial, dtype=np.int64) * (room // (spec.spatial - 1))
    else:
        along = _spread(room, spec.spatial)
    middle = (min(height, width) - spec.size) // 2
    offsets = np.full((spec.spatial, 2), middle, dtype=np.int64)
    offsets[:, 0 if height >= width else 1] = along
    return offsets


def crop_window(
    height: int, width: int, spec: ViewSpec
) -> tuple[tuple[int, int, int, int], NDArray[np.int64]]:
    """Top, left, height and width of what all crops cover, and the crops' offsets in it."""
    offsets = crop_offsets(height, width, spec)
    first = offsets.min(axis=0)
    (top, left), (rows, columns) = first.tolist(), (offsets.max(axis=0) - first).tolist()
    return (top, left, rows + spec.size, columns + spec.size), offsets - first


def _spread(room: int, count: int) -> NDArray[np.int64]:
    """`count` starts from 0 to `room`, evenly and rounded down; a single one in the middle."""
    if count == 1:
        return np.array([room // 2], dtype=np.int64)
    return np.arange(count, dtype=np.int64) * room // (count - 1)


@dataclass
class Views:
    """The decoded part of a video: each needed frame once, and how the views use them."""

    frames: NDArray[np.uint8]  # ``(F, H, W, 3)`` uint8, RGB, resized, cut to what the crops cover
    index: NDArray[np.int64]  # ``(temporal, frames)``: positions in `frames`
    offsets: NDArray[np.int64]  # ``(spatial, 2)``: top and left of each crop in `frames`
    size: int  # side of the crops

    def clips(self) -> NDArray[np.uint8]:
        """All views, clip by clip and crop by crop: ``(V, T, size, size, 3)`` uint8."""
        temporal, frames = self.index.shape
        side = self.size
        views = np.empty((temporal, len(self.offsets), frames, side, side, 3), dtype=np.uint8)
        for clip, positions in zip(views, self.index, strict=True):
            for view, (top, left) in zip(clip, self.offsets, strict=True):
                for picture, position in zip(view, positions, strict=True):
                    picture[...] = self.frames[position, top : top + side, left : left + side]
        return views.reshape(-1, *views.shape[2:])
