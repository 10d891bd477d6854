"""``sta demo``: the main job in a minute, on a model and clips that come with the package."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from sta.backbones.zoo.video_model import VideoModel
    from sta.methods import Config

MODEL = "vit-digits"
CLIP = 5  # of the test split
BATCH = 16
LARGE_MODEL, LARGE_R, ROUNDS = "vit-b-k400", 64, 3


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
    clips: Annotated[int, typer.Option(min=1, help="Clips to measure accuracy on.")] = 256,
    speed: Annotated[
        bool, typer.Option("--speed/--no-speed", help="Also time a ViT-B, half a minute.")
    ] = True,
) -> None:
    """Prune two models and show what that gains: a picture, accuracy, speed.

    Accuracy is of a small VideoMAE trained on digit actions, generated clips in which one of
    several digits moves; it was trained dense and never saw a dropped token. Speed is of a ViT-B
    with random weights: what it predicts is of no use, what it costs is the same.
    """
    from rich.console import Console

    import sta
    from sta.backbones.zoo.video_model import VideoModel

    console = Console()
    model = VideoModel.open(MODEL)
    config = sta.STAConfig(r=model.default_r)
    console.print(f"[bold]sta.apply(model, sta.STAConfig(r={config.r}))[/bold] on {MODEL}\n")
    shown = sta.show(f"digits:{CLIP}", MODEL, config=config)
    shown.save(out)
    pruned, steps = shown.methods[0], shown.methods[0].steps
    tokens = ", ".join(str(step.tokens) for step in steps)
    console.print(f"One clip of {steps[0].kept.size} tokens; left after each step: {tokens}")
    for title, method in (("before", shown.stock), ("after ", pruned)):
        label, share = method.predictions[0]
        console.print(f"  prediction {title}: {label} ({share:.1%})")
    console.print(f"  kept tokens over time, a row for each step: [bold]{out}[/bold]\n")
    _accuracy(console, model, config, clips)
    if speed:
        _speed(console)
    console.print(
        "\nOn your own model:\n"
        "  sta.apply(model, sta.STAConfig(r=64))        # VideoMAE, Swin, V-JEPA 2, ViViT\n"
        "  sta predict VIDEO --model HUB_ID --r 64      # or from the command line\n"
        "  sta show VIDEO --model HUB_ID --r 64 --html  # see what is kept"
    )


def _accuracy(console: Console, model: VideoModel, config: Config, clips: int) -> None:
    """Accuracy and agreement on the first clips of the test split, beside random dropping."""
    import torch
    from rich.table import Table

    import sta
    from sta.backbones.copies import shared_copy
    from sta.backbones.outputs import logits_of
    from sta.measure.stats import wilson
    from sta.progress import track
    from sta.video.digits import DigitActions

    assert isinstance(config, sta.STAConfig)
    variants: dict[str, nn.Module] = {
        "unpruned": sta.remove(shared_copy(model.model)),
        "STA": sta.apply(shared_copy(model.model), config),
        "random dropping": sta.apply(shared_copy(model.model), sta.RandomConfig(r=config.r)),
    }
    data = DigitActions("test", size=clips)
    predicted: dict[str, list[int]] = {title: [] for title in variants}
    starts = range(0, clips, BATCH)
    for start in track(starts, len(starts), "batches"):
        frames, _ = data.batch(range(start, min(start + BATCH, clips)))
        pixels = model.clip.pixels(frames)
        for title, variant in variants.items():
            with torch.inference_mode():
                predicted[title] += logits_of(variant(pixels)).argmax(-1).tolist()
    labels = data.labels(range(clips)).tolist()
    table = Table(title=f"Digit actions, first {clips} test clips (80 classes)")
    for column in ("", "GFLOPs", "accuracy", "95 % interval", "same as\nunpruned"):
        table.add_column(column, justify="right", no_wrap=True)
    for title, found in predicted.items():
        hits = sum(a == b for a, b in zip(found, labels, strict=True))
        same = sum(a == b for a, b in zip(found, predicted["unpruned"], strict=True))
        low, high = wilson(hits, clips)
        table.add_row(
            title,
            f"{sta.gflops(variants[title], model.clip.shape()):.3f}",
            f"{hits / clips:.1%}",
            f"{low:.1%} to {high:.1%}",
            f"{same / clips:.1%}",
        )
    console.print(table)


def _speed(console: Console) -> None:
    """One forward of a ViT-B, stock and pruned in turn."""
    import torch
    from rich.table import Table

    import sta
    from sta.backbones.copies import shared_copy
    from sta.backbones.zoo.video_model import VideoModel
    from sta.measure.timing import interleave, speedup

    with console.status("Timing a ViT-B"):
        large = VideoModel.open(LARGE_MODEL, random_weights=True)
        shape = large.clip.shape()
        pixels = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        variants: dict[str, nn.Module] = {
            "unpruned": large.model.eval(),
            f"STA, r = {LARGE_R}": sta.apply(
                shared_copy(large.model).eval(), sta.STAConfig(r=LARGE_R)
            ),
        }
        times = interleave(
            {name: partial(variant, pixels) for name, variant in variants.items()},
            rounds=ROUNDS,
            warmup=1,
        )
    table = Table(title="ViT-B at 224 pixels, random weights")
    for column in ("", "GFLOPs", "seconds a clip", "speed"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, variant in variants.items():
        table.add_row(
            name,
            f"{sta.gflops(variant, shape):.0f}",
            f"{times[name].median:.2f}",
            f"{speedup(times, name, 'unpruned'):.2f}x",
        )
    console.print(table)
