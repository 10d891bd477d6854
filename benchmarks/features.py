"""Features of fewer tokens: how far from the unpruned model's, and what retrieval loses.

    python benchmarks/features.py [FOLDER] [--models vit-digits vit-lsa64 ...]

Writes docs/results/features.json and the tables of docs/features.md. `FOLDER` holds the real videos
and their lists, as `benchmarks/real/splits.py` takes them; without it, models of digits alone.

The error is that of dense features of the whole model (all places of the grid) against the unpruned
model's, as a share of those features' variance, with dropped places filled by the nearest kept
token (or the one that they were merged into) or by what changed around them; at three r of
`sta.STAConfig(r)`. Retrieval finds the nearest neighbours of each clip by the cosine of pooled
features; a hit has the same label. Clips of the same signer (LSA64) or hour (gestures) are left out
of a clip's gallery, and so is the clip itself. Real clips are of the held-out split.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import sta
from sta.backbones.encode import encode
from sta.backbones.zoo.video_model import VideoModel, load_video_model
from sta.measure.matching import match_gflops
from sta.measure.stats import bootstrap, wilson
from sta.methods import r_of
from sta.video.decode import read_views
from sta.video.digits import DigitActions

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
WEIGHTS = HERE / "real/weights"
sys.path.insert(0, str(HERE / "real"))

from splits import held_out

BATCH = 8
#: Shares of the unpruned model's GFLOPs that are measured.
SHARES = (0.75, 0.62, 0.5)
DIGITS = ("vit-digits", "swin-digits")
REAL = ("vit-lsa64", "vit-gestures")
#: What clips of one gallery have in common with a query that is not to find them, by their names.
APART: dict[str, Callable[[list[str]], str]] = {
    "lsa64": lambda parts: parts[1],  # signer
    "gestures": lambda parts: parts[2],  # hour
}
#: Clips that are looked at, by their names.
TAKEN: dict[str, Callable[[list[str]], bool]] = {
    "lsa64": lambda parts: int(parts[2]) <= 2,  # repetitions
    "gestures": lambda parts: True,
}


@dataclass
class Clips:
    """Clips of a model's data, in an order that has nothing to do with their classes.

    Attributes:
        frames: (n, T, H, W, 3).
        labels: (n,).
        groups: Clips of one group do not find each other, (n,).
    """

    frames: NDArray[np.uint8]
    labels: NDArray[np.int64]
    groups: NDArray[Any]


def digit_clips(count: int) -> Clips:
    frames, labels = DigitActions("test").batch(range(count))
    return Clips(frames, np.asarray(labels), np.arange(count))


def real_clips(opened: VideoModel, folder: Path, data: str) -> Clips:
    """The held-out clips of a real data set."""
    lines = [line.rsplit(" ", 1) for line in (folder / f"{data}.txt").read_text().splitlines()]
    parts = {path: Path(path).stem.split("_") for path, _ in lines}
    lines = [line for line in lines if held_out(data, line[0]) and TAKEN[data](parts[line[0]])]
    np.random.default_rng(0).shuffle(lines)
    view = opened.clip.views.with_views("1x1")
    frames = [read_views(str(folder / path), view).clips()[0] for path, _ in lines]
    groups = [APART[data](parts[path]) for path, _ in lines]
    return Clips(np.stack(frames), np.array([int(label) for _, label in lines]), np.array(groups))


def features(opened: VideoModel, frames: NDArray[np.uint8], **options: Any) -> torch.Tensor:
    """Features of clips, in batches."""
    with torch.inference_mode():
        parts = [
            encode(opened.model, opened.clip.pixels(frames[at : at + BATCH]), **options)
            for at in range(0, len(frames), BATCH)
        ]
    return torch.cat(parts)


def fill_errors(opened: VideoModel, frames: NDArray[np.uint8]) -> list[dict[str, Any]]:
    """Error of dense features at three r, for both ways to fill."""
    full = features(opened, frames, dense=True)
    variance = full.var(dim=(0, 1, 2)).sum()
    shape, stock = opened.clip.shape(), sta.gflops(opened.model, opened.clip.shape())
    rows = []
    for share in SHARES:
        config = match_gflops(opened.model, shape, share * stock, "sta")
        sta.apply(opened.model, config)
        row = {"r": r_of(config), "gflops": sta.gflops(opened.model, shape) / stock}
        for fill in ("nearest", "delta"):
            found = features(opened, frames, dense=True, fill=fill)
            errors = (found - full).square().sum(-1).mean(dim=(1, 2)) / variance  # per clip
            row[fill] = [float(errors.mean()), *bootstrap(errors.tolist(), bounds=(0, np.inf))]
        rows.append(row)
        sta.remove(opened.model)
    return rows


def hits(vectors: NDArray[np.float32], clips: Clips, count: int) -> NDArray[np.bool_]:
    """Whether one of a clip's `count` nearest neighbours of other groups has its label."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = unit @ unit.T
    likeness[clips.groups[:, None] == clips.groups] = -np.inf
    nearest = np.argsort(-likeness, axis=1)[:, :count]
    found: NDArray[np.bool_] = (clips.labels[nearest] == clips.labels[:, None]).any(1)
    return found


def retrieval(opened: VideoModel, clips: Clips) -> dict[str, Any]:
    """Recall at 1 and 5, unpruned and at half the GFLOPs, on the same clips."""
    shape, stock = opened.clip.shape(), sta.gflops(opened.model, opened.clip.shape())
    config = match_gflops(opened.model, shape, stock / 2, "sta")
    before = features(opened, clips.frames).numpy()
    sta.apply(opened.model, config)
    after = features(opened, clips.frames).numpy()
    made: dict[str, Any] = {
        "r": r_of(config),
        "gflops": sta.gflops(opened.model, shape) / stock,
        "clips": len(clips.labels),
        "labels": len(set(clips.labels.tolist())),
    }
    sta.remove(opened.model)
    for count in (1, 5):
        full, half = (hits(vectors, clips, count) for vectors in (before, after))
        for name, right in (("unpruned", full), ("half", half)):
            share = [float(right.mean()), *wilson(int(right.sum()), len(right))]
            made.setdefault(name, {})[f"recall@{count}"] = share
        paired = (half.astype(float) - full).tolist()
        made.setdefault("difference", {})[f"recall@{count}"] = bootstrap(paired)
    return made


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All of one model."""
    if name in DIGITS:
        opened = load_video_model(name)
        swin = opened.family == "swin"
        clips = digit_clips(options.retrieval or (240 if swin else 400))
        count = options.clips or (24 if swin else 64)
    else:
        opened = VideoModel.open(WEIGHTS / name)
        clips = real_clips(opened, options.folder, next(data for data in APART if data in name))
        count = options.clips or 32
    config = asdict(sta.STAConfig())
    return {
        "config": {key: value for key, value in config.items() if key not in ("r", "seed")},
        "error_clips": count,
        "errors": fill_errors(opened, clips.frames[:count]),
        "retrieval": retrieval(opened, clips),
    }


def error_table(models: dict[str, Any]) -> Iterable[str]:
    yield "| | r | GFLOPs | nearest | delta |"
    yield "|---|--:|--:|--:|--:|"
    for name, found in models.items():
        title = f"`{name}`, {found['error_clips']} clips"
        for row in found["errors"]:
            cells = ["{:.3f} ({:.3f} to {:.3f})".format(*row[f]) for f in ("nearest", "delta")]
            yield f"| {title} | {row['r']} | {less(row)} | {' | '.join(cells)} |"
            title = ""


def retrieval_table(models: dict[str, Any]) -> Iterable[str]:
    yield "| | | GFLOPs | recall@1 | recall@5 |"
    yield "|---|---|--:|--:|--:|"
    for name, model in models.items():
        found = model["retrieval"]
        whole, half, paired = (found[part] for part in ("unpruned", "half", "difference"))
        cells = [percent(whole[f"recall@{count}"]) for count in (1, 5)]
        about = f"`{name}`, {found['clips']} clips, {found['labels']} labels"
        yield f"| {about} | unpruned | | {' | '.join(cells)} |"
        cells = []
        for key in ("recall@1", "recall@5"):
            low, high = paired[key]
            cells.append(f"{percent(half[key])}; {100 * low:+.1f} to {100 * high:+.1f}")
        yield f"| | STA, r={found['r']} | {less(found)} | {' | '.join(cells)} |"


def less(row: dict[str, Any]) -> str:
    return f"-{100 * (1 - row['gflops']):.0f} %"


def percent(share: list[float]) -> str:
    mean, low, high = (100 * value for value in share)
    return f"{mean:.1f} % ({low:.1f} to {high:.1f})"


def put(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace a table of a page, which stands between two comments."""
    start, end = f"<!-- table: {name} -->\n", "<!-- end of table -->"
    before, rest = page.read_text().split(start)
    page.write_text(f"{before}{start}\n" + "\n".join(lines) + f"\n\n{end}" + rest.split(end, 1)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="real videos and their lists")
    parser.add_argument("--models", nargs="+", choices=(*DIGITS, *REAL))
    parser.add_argument("--clips", type=int, help="for errors; by model without")
    parser.add_argument("--retrieval", type=int, help="clips of digits; by model without")
    parser.add_argument("--tables", action="store_true", help="write them again; measure nothing")
    options = parser.parse_args()
    names = options.models or (*DIGITS, *(REAL if options.folder else ()))
    if options.folder is None and any(name in REAL for name in names):
        parser.error("models of real video need FOLDER, which holds their clips")
    file = DOCS / "results/features.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    for name in () if options.tables else names:
        known[name] = measure(name, options)
        print(name, json.dumps(known[name]["retrieval"]), flush=True)
        known = {name: known[name] for name in (*DIGITS, *REAL) if name in known}
        file.write_text(json.dumps(known, indent=1) + "\n")
    put(DOCS / "features.md", "errors", error_table(known))
    put(DOCS / "features.md", "retrieval", retrieval_table(known))


if __name__ == "__main__":
    main()
