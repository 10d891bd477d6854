"""``sta demo``: the main job in a minute, on a model and clips that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL = "vit-digits"
CLIP = 5  # of the test split
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
    from sta.results import print_result

    console = Console()
    config = sta.STAConfig(r=VideoModel.open(MODEL).default_r)
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
    console.print(f"Accuracy on the first {clips} test clips of digit actions (80 classes)")
    methods = [config.method, sta.RandomConfig.method]
    print_result(sta.evaluate("digits", MODEL, methods=methods, r=[0, config.r], clips=clips))
    if speed:
        console.print("\nSpeed of a ViT-B at 224 pixels, random weights")
        timed = sta.bench(
            LARGE_MODEL,
            r=LARGE_R,
            rounds=ROUNDS,
            warmup=1,
            memory=False,
            gemm=False,
            random_weights=True,
        )
        print_result(timed)
    console.print(
        "\nOn your own model:\n"
        "  sta.apply(model, sta.STAConfig(r=64))        # VideoMAE, Swin, V-JEPA 2, ViViT\n"
        "  sta predict VIDEO --model HUB_ID --r 64      # or from the command line\n"
        "  sta show VIDEO --model HUB_ID --r 64 --html  # see what is kept"
    )
