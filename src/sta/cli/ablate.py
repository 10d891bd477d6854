"""``sta ablate``: which choice of the method matters how much, on this model and this data?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sta.cli import inference as cli
from sta.cli import tables

if TYPE_CHECKING:
    from sta.inference.collect import Failure


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
    clips: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
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

    All variants see the same clips, in one pass over them. difference is a variant's accuracy minus
    the default's on the same clips, with its 95 % interval; agreement is with the unpruned model.
    Where costs are to be the same, r is chosen so that GFLOPs come closest to the default's. With
    --out, every clip's predictions are kept, and --resume goes on with them.
    """
    from sta.inference.journal import check_out
    from sta.inference.setup import Setup
    from sta.methods import STAConfig
    from sta.tuning.ablation import Ablation

    check_out(out, resume=resume, overwrite=overwrite)
    for file in (json_file, csv_file, plot):
        if file is not None:  # found out now, not when the work is done
            file.parent.mkdir(parents=True, exist_ok=True)
    if config is not None and (r is not None or temperature is not None):
        raise ValueError(f"--config {config} has the settings: leave --r and --temperature out")
    default = STAConfig(r=24 if r is None else r) if config is None else STAConfig.from_file(config)
    if temperature is not None:
        default = replace(default, temperature=temperature)
    setup = Setup.make(
        model,
        methods=(),
        overrides=cli.parse_settings(settings or ()),
        random_weights=random_weights,
        device=device,
        protocol=protocol,
        views=views,
    )
    options = {"batch_size": batch_size, "timeout": timeout, "workers": workers}
    ablation = Ablation(setup, data, default, study or (), clips, options, root)
    try:
        report, failures, count = _run(ablation, out, resume, overwrite)
    except KeyboardInterrupt:
        cli.interrupted(out)
    _show(report)
    if json_file:
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    if csv_file:
        tables.write_csv(csv_file, _flat(report))
    if plot:
        from sta.tuning.ablation_plot import draw

        draw(report, plot)
    cli.finish(count, failures, out)


def _run(
    ablation: Any, out: str | None, resume: bool, overwrite: bool
) -> tuple[dict[str, Any], list[Failure], int]:
    """The report, what failed, and how many videos there were."""
    measured, count = [], 0
    failures: dict[str, Failure] = {}
    for one in ablation.passes():
        result = one.evaluation.collect(out=one.beside(out), resume=resume, overwrite=overwrite)
        count = max(count, result.total)
        measured.append((one, result.table))
        failures.update({failure.path: failure for failure in result.failures})
    return ablation.report(measured), list(failures.values()), count


_HIDDEN = ("config", "default", "refused", "failed", "clips", "top5")


def _show(report: dict[str, Any]) -> None:
    for study in report["studies"]:
        rows = [row for row in study["rows"] if row["refused"] is None]
        if rows:
            marked = [{**row, "variant": _marked(row)} for row in rows]
            tables.show(marked, study["title"], _HIDDEN)
        for row in study["rows"]:
            if row["refused"] is not None:
                typer.echo(f"{study['name']}: {row['variant']} left out: {row['refused']}")
        if study["left_out"] is not None:
            typer.echo(f"{study['name']} left out: {study['left_out']}")


def _marked(row: dict[str, Any]) -> str:
    return f"{row['variant']} (default)" if row["default"] else str(row["variant"])


def _flat(report: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per variant, settings as JSON."""
    told = {"study": "", "variant": "unpruned", "default": False, "config": None, "refused": None}
    rows = [{**told, **report["unpruned"]}] if report["unpruned"] else []
    for study in report["studies"]:
        rows += [{"study": study["name"], **row} for row in study["rows"]]
    return [{**row, "config": json.dumps(row["config"])} for row in rows]
