"""`sta demo`: the main job in a minute, on a model and clips that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import nn

    from sta.backbones.zoo.video_model import VideoModel
    from sta.methods import Config

MODEL = "vit-digits"
CLIP = 5  # of the test split


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("out/demo.png"),
    clips: Annotated[int, typer.Option(min=1, help="Clips to measure accuracy on.")] = 256,
) -> None:
    """Prune a small model and show what that gains: speed, agreement, a picture.

    The model is a VideoMAE trained on digit actions, clips made here in which one of several
    digits moves; it was trained dense and never saw a dropped token.
    """
    from rich.console import Console

    import sta
    from sta.backbones.zoo.video_model import load_video_model
    from sta.explain import strip
    from sta.explain.look import look
    from sta.explain.source import default_r, read_clip, single_view

    console = Console()
    opened = load_video_model(MODEL)
    config = sta.STAConfig(r=default_r(opened))
    shape = opened.clip.shape()
    console.print(f"[bold]sta.apply(model, sta.STAConfig(r={config.r}))[/bold] on {MODEL}, {shape}")
    clip = read_clip(f"digits:{CLIP}", single_view(opened))
    seen = look(
        opened, clip.seen, [config], clip_name=clip.name, model_name=MODEL, frames=clip.shown
    )
    pruned = seen.methods[0]
    out.parent.mkdir(parents=True, exist_ok=True)
    strip.save(strip.strip(seen), out)
    tokens = [step.tokens for step in pruned.steps]
    console.print(f"\nOne clip: tokens left after each step: {tokens[0]}, ... {tokens[-1]}")
    for title, top in (("before", seen.stock.top), ("after ", pruned.top)):
        console.print(f"  prediction {title}: {top[0][0]} ({top[0][1]:.1%})")
    saved = 1 - pruned.gflops / seen.stock.gflops
    console.print(
        f"  GFLOPs {seen.stock.gflops:.2f} -> {pruned.gflops:.2f} (-{saved:.0%}), "
        f"time {seen.stock.seconds * 1e3:.1f} -> {pruned.seconds * 1e3:.1f} ms "
        f"({seen.stock.seconds / pruned.seconds:.2f}x)"
    )
    _accuracy(console, opened, config, clips)
    console.print(f"\nKept tokens over time, a row for each pruning step: [bold]{out}[/bold]")
    console.print(
        "\nOn your own model:\n"
        "  sta.apply(model, sta.STAConfig(r=64))        # VideoMAE, Swin, V-JEPA 2, ViViT\n"
        "  sta predict VIDEO --model HUB_ID --r 64      # or from the command line\n"
        "  sta show VIDEO --model HUB_ID --r 64 --html  # look at what is kept"
    )


def _accuracy(console: Console, opened: VideoModel, config: Config, clips: int) -> None:
    """Accuracy and agreement on the first clips of the test split, beside random dropping."""
    from rich.progress import track
    from rich.table import Table

    import sta
    from sta.backbones.copies import shared_copy
    from sta.inference.classifier import Classifier
    from sta.measure.stats import wilson
    from sta.video.digits import DigitActions

    assert isinstance(config, sta.STAConfig)
    variants: dict[str, nn.Module] = {
        "unpruned": sta.remove(shared_copy(opened.model)),
        "STA": sta.apply(shared_copy(opened.model), config),
        "random dropping": sta.apply(shared_copy(opened.model), sta.RandomConfig(r=config.r)),
    }
    classifier = Classifier(variants["unpruned"], opened.clip)
    data = DigitActions("test", size=clips)
    guesses: dict[str, list[int]] = {title: [] for title in variants}
    for start in track(range(0, clips, 16), f"Predicting {clips} clips", console=console):
        pixels, _ = data.batch(range(start, min(start + 16, clips)))
        batch = classifier.clip.pixels(pixels, classifier.device)
        for title, model in variants.items():
            guesses[title] += _predict(model, batch)
    labels = data.labels(range(clips)).tolist()
    table = Table(title=f"Digit actions, first {clips} test clips (80 classes)")
    for column in ("", "accuracy", "95 % interval", "same as unpruned"):
        table.add_column(column, justify="right")
    for title, given in guesses.items():
        hits = sum(g == label for g, label in zip(given, labels, strict=True))
        same = sum(g == u for g, u in zip(given, guesses["unpruned"], strict=True))
        low, high = wilson(hits, clips)
        table.add_row(
            title, f"{hits / clips:.1%}", f"{low:.1%} to {high:.1%}", f"{same / clips:.1%}"
        )
    console.print(table)


def _predict(model: nn.Module, batch: torch.Tensor) -> list[int]:
    import torch

    with torch.inference_mode():
        return model(batch).logits.argmax(-1).tolist()
