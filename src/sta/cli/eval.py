"""``sta eval``: how accurate is a model on labelled videos, with and without pruning?"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sta.cli import inference as cli

_SHARES = ("top1", "top5", "agreement", "motion", "colour")


def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="LIST|FOLDER|digits",
            help="'path label' lines, Something-Something's JSON, a folder per class, or digits.",
        ),
    ],
    root: cli.RootOption = None,
    labels: Annotated[
        str | None, typer.Option(metavar="FILE", help="Something-Something's labels file.")
    ] = None,
    model: cli.ModelOption = "vit-digits",
    r: Annotated[
        list[int], typer.Option(min=0, help="Tokens to drop per frame; several: --r 0 32 64.")
    ] = [0],  # noqa: B006, typer copies it
    method: Annotated[
        list[cli.MethodName], typer.Option(help="How tokens are chosen; several are compared.")
    ] = [cli.MethodName.STA],  # noqa: B006
    config: cli.ConfigOption = None,
    protocol: cli.ProtocolOption = None,
    views: cli.ViewsOption = None,
    frames: cli.FramesOption = None,
    stride: cli.StrideOption = None,
    size: cli.SizeOption = None,
    clips: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    batch_size: cli.BatchOption = 8,
    device: cli.DeviceOption = "auto",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the table as JSON.")
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV.")
    ] = None,
    out: cli.OutOption = None,
    resume: cli.ResumeOption = False,
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    engine: cli.EngineOption = "local",
    address: cli.AddressOption = None,
    actors: cli.ActorsOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Accuracy, agreement with the unpruned model, GFLOPs and speed on labelled videos.

    Every video is decoded once for all methods and r. Shares in --json and --csv are 0..1; gflops
    and clips_per_s are of one view. With --out, each video's predictions are kept, too, and
    --resume goes on with them. The exit code is 1 if a video could not be read; it is left out.
    """
    from sta.inference.evaluate import evaluation
    from sta.inference.journal import open_journal
    from sta.inference.setup import Setup

    for file in (json_file, csv_file):
        if file is not None:  # found out now, not when the work is done
            file.parent.mkdir(parents=True, exist_ok=True)
    setup = Setup.make(
        model,
        names=[name.value for name in method],
        drops=r,
        config=config,
        overrides=cli.parse_settings(settings or ()),
        random_weights=random_weights,
        device=cli.choose_device(device),
        data_set=protocol,
        views=views,
        frames=frames,
        stride=stride,
        size=size,
    )
    run = setup.run(
        batch_size=batch_size,
        timeout=timeout,
        workers=workers,
        engine=engine,
        address=address,
        actors=actors,
    )
    job = evaluation(source, setup, run, root=root, labels=labels, limit=clips)
    per_video = len(setup.methods)
    with open_journal(
        out, resume=resume, settings=setup.about(), rows_per_video=per_video
    ) as journal:
        try:
            for video in cli.watched(job.score(journal.done), job.total, len(journal.done)):
                journal.append(job.rows(video))
        except KeyboardInterrupt:
            cli.interrupted(out)
        table = job.table(journal.rows())
        failures = cli.failures(journal.rows())
    _show(table)
    if json_file:
        json_file.write_text(json.dumps(table, indent=1) + "\n")
    if csv_file:
        _write_csv(csv_file, table)
    cli.finish(job.total, failures, out)


def _show(rows: list[dict[str, Any]]) -> None:
    columns = [name for name in rows[0] if name not in ("top1_low", "top1_high", "failed")]
    table = Table(*columns)
    for row in rows:
        table.add_row(*(_cell(row, name) for name in columns))
    Console().print(table)


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if value is None:
        return "-"
    if name == "top1":
        reach = f"[{100 * row['top1_low']:.2f}, {100 * row['top1_high']:.2f}]"
        return f"{100 * value:.2f} % \\{reach}"
    if name in _SHARES:
        return f"{100 * value:.2f} %"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
