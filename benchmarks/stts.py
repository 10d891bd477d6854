"""STTS, trained, against STA, without training: one backbone, the same GFLOPs and fewer.

    python benchmarks/stts.py --out runs/stts [--model swin-digits] [--r 1 2 4] [--clips 8192]

For each r, STTS is trained from the model's weights (`OUT/rN`, by the loop of `sta train`). Then
all see the same test clips, so that differences to STTS are paired:

- STTS, on the weights that were trained with it;
- STA and random dropping on the model as it was, at STTS's GFLOPs or just below, and at --shares;
- STA on the weights that were trained with STTS: what the training itself brings;
- the model as it was, unpruned.

Run again, it goes on where it was stopped: in the middle of a training, or after the last answers.
Writes `OUT/stts.csv` and a table. Videos instead of digits: --data TRAIN --test TEST.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

import sta
from sta.backbones.copies import meta_copy, shared_copy
from sta.backbones.zoo.video_model import VideoModel, fingerprint, load_video_model
from sta.measure.matching import CostCurve
from sta.measure.stats import paired_difference, wilson
from sta.methods import make_config, r_of
from sta.train import TrainConfig
from sta.train.accuracy import answers
from sta.train.clips import Clips, FileClips
from sta.train.loop import train
from sta.video.digits import DigitActions


class Entrant(NamedTuple):
    """One setting: its name, the r of the STTS that it is compared with, weights and method."""

    name: str
    against: int
    model: nn.Module
    config: sta.Config | None


def clips_of(name: str, opened: VideoModel, size: int, *, training: bool) -> Clips:
    """Digit actions, or the videos that a name stands for."""
    if name == "digits":
        return DigitActions("train" if training else "test", size=size)
    return FileClips(name, opened.clip.views, opened.class_names, training=training)


def trained(options: argparse.Namespace, r: int) -> VideoModel:
    """The model trained with STTS; continued where it was stopped."""
    folder = Path(options.out) / f"r{r}"
    opened = load_video_model(options.model)
    clips = clips_of(options.data, opened, options.clips, training=True)
    config = TrainConfig(
        epochs=options.epochs,
        warmup_epochs=0.1 * options.epochs,
        batch=options.batch,
        base_rate=options.rate,
        label_smoothing=0,
        mixup=0,
        cutmix=0,
        randaugment=0,
        repeats=1,
        flip=0,
        colour=False,
        clip_norm=1.0,
        method="stts",
        r=r,
        save_every=options.save_every,
    )
    train(opened, clips, config, folder)
    return load_video_model(str(folder / "model"))


def gflops_of(opened: VideoModel, model: nn.Module, config: sta.Config | None) -> float:
    copied = meta_copy(model)
    return sta.gflops(copied if config is None else sta.apply(copied, config), opened.clip.shape())


def entrants(options: argparse.Namespace, base: VideoModel) -> Iterator[Entrant]:
    """All settings; every r of STTS comes first of its own."""
    sharp = {"fill": "clip", "temperature": options.temperature}
    makers: dict[str, Callable[[int], sta.Config]] = {
        "sta": lambda r: sta.STAConfig(r=r, **sharp),
        "random": lambda r: sta.RandomConfig(r=r, fill="clip"),
    }
    curves = {
        name: CostCurve(lambda r, make=make: gflops_of(base, base.model, make(r)))
        for name, make in makers.items()
    }
    for r in options.r:
        learned = trained(options, r)
        stts = make_config("stts", r)
        yield Entrant("stts", r, learned.model, stts)
        yield Entrant("unpruned", r, base.model, None)
        target = gflops_of(base, learned.model, stts)
        for share in (1.0, *options.shares):
            for name, make in makers.items():
                if (found := curves[name].within(share * target)) is None:
                    continue  # no r is as cheap as that
                yield Entrant(f"{name} at {share:.0%}", r, base.model, make(found))
                if name == "sta" and share == 1.0:
                    yield Entrant("sta, STTS's weights", r, learned.model, make(found))


def right(
    options: argparse.Namespace, opened: VideoModel, clips: Clips, one: Entrant
) -> NDArray[np.bool_]:
    """Which test clips are answered rightly; kept in a file, so that each is run once."""
    about = {
        "weights": fingerprint(one.model),
        "config": one.config and [one.config.method, asdict(one.config)],
        "test": [options.test, len(clips)],
    }
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    file = Path(options.out) / "answers" / f"{key}.npy"
    if file.is_file():
        return np.load(file)
    model = shared_copy(one.model).eval()
    if one.config is not None:
        sta.apply(model, one.config)
    found = [
        (logits.argmax(-1) == labels).numpy()
        for logits, labels, _ in answers(
            model, opened.clip, clips, range(len(clips)), batch=options.batch
        )
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    partial_file = file.with_suffix(".partial.npy")
    np.save(partial_file, np.concatenate(found))
    partial_file.rename(file)
    return np.load(file)


def measure(options: argparse.Namespace) -> list[dict[str, object]]:
    base = load_video_model(options.model)
    clips = clips_of(options.test, base, options.test_clips, training=False)
    rows: list[dict[str, object]] = []
    rival: NDArray[np.bool_] = np.zeros(0, dtype=bool)
    for one in entrants(options, base):
        hits = right(options, base, clips, one)
        if one.name == "stts":
            rival = hits
        total, ahead = len(hits), int((hits & ~rival).sum())
        behind = int((rival & ~hits).sum())
        low, high = wilson(int(hits.sum()), total)
        worse, better = paired_difference(ahead, behind, total)
        rows.append(
            {
                "stts_r": one.against,
                "method": one.name,
                "r": r_of(one.config),
                "gflops": gflops_of(base, one.model, one.config),
                "clips": total,
                "top1": float(hits.mean()),
                "top1_low": low,
                "top1_high": high,
                "to_stts": (ahead - behind) / total,
                "to_stts_low": worse,
                "to_stts_high": better,
            }
        )
    return rows


def table(rows: list[dict[str, object]]) -> Table:
    out = Table(
        "STTS's r", "method", "r", "GFLOPs", "top-1, %", "to STTS, points", title="STTS and STA"
    )
    for row in rows:
        points = {k: 100 * v for k, v in row.items() if isinstance(v, float)}
        own = "{top1:.1f} ({top1_low:.1f} to {top1_high:.1f})".format(**points)
        to_it = "{to_stts:+.1f} ({to_stts_low:+.1f} to {to_stts_high:+.1f})".format(**points)
        out.add_row(
            *(str(row[name]) for name in ("stts_r", "method", "r")),
            f"{row['gflops']:.3f}",
            own,
            "-" if row["method"] == "stts" else to_it,
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="folder of the runs and answers")
    parser.add_argument("--model", default="swin-digits")
    parser.add_argument("--r", type=int, nargs="+", default=[1, 2, 4], help="frames STTS drops")
    parser.add_argument("--data", default="digits", help="to train on")
    parser.add_argument("--test", default="digits")
    parser.add_argument("--clips", type=int, default=8192, help="training clips of digits")
    parser.add_argument("--test-clips", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3, help="at 256 clips per step")
    parser.add_argument("--save-every", type=int, default=25, help="steps between checkpoints")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.85], help="of its GFLOPs")
    parser.add_argument("--temperature", type=float, default=0.1, help="STA's")
    options = parser.parse_args()
    rows = measure(options)
    with (Path(options.out) / "stts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    Console(width=120).print(table(rows))


if __name__ == "__main__":
    main()
