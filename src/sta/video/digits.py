"""Digit actions: labelled video made on the fly from real handwritten digits.

Each clip shows several coloured digits on a textured background. One of them moves in one of
eight ways, the others stand still; the label says how it moves and which colour it has. Motion
cannot be told from a still frame, and neither can the colour, because nothing but its movement
sets the mover apart from the distractors.

Clip ``i`` of a split depends on ``(seed, split, i)`` alone, whatever the batch it is drawn in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "test"]

MOTIONS = ("left", "right", "up", "down", "clockwise", "anticlockwise", "growing", "shrinking")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 30, 30),
    "orange": (255, 140, 0),
    "yellow": (250, 240, 60),
    "green": (20, 160, 40),
    "cyan": (60, 225, 235),
    "blue": (30, 60, 225),
    "purple": (125, 30, 170),
    "pink": (255, 140, 200),
    "white": (250, 250, 250),
    "black": (5, 5, 5),
}
CLASS_NAMES = tuple(f"{colour} {motion}" for motion in MOTIONS for colour in COLOURS)
FRAMES, SIDE, DISTRACTORS = 16, 64, 3
TEST_CLIPS = 4096  # the fixed test split
#: What command lines call the clips: with a camera that stands still, and with one that shakes.
NAMES = ("digits", "digits-jitter")

_PALETTE = np.array(list(COLOURS.values()), dtype=np.float32)  # (10, 3)
_GLYPH = 8  # the digit images are 8x8
# The 1,797 images of sklearn.datasets.load_digits, levels 0 to 16 as uint8; see NOTICE.
_IMAGES = Path(__file__).with_name("digits.npz")
_TEST_DIGITS = 360
_DIGITS = 1 + DISTRACTORS
_SPLITS = {"train": 0, "test": 1}
_CHUNK = 8  # clips rendered at a time: keeps the float frames in cache
_JITTER_PIXELS = 2.0


def factors_of(label: int) -> tuple[int, int]:
    """The motion and the colour of a joint class."""
    return divmod(label, len(COLOURS))


@cache
def glyphs(split: Split) -> NDArray[np.float32]:
    """The digit images of one split as opacities, (n, 8, 8). No image is in both splits."""
    with np.load(_IMAGES) as file:
        images = file["images"].astype(np.float32) / 16.0
    order = np.random.default_rng(0).permutation(len(images))
    chosen = order[:_TEST_DIGITS] if split == "test" else order[_TEST_DIGITS:]
    # Steeper than the scan, so that strokes keep their colour when they are thin.
    return np.clip(1.4 * images[np.sort(chosen)], 0.0, 1.0)


@dataclass(frozen=True)
class Scene:
    """What is drawn, for a chunk of B clips. Positions and sizes are in pixels."""

    glyph: NDArray[np.int64]  # (B, 4) which digit image; the mover is the last
    colour: NDArray[np.int64]  # (B, 4)
    centre: NDArray[np.float32]  # (B, 4, T, 2) y, x
    size: NDArray[np.float32]  # (B, 4, T)
    camera: NDArray[np.float32]  # (B, T, 2) y, x added to everything
    texture: NDArray[np.float32]  # (B, 3, 24, 24) random numbers behind the background
    noise: NDArray[np.uint8]  # (B, T, H, W, 3) random bytes


@dataclass(frozen=True)
class DigitActions:
    """The digit-action clips of one split.

    Args:
        split: ``"train"`` or ``"test"``; they share no digit image.
        size: Number of clips; the test split's standard is the first 4,096.
        camera_jitter: Shake the camera by up to two pixels per frame.
        distractors: How many of the digits that stand still can be seen, 0 to 3.
        phase: How much of a turn apart circles begin: 1 is anywhere; with 0 all are at the top in
            the middle of the clip, so that one way leads right there and the other one left.
        seed: Another seed is another data set.
    """

    split: Split
    size: int = TEST_CLIPS
    camera_jitter: bool = False
    distractors: int = DISTRACTORS
    phase: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise ValueError(f"split={self.split!r}: use one of {', '.join(get_args(Split))}")
        if self.size < 1:
            raise ValueError(f"size={self.size}: a split needs at least one clip")
        if not 0 <= self.distractors <= DISTRACTORS:
            raise ValueError(f"distractors={self.distractors}: use 0 to {DISTRACTORS}")
        if not 0 <= self.phase <= 1:
            raise ValueError(f"phase={self.phase}: use 0 to 1")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """Clip ``index`` as frames (T, H, W, 3) and its label."""
        frames, labels = self.batch([index])
        return frames[0], int(labels[0])

    def batch(self, indices: Sequence[int]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The clips of these indices: frames (B, T, H, W, 3) and labels (B,)."""
        labels = self.labels(indices)
        frames = np.empty((len(indices), FRAMES, SIDE, SIDE, 3), dtype=np.uint8)
        for start in range(0, len(indices), _CHUNK):
            part = slice(start, start + _CHUNK)
            frames[part] = render(self.scene(indices[part]), self.split)
        return frames, labels

    def labels(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """The labels of these indices, (B,); every 80 clips in a row have each label once."""
        for index in indices:
            if not 0 <= index < self.size:
                raise IndexError(f"clip {index} of the {self.split} split: it has {self.size}")
        classes = len(CLASS_NAMES)
        blocks = [_shuffled_labels(self.seed, self.split, i // classes) for i in indices]
        labels = [block[i % classes] for block, i in zip(blocks, indices, strict=True)]
        return np.array(labels, dtype=np.int64)

    def alike(self, index: int, count: int) -> list[int]:
        """Numbers of `count` clips with one label: clip `index`, and others from `size` up.

        No two clips below `size` have any of these in common; a larger split has them.
        """
        label, classes = self.labels([index])[0], len(CLASS_NAMES)
        found, apart = [index], -(-self.size // classes)  # blocks of labels below size
        for take in range(1, count):
            block = index // classes + take * apart
            place = _shuffled_labels(self.seed, self.split, block).tolist().index(label)
            found.append(block * classes + place)
        return found

    def scene(self, indices: Sequence[int]) -> Scene:
        labels = self.labels(indices)
        scenes = [self._draw(int(i), int(label)) for i, label in zip(indices, labels, strict=True)]
        return Scene(*(np.stack(parts) for parts in zip(*scenes, strict=True)))

    def _draw(self, index: int, label: int) -> tuple[NDArray[Any], ...]:
        rng = np.random.default_rng([self.seed, _SPLITS[self.split], index])
        motion, colour = factors_of(label)
        others = rng.permutation(len(COLOURS) - 1)[:DISTRACTORS]
        colours = np.append(others + (others >= colour), colour)
        glyph = rng.integers(len(glyphs(self.split)), size=_DIGITS)
        centre = np.empty((_DIGITS, FRAMES, 2), dtype=np.float32)
        size = np.empty((_DIGITS, FRAMES), dtype=np.float32)
        centre[-1], size[-1] = _trajectory(rng, MOTIONS[motion], self.phase)
        size[:-1] = rng.uniform(14, 26, size=(DISTRACTORS, 1))
        centre[:-1] = _distractor_places(rng)[:, None]
        centre[self.distractors : -1] = -SIDE  # out of view
        camera = rng.uniform(-1, 1, size=(FRAMES, 2)) * _JITTER_PIXELS * self.camera_jitter
        texture = rng.random((3, 24, 24), dtype=np.float32)
        noise = np.frombuffer(rng.bytes(FRAMES * SIDE * SIDE * 3), dtype=np.uint8)
        noise = noise.reshape(FRAMES, SIDE, SIDE, 3)
        return glyph, colours, centre, size, camera.astype(np.float32), texture, noise


@lru_cache(maxsize=4096)
def _shuffled_labels(seed: int, split: Split, block: int) -> NDArray[np.int64]:
    rng = np.random.default_rng([seed, _SPLITS[split], block, 1])
    return rng.permutation(len(CLASS_NAMES))


def _trajectory(
    rng: np.random.Generator, motion: str, phase: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mover's centre (T, 2) as y, x and its size (T,)."""
    time = np.linspace(-0.5, 0.5, FRAMES)  # from start to end, the middle being zero
    size = np.full(FRAMES, rng.uniform(15, 25))
    if motion in ("growing", "shrinking"):
        factor = rng.uniform(1.7, 2.3) ** (time if motion == "growing" else -time)
        return np.tile(rng.uniform(14, SIDE - 14, size=2), (FRAMES, 1)), size * factor
    if motion in ("clockwise", "anticlockwise"):
        turns = rng.uniform(0.7, 1.2) * (1 if motion == "clockwise" else -1)
        begin = 0.75 + phase * (rng.uniform() - 0.75)  # y points down: 0.75 is the top
        angle = 2 * np.pi * (begin + turns * time)  # growing is clockwise
        radius = rng.uniform(8, 13)
        middle = rng.uniform(10 + radius, SIDE - 10 - radius, size=2)
        return middle + radius * np.stack([np.sin(angle), np.cos(angle)], axis=1), size
    way = rng.uniform(22, 36)
    axis = 1 if motion in ("left", "right") else 0
    sign = 1 if motion in ("right", "down") else -1
    centre = np.tile(rng.uniform(12, SIDE - 12, size=2), (FRAMES, 1))
    centre[:, axis] = rng.uniform(10 + way / 2, SIDE - 10 - way / 2) + sign * way * time
    return centre, size


def _distractor_places(rng: np.random.Generator) -> NDArray[np.float64]:
    """Centres (3, 2) in different quarters of the frame, so that all can be seen."""
    quarters = rng.permutation(4)[:DISTRACTORS]
    corner = np.stack([quarters // 2, quarters % 2], axis=1) * (SIDE / 2)
    return corner + rng.uniform(8, SIDE / 2 - 8, size=(DISTRACTORS, 2))


def _stretch(
    centre: NDArray[np.float32], size: NDArray[np.float32], cells: int
) -> NDArray[np.float32]:
    """Weights (..., 64, cells) that sample ``cells`` values over ``size`` pixels, bilinearly."""
    pixel = np.arange(SIDE, dtype=np.float32)
    position = (pixel - centre[..., None]) / size[..., None] * cells + (cells - 1) / 2
    cell = np.arange(cells, dtype=np.float32)
    weights = np.maximum(np.float32(0), 1 - np.abs(position[..., None] - cell))
    return weights.astype(np.float32, copy=False)


def _opacity(
    glyph: NDArray[np.float32], centre: NDArray[np.float32], size: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Digit images (..., 8, 8) drawn at a place and a size: (..., 64, 64)."""
    rows = _stretch(centre[..., 0], size, _GLYPH)
    columns = _stretch(centre[..., 1], size, _GLYPH)
    opacity: NDArray[np.float32] = np.matmul(rows @ glyph, columns.swapaxes(-1, -2))
    return opacity


def _background(texture: NDArray[np.float32], camera: NDArray[np.float32]) -> NDArray[np.float32]:
    """A cloudy, faintly tinted texture seen by the camera: (B, T, 64, 64, 3)."""
    coarse, fine = texture[:, :, :6, :6] - 0.5, texture[:, :, 6:, 6:] - 0.5
    middle = camera + np.float32((SIDE - 1) / 2)  # (B, T, 2)
    span = np.full(middle.shape[:2], SIDE + 12, dtype=np.float32)
    layers = []
    for cells in (coarse, fine):
        rows = _stretch(middle[..., 0], span, cells.shape[-1])[:, :, None]
        columns = _stretch(middle[..., 1], span, cells.shape[-1])[:, :, None]
        layers.append(rows @ cells[:, None] @ columns.swapaxes(-1, -2))  # (B, T, 3, 64, 64)
    clouds, grain = layers
    grey = 80 * clouds[:, :, :1] + 50 * grain[:, :, :1]
    tint = 25 * clouds + 15 * grain
    level = 90 + 40 * texture[:, 0, 0, 0]
    return np.moveaxis(level[:, None, None, None, None] + grey + tint, 2, -1)


@cache
def _noise_of_byte() -> NDArray[np.float32]:
    """The 256 quantiles of a Gaussian: a random byte becomes noise by one look-up."""
    gaussian = NormalDist(sigma=6.0)  # grey levels
    return np.array([gaussian.inv_cdf((byte + 0.5) / 256) for byte in range(256)], np.float32)


def render(scene: Scene, split: Split) -> NDArray[np.uint8]:
    """Draw the scenes: frames (B, T, 64, 64, 3)."""
    moving_camera = bool(scene.camera.any())
    seen = slice(None) if moving_camera else slice(0, 1)  # still parts are drawn once
    camera = scene.camera[:, seen]
    picture = _background(scene.texture, camera)
    for digit in range(_DIGITS):
        times = slice(None) if digit == _DIGITS - 1 else seen
        glyph = glyphs(split)[scene.glyph[:, digit]][:, None]  # (B, 1, 8, 8)
        centre = scene.centre[:, digit, times] + camera
        opacity = _opacity(glyph, centre, scene.size[:, digit, times])[..., None]
        colour = _PALETTE[scene.colour[:, digit]][:, None, None, None]
        picture = picture + opacity * (colour - picture)
    picture += _noise_of_byte()[scene.noise]
    np.clip(picture, 0, 255, out=picture)
    return picture.astype(np.uint8)


LIST = "{split}.txt"
CLASSES = "classes.txt"
_LOSSLESS = {"qp": "0", "preset": "fast"}


def check_target(split: str, out: str | Path, crf: int | None) -> None:
    """Refuse what `write_videos` cannot do, before anything is written."""
    if crf is not None and not 0 <= crf <= 51:
        raise ValueError(f"crf={crf}: H.264 knows 0 (best) to 51; leave it out for lossless files")
    folder = Path(out) / split
    if any(folder.glob("*.mp4")):
        raise FileExistsError(
            f"{folder} has clips already, which would be mixed up with the new ones: use another "
            f"folder, or remove it first"
        )


def write_videos(
    data: DigitActions, out: str | Path, *, crf: int | None = None, takes: int = 1
) -> Iterator[Path]:
    """Write every clip as an MP4 file, yielding each as it is done.

    `out` gets a folder per split, the list ``train.txt`` or ``test.txt`` with a line ``path label``
    per clip (paths relative to `out`), and ``classes.txt`` with the class names in label order. The
    list is written last: where it is, all of its clips are.

    `crf` is H.264's quality, as most videos have it: 18 is good, more is worse. None writes
    lossless RGB, so that the files' pixels are the generator's, bit for bit. A video is `takes`
    clips, one after the other: the clip itself, then others of its label.
    """
    from sta.video.encode import write_video

    check_target(data.split, out, crf)
    out = Path(out)
    (out / data.split).mkdir(parents=True, exist_ok=True)
    codec = "libx264rgb" if crf is None else "libx264"
    options = _LOSSLESS if crf is None else {"crf": str(crf)}
    lines = []
    every = replace(data, size=(takes + 1) * (len(data) + len(CLASS_NAMES)))  # has all the takes
    for index in range(len(data)):
        frames, labels = every.batch(data.alike(index, takes))
        name = f"{data.split}/{index:06d}.mp4"
        film = np.concatenate(frames)
        yield write_video(out / name, film, codec=codec, fps=8, options=options)
        lines.append(f"{name} {labels[0]}\n")
    (out / CLASSES).write_text("".join(f"{name}\n" for name in CLASS_NAMES))
    (out / LIST.format(split=data.split)).write_text("".join(lines))
