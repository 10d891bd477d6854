"""STTS, trained, against STA, without training: one backbone, STTS's GFLOPs and fewer.

    python benchmarks/stts.py --out runs/stts [--model swin-digits] [--r 1 2] [--clips 6144]

For each r, STTS is trained from the model's weights (`OUT/rN`, by the loop of `sta train`). Then
`sta.compare` runs Ward merging, STA and random dropping on the model as it was, and STTS on the
weights that were trained with it, on the same test clips: differences to STTS are paired. Run
again, it goes on where it was stopped, in the middle of a training or of the test clips. Writes a
table and docs/results/compare/stts.json (--json). Videos instead of digits: --data TRAIN --test
TEST.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import sta
from sta.backbones.copies import meta_copy
from sta.backbones.zoo.video_model import VideoModel, load_video_model
from sta.measure.stats import paired_difference
from sta.train import TrainConfig
from sta.train.clips import Clips, FileClips
from sta.train.loop import train
from sta.video.digits import DigitActions

ROOT = Path(__file__).resolve().parents[1]
Hits = dict[tuple[str, int], dict[str, bool]]


def training_clips(options: argparse.Namespace, opened: VideoModel) -> Clips:
    """Digit actions, or the videos that a name stands for."""
    if options.data == "digits":
        return DigitActions("train", size=options.clips, seed=2)  # none that the model has seen
    return FileClips(options.data, opened.clip.views, opened.class_names, training=True)


def trained(options: argparse.Namespace, r: int) -> Path:
    """The folder of the model trained with STTS; continued where it was stopped."""
    folder = Path(options.out) / f"r{r}"
    opened = load_video_model(options.model)
    config = TrainConfig(
        epochs=options.epochs,
        warmup_epochs=0.1 * options.epochs,
        batch=options.batch_size,
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
        precision="bf16" if options.bfloat16 else "no",
        save_every=options.save_every,
    )
    train(opened, training_clips(options, opened), config, folder)
    return folder / "model"


def cost_of_stts(model: Path, r: int) -> float:
    """STTS's GFLOPs as a share of the unpruned model's."""
    opened = load_video_model(str(model))
    skeleton, shape = meta_copy(opened.model), opened.clip.shape()
    unpruned = sta.gflops(skeleton, shape)
    return sta.gflops(sta.apply(skeleton, sta.STTSConfig(r=r)), shape) / unpruned


def hits(rows: Path) -> Hits:
    """Which test clips are answered rightly, by method and r."""
    found: Hits = {}
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        if row.get("error") is None and "classes" in row:
            own = found.setdefault((row["method"], row["r"]), {})
            own[row["path"]] = row["classes"][0] == row["label"]
    return found


def measure(options: argparse.Namespace, r: int) -> list[dict[str, Any]]:
    """STTS with one r, and what it is compared with."""
    learned = trained(options, r)
    cost = cost_of_stts(learned, r)
    out = Path(options.out) / f"r{r}-rows"
    found: list[tuple[dict[str, Any], Hits]] = []
    own = {"sta, even": sta.STAConfig(schedule="even", fill="clip")}
    for model in (options.model, str(learned)):
        rival = model != options.model
        result = sta.compare(
            options.test,
            model,
            methods=["stts"] if rival else ["ward", "sta", "random"],
            configs={} if rival else own,
            saved=[1 - cost] if rival else [1 - share * cost for share in options.shares],
            seeds=1 if rival else 3,
            clips=options.test_clips,
            out=out,
            batch_size=options.batch_size,
            rounds=options.rounds,
        )
        source = Path(options.test).stem
        answered = hits(out / f"{Path(model).name}-{source}.jsonl")
        weights = "trained with STTS" if rival else "as it was"
        found += [({**row, "model": weights, "stts_r": r}, answered) for row in result.rows]
    theirs = found[-1][1]["stts", r]
    rows = []
    for row, answered in found:
        name = row["method"], row["r"]
        if name[0] == "stts" and name[1] != r:
            continue  # it was not trained for that
        pairs = [(right, theirs[path]) for path, right in answered[name].items() if path in theirs]
        ahead = sum(right and not other for right, other in pairs)
        behind = sum(other and not right for right, other in pairs)
        low, high = paired_difference(ahead, behind, len(pairs))
        row |= {"to_stts": (ahead - behind) / len(pairs)}
        rows.append({**row, "to_stts_low": low, "to_stts_high": high})
    # Two budgets may come to the same r.
    return list({(row["model"], row["method"], row["r"]): row for row in rows}.values())


def table(rows: list[dict[str, Any]]) -> Table:
    heads = ("STTS's r", "weights", "method", "r", "GFLOPs", "speed-up", "top-1, %")
    out = Table(*heads, "to STTS, points", title="STTS and STA")
    for row in rows:
        points = {k: 100 * v for k, v in row.items() if isinstance(v, float)}
        top1 = "{top1:.1f} ({top1_low:.1f} to {top1_high:.1f})".format(**points)
        to_it = "{to_stts:+.1f} ({to_stts_low:+.1f} to {to_stts_high:+.1f})".format(**points)
        faster = "-" if row["speedup"] is None else f"{row['speedup']:.2f}x"
        names = (str(row[name]) for name in ("stts_r", "model", "method", "r"))
        out.add_row(*names, f"{row['gflops']:.3f}", faster, top1, to_it)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="folder of the runs and their rows")
    parser.add_argument("--json", type=Path, default=ROOT / "docs/results/compare/stts.json")
    parser.add_argument("--model", default="swin-digits")
    parser.add_argument("--r", type=int, nargs="+", default=[1, 2], help="frames STTS drops")
    parser.add_argument("--data", default="digits", help="to train on")
    parser.add_argument("--test", default="digits")
    parser.add_argument("--clips", type=int, default=6144, help="training clips of digits")
    parser.add_argument("--test-clips", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3, help="at 256 clips per step")
    parser.add_argument("--save-every", type=int, default=25, help="steps between checkpoints")
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.97, 0.85], help="of STTS's GFLOPs"
    )
    parser.add_argument("--bfloat16", action="store_true", help="train in it, where it is fast")
    parser.add_argument("--rounds", type=int, default=5, help="of timing; 0: none")
    options = parser.parse_args()
    rows = [row for r in options.r for row in measure(options, r)]
    options.json.parent.mkdir(parents=True, exist_ok=True)
    content = {"model": options.model, "training_clips": options.clips, "rows": rows}
    options.json.write_text(json.dumps(content, indent=1) + "\n")
    Console(width=130).print(table(rows))


if __name__ == "__main__":
    main()
