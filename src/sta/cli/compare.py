"""``sta compare``: every method on the same models, clips and clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sta.cli import options as cli
from sta.cli.options import MultiValueCommand


class CompareCommand(MultiValueCommand):
    """`sta compare` has no arguments: all that follows a multi-value option is its own."""

    multi_value = {  # noqa: RUF012, a ClassVar of its base
        option: lambda word: not word.startswith("-")
        for option in ("--model", "--method", "--config", "--saved", "--data")
    }


def compare(
    data: Annotated[
        list[str],
        typer.Option(
            metavar="LIST|FOLDER|digits|digits-jitter",
            help="Labelled clips, as sta eval's; several run in turn.",
        ),
    ] = ["digits"],  # noqa: B006, typer copies it
    model: Annotated[
        list[str], typer.Option(help="What sta.load takes; each runs on all data that fits it.")
    ] = ["vit-digits"],  # noqa: B006
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods by name; paper is STA as published, auto is STA with as many tokens as "
            "each clip needs. Random dropping always takes part. Default: all that a model takes."
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="More settings, whose r is set to meet the budget."),
    ] = None,
    saved: Annotated[
        list[float], typer.Option(help="Shares of the unpruned model's cost to save.")
    ] = [0.35, 0.5, 0.65],  # noqa: B006
    match: Annotated[
        Literal["gflops", "time"],
        typer.Option(help="What is the same for all methods: GFLOPs, or time as measured here."),
    ] = "gflops",
    rival: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="Compare all with this one, too, beside random dropping."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Of random dropping.")] = 3,
    root: cli.RootOption = None,
    clips: cli.ClipsOption = None,
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIDEOS",
            help="Set thresholds (rlt, auto) by these, without labels; the videos after the first "
            "--clips without.",
        ),
    ] = None,
    views: cli.ViewsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Every video's predictions; the same command goes on with what is there.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start --out anew.")] = False,
    batch_size: cli.BatchOption = 8,
    rounds: Annotated[int, typer.Option(min=0, help="How often each is timed; 0: no times.")] = 5,
    device: cli.DeviceOption = "auto",
    precision: cli.TorchPrecisionOption = "float32",
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    json_file: cli.JsonOption = None,
    csv_file: cli.CsvOption = None,
    plot: cli.PlotOption = None,
) -> None:
    """Every method on the same models, clips and clock, at the same GFLOPs or in the same time.

    At each budget a method gets the r whose cost comes closest to that share less than the unpruned
    model's, or the threshold where counts follow the clip. "to unpruned" and "to random" are
    differences of accuracy on the same videos, in points, with 95 % intervals; random dropping is
    the mean of its seeds. "agree" is with the unpruned model's best class, KL the divergence from
    its probabilities.
    """
    options = cli.arguments(
        locals(),
        *("json_file", "csv_file", "plot"),
        model="models",
        method="methods",
        config="configs",
    )
    from sta.tuning.compare import compare as measure

    cli.check_files(json_file, csv_file, plot=plot)
    try:
        result = measure(**{**options, "configs": config or ()})
    except KeyboardInterrupt:
        hint = f"; the same command goes on with {out}" if out else ""
        typer.echo(f"interrupted{hint}", err=True)
        raise typer.Exit(130) from None
    cli.print_result(result)
    cli.write_json(json_file, result.to_dict())
    cli.write_csv(csv_file, result.records())
    cli.write_plot(plot, result.plot)
    cli.finish(result.videos, result.failures, None if out is None else str(out))
