"""Measure the models of real video; what docs/results.md shows of it comes from these files.

    python benchmarks/real/measure.py FOLDER [--models vit-lsa64 ...] [--only compare controls]

`FOLDER` holds the clips and their lists, as `splits.py` takes them. Per model, into
docs/results/real: `MODEL.json`, methods at the GFLOPs of STA with r = 32, 48, 64 of 196 tokens, on
the held-out clips; `MODEL-controls.json`, the unpruned model on single and shuffled frames;
`MODEL-ablations.json`, for one model. A run that was stopped goes on with the rows in out/real.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import variants
from splits import HELD_OUT, write_lists

import sta
from sta.backbones.zoo.video_model import VideoModel

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "out/real"
OUT = ROOT / "docs/results/real"
#: Drops per frame as a share of the tokens: of the paper's ViTs, 196, and of its Swins, 784.
DROPS = {"vit": (32 / 196, 48 / 196, 64 / 196), "swin": (192 / 784, 256 / 784, 320 / 784)}
METHODS = ("sta", "paper", "released", "random", "tome", "frame-difference")
PARTS = ("compare", "controls", "ablations")


class Data:
    """The held-out clips of a data set, in the variants that are asked for."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    @property
    def list(self) -> Path:
        """Of the held-out clips."""
        write_lists(self.folder, WORK / "lists")
        return WORK / f"lists/{self.name}-val.txt"

    def seen(self, variant: str) -> tuple[Path, Path | None]:
        """What `sta eval` takes, and its root; "still" are the files themselves."""
        if variant == "still":
            return self.list, self.folder
        cache = WORK / f"{self.name}-val"
        if not (cache / "index.json").exists():
            words = ["data", "cache", self.list, "--root", self.folder, "--out", cache]
            words += ["--size", 128, "--frames", 32]
            subprocess.run([sys.executable, "-m", "sta", *map(str, words)], check=True)
        changed = WORK / f"{self.name}-val-{variant}"
        if not changed.exists():
            variants.make(cache, changed, variant)
        return changed, None


def saved_by(opened: VideoModel) -> list[float]:
    """Shares of GFLOPs that STA saves with the paper's drops, in proportion to the tokens."""
    shape = opened.clip.shape()
    costs = []
    for share in (0.0, *DROPS[opened.family]):
        config = sta.STAConfig(r=round(share * opened.frame_tokens[0]))
        costs.append(sta.gflops(sta.apply(opened.model, config), shape))
        sta.remove(opened.model)
    return [1 - cost / costs[0] for cost in costs[1:]]


def write(name: str, content: Any) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def compare(model: str, data: Data, options: argparse.Namespace) -> None:
    folder = options.weights / model
    variant = "moving" if model.endswith("-camera") else "still"
    source, root = data.seen(variant)
    result = sta.compare(
        source,
        folder,
        methods=options.methods,
        saved=saved_by(VideoModel.open(folder)),
        root=root,
        out=WORK / "rows" / model,
        batch_size=options.batch_size,
        rounds=options.rounds,
        clips=options.clips,
    )
    content = result.to_dict()
    for row in content["rows"]:  # no place of this machine
        row |= {"model": model, "data": f"{data.name}, {variant} camera"}
    write(model, content)
    print(result)


def controls(model: str, data: Data, options: argparse.Namespace) -> None:
    rows = []
    for variant in ("single", "shuffled"):
        source, root = data.seen(variant)
        found = sta.evaluate(
            source, options.weights / model, root=root, batch_size=options.batch_size
        )
        rows.append({"control": variant, **found.records()[0]})
        print(model, variant, f"{rows[-1]['top1']:.1%} of {rows[-1]['clips']}")
    write(f"{model}-controls", rows)


def ablations(model: str, data: Data, options: argparse.Namespace) -> None:
    source, root = data.seen("still")
    result = sta.ablate(
        model=str(options.weights / model),
        data=str(source),
        root=str(root),
        r=options.ablate_r,
        clips=options.clips,
        batch_size=options.batch_size,
        out=WORK / f"{model}-ablations.jsonl",
        resume=(WORK / f"{model}-ablations.jsonl").exists(),
    )
    write(f"{model}-ablations", {**result.report, "model": model, "data": data.name})
    print(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="clips and lists")
    parser.add_argument("--weights", type=Path, default=HERE / "weights")
    parser.add_argument("--models", nargs="+", help="folders of --weights; all without")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS[:2])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--ablate-r", type=int, default=64)
    parser.add_argument("--clips", type=int, help="the first ones; all without")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5, help="of timing; 0: none")
    options = parser.parse_args()
    names = options.models or sorted(path.parent.name for path in options.weights.glob("*/*.json"))
    for model in dict.fromkeys(name for name in names if not name.endswith("-coarse")):
        data = Data(options.folder, next(name for name in HELD_OUT if name in model))
        for part in options.only:
            globals()[part](model, data, options)


if __name__ == "__main__":
    main()
