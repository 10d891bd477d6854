"""Lists of the real data sets, split so that nobody is on both sides.

    python benchmarks/real/splits.py FOLDER --out lists

`FOLDER` holds `lsa64.txt`, `gestures.txt` and `arid.txt` with `path label` lines. LSA64 is split by
signer, the gestures by day, ARID by group: `NAME-train.txt` and `NAME-val.txt`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

#: Whether a clip is for choosing, by the parts of its name between underscores; never for training.
HELD_OUT: dict[str, Callable[[list[str]], bool]] = {
    "lsa64": lambda parts: parts[1] in ("007", "008"),  # signers
    "gestures": lambda parts: parts[1] == "20180907",  # a day
    "arid": lambda parts: parts[1] in ("1", "4", "9", "13"),  # groups
}

CLASS_NAMES = {
    "lsa64": tuple(f"sign {number:03d}" for number in range(1, 65)),
    "gestures": ("left swipe", "right swipe", "stop", "thumbs down", "thumbs up"),
    "arid": (
        "drink",
        "jump",
        "pick",
        "pour",
        "push",
        "run",
        "sit",
        "stand",
        "turn",
        "walk",
    ),
}


def held_out(name: str, path: str) -> bool:
    """Whether a clip of a data set is for choosing."""
    return HELD_OUT[name](Path(path).stem.split("_"))


def write_lists(folder: Path, out: Path) -> dict[str, int]:
    """`NAME-train.txt` and `NAME-val.txt` of the data sets that are there; clips of each."""
    out.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name in HELD_OUT:
        if not (folder / f"{name}.txt").exists():
            continue
        lines = (folder / f"{name}.txt").read_text().splitlines()
        for part, wanted in (("train", False), ("val", True)):
            chosen = [line for line in lines if held_out(name, line.rsplit(" ", 1)[0]) == wanted]
            (out / f"{name}-{part}.txt").write_text("\n".join(chosen) + "\n")
            counts[f"{name}-{part}"] = len(chosen)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for name, count in write_lists(options.folder, options.out).items():
        print(f"{name}: {count} clips")


if __name__ == "__main__":
    main()
