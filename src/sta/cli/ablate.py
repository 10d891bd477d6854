"""``sta ablate``: how much each choice of the method matters, on a model and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sta.cli import inference as cli
from sta.cli import tables


def ablate(
    study: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[all|first-frame|order|similarity|schedule|score|semantic|steps|"
            "place|temperature|program|fill|pool|views]...",
            help="What to vary; everything without.",
        ),
    ] = None,
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
    clips: Annotated[int | None, typer.Option(min=1, help="How many of the first clips.")] = None,
    protocol: cli.ProtocolOption = None,
    views: cli.ViewsOption = None,
    batch_size: cli.BatchOption = 32,
    device: cli.DeviceOption = "auto",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a row per variant as CSV.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .pdf or .svg.")
    ] = None,
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
    from sta.runtime.extras import require
    from sta.tuning.ablation import ablate as measure

    for file in (json_file, csv_file, plot):
        if file is not None:  # found out now, not when the work is done
            file.parent.mkdir(parents=True, exist_ok=True)
    if plot is not None:
        require("matplotlib", "--plot", "plot")
    try:
        result = measure(
            study or (),
            model=model,
            data=data,
            root=root,
            r=r,
            config=config,
            temperature=temperature,
            clips=clips,
            protocol=protocol,
            views=views,
            batch_size=batch_size,
            device=device,
            out=out,
            resume=resume,
            overwrite=overwrite,
            timeout=timeout,
            workers=workers,
            overrides=cli.parse_settings(settings or ()),
            random_weights=random_weights,
            progress=True,
        )
    except KeyboardInterrupt:
        cli.interrupted(out)
    Console().print(result)
    if json_file:
        json_file.write_text(json.dumps(result.report, indent=1) + "\n")
    if csv_file:
        tables.write_csv(csv_file, result.records())
    if plot:
        result.plot(plot)
    cli.finish(result.videos, result.failures, out)
