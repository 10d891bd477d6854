"""Digit actions as real video files, with a Kinetics-style list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from sta.video.digits import CLASS_NAMES, DigitActions
from sta.video.encode import write_video

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
