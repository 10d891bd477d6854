"""What each part of Ward merging brings: divergence from the unpruned model at the same GFLOPs.

    python benchmarks/ward.py [FOLDER] [--clips 48]

On clips of the training sets, which no table of accuracies has: digits, and with FOLDER, which
real/splits.py describes, real video. Writes docs/results/ward.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks/real"))

import numpy as np
from splits import write_lists

import sta
from sta.backbones.zoo.video_model import VideoModel
from sta.core.merge import clip_deviation, merge_best, ward_cost
from sta.measure.matching import match_gflops
from sta.methods import Choice, Site
from sta.tuning.fidelity import FidelityMeter
from sta.video.clips import load_clips

MODELS = {"vit-digits": "digits", "vit-lsa64": "lsa64", "vit-gestures": "gestures"}
SAVED = (0.5, 0.65)


@dataclass(frozen=True)
class Variant(sta.WardConfig):
    """Ward merging without one of its parts."""

    keys: bool = False
    sizes: bool = True
    deviation: bool = True
    falling: bool = True

    def merges(self, r: int, frames: int, blocks: int) -> list[int]:
        found = super().merges(r, frames, blocks)
        return found if self.falling else [round(sum(found) / blocks)] * blocks

    @property
    def similarity(self) -> str | None:  # type: ignore[override]
        return "key" if self.keys else None

    def choose(self, site: Site) -> Choice:
        x = site.features("key") if self.keys else site.tokens
        cost, match = ward_cost(x, site.sizes if self.sizes else None).min(-1)
        if self.deviation:
            cost = cost * clip_deviation(site.tokens)
        return Choice(*merge_best(-cost, match, site.drop, x.shape[1]))


VARIANTS = {
    "Ward": {},
    "keys instead of tokens": {"keys": True},
    "without sizes": {"sizes": False},
    "without the deviation": {"deviation": False},
    "as many in every block": {"falling": False},
    "attention without sizes": {"proportional": False},
}


def clips_of(name: str, data: str, opened: VideoModel, options: argparse.Namespace) -> np.ndarray:
    """Clips of the training set, drawn with a fixed seed."""
    if data == "digits":
        found, _ = load_clips("digits", opened.clip.views, 2 * options.clips, split="train")
        return found
    lists = ROOT / "out/ward"
    write_lists(options.folder, lists)
    lines = (lists / f"{data}-train.txt").read_text().splitlines()
    chosen = np.random.default_rng(1).permutation(len(lines))[: options.clips]
    part = lists / f"{name}.txt"
    part.write_text("".join(f"{lines[i]}\n" for i in chosen))
    found, _ = load_clips(str(part), opened.clip.views, options.clips, root=str(options.folder))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="real clips and their lists")
    parser.add_argument("--clips", type=int, default=48, help="of real video; twice of digits")
    options = parser.parse_args()
    rows = []
    for name, data in MODELS.items():
        if data != "digits" and options.folder is None:
            continue
        folder = ROOT / "benchmarks/real/weights" / name
        opened = VideoModel.open(name if data == "digits" else folder)
        measure = FidelityMeter(opened, clips_of(name, data, opened, options))
        shape = opened.clip.shape()
        unpruned = sta.gflops(opened.model, shape)
        makers = {title: lambda r, how=how: Variant(r=r, **how) for title, how in VARIANTS.items()}
        makers["ToMe"] = lambda r: sta.ToMeConfig(r=r)
        for saved in SAVED:
            for title, make in makers.items():
                config = match_gflops(opened.model, shape, (1 - saved) * unpruned, make)
                cost = sta.gflops(sta.apply(opened.model, config), shape)
                sta.remove(opened.model)
                found = measure(config)
                row = {"model": name, "saved": saved, "variant": title, "r": config.r}
                row |= {"gflops": cost, "kl": found.kl, "agree": found.agree, "clips": found.clips}
                rows.append(row)
                print(f"{name} -{1 - cost / unpruned:.1%} {title}: KL {found.kl:.2g}", flush=True)
    (ROOT / "docs/results/ward.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
