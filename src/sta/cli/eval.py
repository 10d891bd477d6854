"""``sta eval``: how accurate is a model on labelled videos, with and without pruning?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sta.cli import inference as cli
from sta.cli import tables


def evaluate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="LIST|FOLDER|digits|digits-jitter",
            help="'path label' lines, Something-Something's JSON, a folder per class, or clips "
            "made here: digits, and digits-jitter with a camera that shakes.",
        ),
    ],
    root: cli.RootOption = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Folders' names in label order, or Something-Something's labels."
        ),
    ] = None,
    model: cli.ModelOption = "vit-digits",
    r: Annotated[
        list[int], typer.Option(min=0, help=f"{cli.R_HELP} Several values: --r 0 32 64.")
    ] = [0],  # noqa: B006, typer copies it
    method: Annotated[
        list[cli.MethodName], typer.Option(help="How tokens are chosen; several are compared.")
    ] = [cli.MethodName.STA],  # noqa: B006
    match_gflops: Annotated[
        bool,
        typer.Option(
            "--match-gflops", help="Give every other method the r that comes closest to STA's cost."
        ),
    ] = False,
    config: cli.ConfigOption = None,
    protocol: cli.ProtocolOption = None,
    views: cli.ViewsOption = None,
    frames: cli.FramesOption = None,
    stride: cli.StrideOption = None,
    size: cli.SizeOption = None,
    clips: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    batch_size: cli.BatchOption = 8,
    device: cli.DeviceOption = "auto",
    runtime: cli.RuntimeOption = "torch",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the table as JSON.")
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV.")
    ] = None,
    out: cli.OutOption = None,
    resume: cli.ResumeOption = False,
    overwrite: cli.OverwriteOption = False,
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    engine: cli.EngineOption = "local",
    address: cli.AddressOption = None,
    actors: cli.ActorsOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Accuracy, agreement with the unpruned model, GFLOPs and speed on labelled videos.

    Every video is decoded once for all methods and r. Shares in --json and --csv are 0..1, each
    with its 95 % interval; difference is top1 minus the unpruned model's on the same videos (with
    0 among --r); gflops and clips_per_s are of one view. With --out, each video's predictions are
    kept, too, and --resume goes on with them. The exit code is 1 if a video could not be read; it
    is left out.
    """
    if config is not None and (any(r) or method != [cli.MethodName.STA]):
        raise ValueError(
            f"--config {config} has a method and its r: leave --method and --r out, or give --r 0 "
            f"to have the unpruned model beside it"
        )
    from sta.inference.evaluate import evaluation
    from sta.inference.journal import check_out, open_journal
    from sta.inference.setup import Setup
    from sta.video.digits import NAMES
    from sta.video.lists import check_source

    check_out(out, resume=resume, overwrite=overwrite)
    if source not in NAMES:
        check_source(source, labels)
    for file in (json_file, csv_file):
        if file is not None:  # found out now, not when the work is done
            file.parent.mkdir(parents=True, exist_ok=True)
    setup = Setup.make(
        model,
        names=[name.value for name in method],
        drops=r,
        match=match_gflops,
        config=config,
        overrides=cli.parse_settings(settings or ()),
        random_weights=random_weights,
        device=cli.choose_device(device),
        runtime=runtime,
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
    with open_journal(
        out,
        resume=resume,
        overwrite=overwrite,
        settings=setup.about(),
        rows_per_video=len(setup.methods),
    ) as journal:
        try:
            for video in cli.watched(job.score(journal.done), job.total, len(journal.done)):
                journal.append(job.rows(video))
        except KeyboardInterrupt:
            cli.interrupted(out)
        table = job.table(journal.rows())
        failures = cli.failures(journal.rows())
    tables.show(table)
    if json_file:
        json_file.write_text(json.dumps(table, indent=1) + "\n")
    if csv_file:
        tables.write_csv(csv_file, table)
    cli.finish(job.total, failures, out)
