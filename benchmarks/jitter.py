"""Fine-tune the embedded models for a camera that shakes.

    python benchmarks/jitter.py vit-digits --bfloat16 --out runs/vit-jitter

Dense, by the loop of `sta train`, on clips that no embedded model has seen. Writes the weights in
float16, with their card, to benchmarks/weights/MODEL-jitter (--weights). A run that was stopped
goes on.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks/real"))

import train as real_training  # it registers attention that trains fast in bfloat16
from safetensors.torch import load_file, save_file

import sta
from sta.backbones.zoo import embedded
from sta.backbones.zoo.video_model import load_video_model
from sta.inference.metrics import cell
from sta.train import TrainConfig
from sta.train.loop import train
from sta.video.digits import DigitActions

WEIGHTS = ROOT / "benchmarks/weights"
TEST_CLIPS = 1024
CARD = """# {name}

`{model}` for digit actions under a camera that shakes by up to two pixels a frame
(`digits-jitter`), stored in float16. Fine-tuned dense from {start} on {clips:,} generated
clips; tokens were never dropped in training. No terms apply beyond those of the package.

Top-1 on {count:,} test clips, %, with 95 % intervals: {shaking} under the shaking camera (the model
that it started from: {before}), {still} under a still one.

```
python benchmarks/jitter.py {command}
sta eval digits-jitter --clips {count} --model benchmarks/weights/{name} --r 0
```
"""


def fine_tune(options: argparse.Namespace) -> Path:
    """The folder of the trained model, in float32."""
    config = TrainConfig(
        epochs=1,
        warmup_epochs=0.05,
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
        precision="bf16" if options.bfloat16 else "no",
        save_every=100,
    )
    clips = DigitActions("train", options.clips, camera_jitter=True, seed=2)
    opened = load_video_model(options.model)
    if options.bfloat16 and opened.family == "vit":
        opened.model.set_attn_implementation(real_training.ROWS)
    train(opened, clips, config, options.out)
    return options.out / "model"


def export(trained: Path, folder: Path) -> None:
    """The same folder with weights in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in trained.glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(trained / "model.safetensors")
    halves = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})


def card(options: argparse.Namespace, folder: Path) -> str:
    """What it is, and what was measured of it."""

    def accuracy(data: str, model: str) -> str:
        found = sta.evaluate(data, model, r=0, clips=TEST_CLIPS, batch_size=32)
        return cell(found.records()[0], "top1")

    return CARD.format(
        name=folder.name,
        model=type(sta.load(str(folder))).__name__,
        start=options.model,
        clips=options.clips,
        count=TEST_CLIPS,
        shaking=accuracy("digits-jitter", str(folder)),
        before=accuracy("digits-jitter", options.model),
        still=accuracy("digits", str(folder)),
        command=shlex.join(sys.argv[1:]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=embedded.names())
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="where MODEL-jitter goes")
    parser.add_argument("--clips", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=32, help="clips per step")
    parser.add_argument("--rate", type=float, default=4e-3, help="at 256 clips per step")
    parser.add_argument("--bfloat16", action="store_true", help="train in it, where it is fast")
    options = parser.parse_args()
    folder = options.weights / f"{options.model}-jitter"
    export(fine_tune(options), folder)
    (folder / "README.md").write_text(card(options, folder))
    print((folder / "README.md").read_text())


if __name__ == "__main__":
    main()
