"""int8 on the embedded models: what it costs in accuracy, alone and together with STA.

    python benchmarks/int8.py [--models vit-digits swin-digits] [--r 16] [--clips 1024]

Digit actions of the test split; quantized by OpenVINO and NNCF, with ranges seen on training clips.
All four see the same clips, so that differences to the unpruned float32 model are paired.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import sta
from sta.backbones.zoo import embedded
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import load_video_model
from sta.measure.stats import paired_difference, wilson
from sta.runtime import probe
from sta.runtime.sessions import from_model
from sta.video.clips import full_batches
from sta.video.digits import DigitActions

Run = Callable[[Tensor], Tensor]


def eager(model: nn.Module) -> Run:
    def run(pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            found = model(pixels)
        return found if isinstance(found, Tensor) else found.logits

    return run


def runs(name: str, r: int, batch: int, calibration: int) -> tuple[dict[str, Run], ClipSpec]:
    """The four models as functions, and what turns frames into their pixels."""
    clip = load_video_model(name).clip
    frames, _ = DigitActions("train").batch(range(calibration))
    seen = [clip.pixels(clips) for clips in full_batches(frames, batch)]
    found: dict[str, Run] = {}
    for title, drop in (("unpruned", 0), (f"STA, r={r}", r)):
        model = load_video_model(name).model.eval()
        if drop:
            sta.apply(model, sta.STAConfig(r=drop))
        found[f"{title}, float32"] = eager(model)
        session = from_model(model, seen[0], "openvino", "int8", seen, torch.get_num_threads())
        found[f"{title}, int8"] = lambda pixels, session=session: session(pixels)[0]
    return found, clip


def measure(name: str, options: argparse.Namespace) -> Table:
    found, clip = runs(name, options.r, options.batch_size, options.calibration)
    answered: dict[str, list[Tensor]] = {title: [] for title in found}
    data = DigitActions("test", size=options.clips)
    for start in range(0, options.clips, options.batch_size):
        frames, _ = data.batch(range(start, start + options.batch_size))
        pixels = clip.pixels(frames)
        for title, run in found.items():
            answered[title].append(run(pixels).argmax(-1))
    answers = {title: torch.cat(parts) for title, parts in answered.items()}
    labels = torch.from_numpy(data.labels(range(options.clips)))
    first = next(iter(answers.values()))
    table = Table(title=f"{name}, {options.clips} clips")
    for column in ("", "accuracy", "95 %", "to the first, points", "95 %", "agreement"):
        table.add_column(column, justify="right" if column else "left")
    for title, answer in answers.items():
        right, before = answer == labels, first == labels
        gained, lost = int((right & ~before).sum()), int((before & ~right).sum())
        low, high = (100 * end for end in wilson(int(right.sum()), options.clips))
        less, more = (100 * end for end in paired_difference(gained, lost, options.clips))
        table.add_row(
            title,
            f"{100 * right.float().mean():.2f} %",
            f"{low:.2f} to {high:.2f}",
            f"{100 * (gained - lost) / options.clips:+.2f}",
            f"{less:+.2f} to {more:+.2f}",
            f"{100 * (answer == first).float().mean():.2f} %",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=embedded.names(), choices=embedded.names())
    parser.add_argument("--r", type=int, default=16)
    parser.add_argument("--clips", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--calibration", type=int, default=64, help="training clips")
    options = parser.parse_args()
    if options.clips % options.batch_size:
        parser.error(
            f"--clips {options.clips} is not a multiple of --batch-size {options.batch_size}"
        )
    probe.make_safe("openvino", "int8")
    for name in options.models:
        Console(width=120).print(measure(name, options))


if __name__ == "__main__":
    main()
