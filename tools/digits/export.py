"""Make an embedded model of a training run: ``python -m tools.digits.export RUN --out DIR``.

Works on any checkpoint of `tools.digits.train`, also of a run that is still going on.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tools.digits.models import SETTINGS
from tools.digits.train import CHECKPOINT, Recipe, clip_of, hits
from torch import Tensor, nn

from sta.backbones.zoo import embedded
from sta.backbones.zoo.spec import IMAGENET_MEAN, IMAGENET_STD
from sta.measure.stats import wilson
from sta.train.accuracy import answers
from sta.video.digits import CLASS_NAMES, FRAMES, SIDE, TEST_CLIPS, DigitActions

FACTORS = ("joint", "motion", "colour")
_CLASSES = {
    "vit": "transformers.VideoMAEForVideoClassification",
    "swin": "torchvision.models.video.SwinTransformer3d",
}


def accuracy(model: nn.Module, clips: int = TEST_CLIPS, batch: int = 64) -> dict[str, list[float]]:
    """Share of test clips that are right, and its 95 % interval, per factor.

    Args:
        model: A digit-action classifier, with or without a pruning method applied.
        clips: The first this many of the test split.
        batch: Clips per forward.
    """
    data = DigitActions("test", size=clips)
    right = torch.zeros(len(FACTORS), dtype=torch.int64)
    for logits, labels, _ in answers(model, clip_of(model), data, range(clips), batch=batch):
        right += hits(logits, labels).sum(dim=1)
    return {
        factor: [count / clips, *wilson(count, clips)]
        for factor, count in zip(FACTORS, right.tolist(), strict=True)
    }


def export(run: Path, out: Path, clips: int = TEST_CLIPS, note: str = "") -> str:
    """Write the three files of an embedded model and return its name.

    Args:
        run: Folder of a training run.
        out: Folder to write to.
        clips: How many test clips to measure the accuracy on.
        note: What else to know of the run, for the card.
    """
    path = run / CHECKPOINT
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no checkpoint; train with python -m tools.digits.train")
    state = torch.load(path, map_location="cpu", weights_only=True)
    name = f"{state['name']}-digits"
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.safetensors"
    save_file(_half(state["average"]), file)
    file.chmod(0o644)  # safetensors lets nobody else read
    about = _facts(state)
    about["training"]["note"] = note
    _write_json(out / f"{name}.json", about)
    # The accuracy is of what is shipped: float16 weights, read back.
    about["accuracy"] = {"clips": clips, **accuracy(embedded.load(name, out), clips)}
    _write_json(out / f"{name}.json", about)
    (out / f"{name}.md").write_text(card(name, about, file.stat().st_size))
    return name


def _half(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.half().contiguous() for k, v in state.items() if v.is_floating_point()}


def _facts(state: Mapping[str, Any]) -> dict[str, Any]:
    recipe = Recipe(**state["recipe"])
    return {
        "backbone": state["name"],
        "class": _CLASSES[state["name"]],
        "settings": SETTINGS[state["name"]],
        "labels": list(CLASS_NAMES),
        "input": {
            "frames": FRAMES,
            "stride": 1,
            "size": SIDE,
            "mean": IMAGENET_MEAN,
            "std": IMAGENET_STD,
        },
        "training": {
            **vars(recipe),
            "clips": state["step"] * recipe.batch,
            "planned_clips": recipe.clips,
            "hours": round(state["seconds"] / 3600, 2),
        },
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def _percent(share: list[float]) -> str:
    value, low, high = (100 * part for part in share)
    return f"{value:.2f} % ({low:.2f} to {high:.2f})"


def card(name: str, about: Mapping[str, Any], size: int) -> str:
    """The card of an embedded model, in Markdown."""
    training, measured = about["training"], about["accuracy"]
    rows = "\n".join(f"| {factor} | {_percent(measured[factor])} |" for factor in FACTORS)
    backbone, planned = about["backbone"], training["planned_clips"]
    options = "".join(
        f" --{name} {training[name]}"
        for name in ("easy", "batch", "rate")
        if training.get(name, getattr(Recipe, name)) != getattr(Recipe, name)
    )
    easy = f", the first {training['easy']:,} without distractors" if training.get("easy") else ""
    start, end = training.get("circling", Recipe.circling)
    if end:
        options += f" --circling {start} {end}"
        easy += (
            f"; from {start:,} to {end:,} three of four circle alone, at first always at the top "
            f"half-way"
        )
    note = f" {training['note']}" if training.get("note") else ""
    settings = ", ".join(f"{key} {value}" for key, value in about["settings"].items())
    return f"""# {name}

A small video classifier that ships with the package: what the demo, the tests and the examples
run on. Trained dense, never with dropped tokens, so it is off the shelf from pruning's point of
view. It knows digit actions and nothing else.

- **Model**: `{about["class"]}`: {settings}. {size / 1e6:.1f} MB as float16.
- **Input**: {FRAMES} frames of {SIDE} x {SIDE} pixels, RGB, normalised with ImageNet's mean and
  standard deviation.
- **Output**: {len(CLASS_NAMES)} classes: which of 8 ways a digit moves times which of 10 colours
  it has, among standing digits of other colours.
- **Data**: `sta.video.digits.DigitActions("train")`, made from scikit-learn's handwritten
  digits. Every training clip is seen once; train and test share no digit image.

## Accuracy

On the first {measured["clips"]:,} clips of the test split, with 95 % Wilson intervals:

| | accuracy |
|---|---|
{rows}

## Training

{training["clips"]:,} clips of {planned:,} planned{easy}, in batches of {training["batch"]}: AdamW,
rate {training["rate"]} after {training["warmup"]} steps of warm-up, then a cosine to zero, weight
decay {training["weight_decay"]}, gradients clipped at {training["clip_norm"]}, weights averaged
with decay {training["average"]}. The loss is the cross-entropy of the joint label plus half of each
factor's. It took {training["hours"]} hours on two CPU cores that other work shared.{note} To
train it again, and to export it:

```
python -m tools.digits.train {backbone} --clips {planned}{options} --out runs/{backbone}
python -m tools.digits.export runs/{backbone} --out src/sta/backbones/zoo/weights
```
"""


def main(argv: list[str] | None = None) -> None:
    """Export a run's checkpoint and print what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tools.digits.export", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a training run")
    parser.add_argument("--out", type=Path, default=embedded.FOLDER)
    parser.add_argument("--clips", type=int, default=TEST_CLIPS, help="test clips to measure on")
    parser.add_argument("--note", default="", help="what else to know of the run, for the card")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    print(embedded.card(export(args.run, args.out, args.clips, args.note), args.out))


if __name__ == "__main__":
    main()
