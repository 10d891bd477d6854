"""``sta ablate``: how much each choice of the method matters, on a model and data."""

from __future__ import annotations

from typing import Annotated

import typer

from sta.cli import options as cli


def ablate(
    study: Annotated[
        list[str],
        typer.Argument(
            metavar="[all|first-frame|order|similarity|schedule|score|semantic|steps|"
            "place|temperature|program|fill|pool|views]...",
            help="What to vary. Default: everything.",
        ),
    ] = [],  # noqa: B006, typer copies it
    model: cli.ModelOption = "vit-digits",
    data: Annotated[
        str,
        typer.Option(
            metavar="LIST|FOLDER|digits|digits-jitter", help="Labelled clips, as sta eval's."
        ),
    ] = "digits",
    root: cli.RootOption = None,
    r: Annotated[
        int | None, typer.Option(min=1, help="Tokens to drop per frame at the first step. [24]")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="What is varied: STA's settings from a file, instead of --r."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Of all variants but those of that study.")
    ] = None,
    clips: cli.ClipsOption = None,
    protocol: cli.ProtocolOption = None,
    views: cli.ViewsOption = None,
    batch_size: cli.BatchOption = 32,
    device: cli.DeviceOption = "auto",
    precision: cli.TorchPrecisionOption = "float32",
    json_file: cli.JsonOption = None,
    csv_file: cli.CsvOption = None,
    plot: cli.PlotOption = None,
    out: cli.OutOption = None,
    resume: cli.ResumeOption = False,
    overwrite: cli.OverwriteOption = False,
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """The paper's ablations, one choice of the method at a time, on a model of yours.

    All variants run on the same clips, in one pass over them. difference is a variant's accuracy
    minus the default's on the same clips, with its 95 % interval; agreement is with the unpruned
    model. Where costs are to be the same, r is chosen so that GFLOPs come closest to the default's.
    With --out, every clip's predictions are kept, and --resume goes on with them.
    """
    options = cli.arguments(locals(), "json_file", "csv_file", "plot", study="studies")
    from sta.tuning.ablation import ablate as measure

    cli.check_files(json_file, csv_file, plot=plot)
    try:
        result = measure(**options)
    except KeyboardInterrupt:
        cli.interrupted(out)
    cli.print_result(result)
    cli.write_json(json_file, result.report)
    cli.write_csv(csv_file, result.records())
    cli.write_plot(plot, result.plot)
    cli.finish(result.videos, result.failures, out)
