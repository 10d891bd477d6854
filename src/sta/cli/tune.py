"""``sta tune``: settings that meet a target on this machine, from a few videos without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sta.cli import options as cli

CLIPS = 320  # enough to guarantee 99 % agreement


def tune(
    videos: Annotated[
        list[str],
        typer.Argument(
            metavar="VIDEOS...|digits", help="Files, folders or lists, without labels; or digits."
        ),
    ],
    speedup: Annotated[
        float | None, typer.Option(help="How many times faster than the unpruned model, e.g. 2.0.")
    ] = None,
    gflops: Annotated[float | None, typer.Option(help="Cost no more GFLOPs a clip.")] = None,
    agreement: Annotated[
        float | None,
        typer.Option(help="Agree with the unpruned model on this share of videos, e.g. 0.99."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Write the settings, for --config and sta.apply.")
    ] = Path("tuned.json"),
    plot: cli.PlotOption = None,
    json_file: cli.JsonOption = None,
    model: cli.ModelOption = "vit-digits",
    fidelity_clips: Annotated[
        int, typer.Option(min=1, help="Clips to compare on, at most.")
    ] = CLIPS,
    batch_size: Annotated[int, typer.Option(min=1, help="Clips per forward when timed.")] = 1,
    rounds: cli.RoundsOption = 9,
    threads: cli.ThreadsOption = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Rank tokens by the paper's score; choose r and steps.")
    ] = False,
    budget: Annotated[
        Literal["auto"] | None,
        typer.Option(help="auto: a threshold instead of r; clips keep as many as they need."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of clips.")] = 0,
    device: cli.DeviceOption = "auto",
    root: cli.RootOption = None,
    views: cli.ViewsOption = None,
    stride: cli.StrideOption = None,
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Find score, r, schedule and blocks for a speed-up, GFLOPs, or agreement. No training.

    Times are measured here, in turn with the unpruned model; fidelity is agreement with it, and KL,
    the divergence of its probabilities. Of the settings that meet --speedup or --gflops, those with
    the least divergence win; of those that meet --agreement, with 95 % confidence, the fastest.
    """
    options = cli.arguments(locals(), "out", "plot", "json_file")
    from sta.tuning.tune import tune as search

    cli.check_files(out, json_file, plot=plot)
    result = search(**options)
    cli.print_result(result)
    result.save(out)
    typer.echo(f"wrote {out}")
    cli.write_plot(plot, result.plot)
    if plot is not None:
        typer.echo(f"wrote {plot}")
    cli.write_json(json_file, result.to_dict())
    cli.finish(result.videos, result.failures, None)
