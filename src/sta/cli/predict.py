"""``sta predict``: what is in these videos?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from sta.cli import inference as cli


def predict(
    inputs: Annotated[
        list[str], typer.Argument(metavar="VIDEO|FOLDER|LIST...", help="What to look at.")
    ],
    model: cli.ModelOption = "vit-digits",
    r: Annotated[int, typer.Option(min=0, help=cli.R_HELP)] = 0,
    method: Annotated[
        cli.MethodName, typer.Option(help="How tokens are chosen.")
    ] = cli.MethodName.STA,
    config: cli.ConfigOption = None,
    views: cli.ViewsOption = None,
    protocol: cli.ProtocolOption = None,
    frames: cli.FramesOption = None,
    stride: cli.StrideOption = None,
    size: cli.SizeOption = None,
    batch_size: cli.BatchOption = 8,
    device: cli.DeviceOption = "auto",
    runtime: cli.RuntimeOption = "torch",
    top_k: Annotated[int, typer.Option(min=1, help="Classes per video.")] = 5,
    out: cli.OutOption = None,
    resume: cli.ResumeOption = False,
    overwrite: cli.OverwriteOption = False,
    root: cli.RootOption = None,
    timeout: cli.TimeoutOption = 60.0,
    workers: cli.WorkersOption = None,
    engine: cli.EngineOption = "local",
    address: cli.AddressOption = None,
    actors: cli.ActorsOption = None,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Predict the classes of videos: files, folders of them, or lists.

    Prints a table, or with --out writes a row per video: path, predictions (label and score, best
    first) and error. One view per video unless --views or --protocol ask for more. The exit code
    is 1 if a video could not be read.
    """
    from sta.inference.journal import check_out, open_journal
    from sta.inference.rows import prediction_row
    from sta.inference.setup import Setup
    from sta.video.lists import find_videos

    check_out(out, resume=resume, overwrite=overwrite)
    entries = find_videos(inputs, root)
    setup = Setup.make(
        model,
        names=[method.value] if config is None else [],
        drops=[r],
        config=config,
        overrides=cli.parse_settings(settings or ()),
        random_weights=random_weights,
        device=cli.choose_device(device),
        runtime=runtime,
        data_set=protocol,
        views=views or (None if protocol else "1x1"),
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
    about = {**setup.about(), "top_k": top_k}
    with open_journal(out, resume=resume, overwrite=overwrite, settings=about) as journal:
        left = [entry for entry in entries if entry.path not in journal.done]
        try:
            for video in cli.watched(run.score(left), len(entries), len(entries) - len(left)):
                journal.append([prediction_row(video, setup.opened.class_names, top_k)])
        except KeyboardInterrupt:
            cli.interrupted(out)
        failures = cli.failures(journal.rows())
        if out is None:
            _show(list(journal.rows()))
    cli.finish(len(entries), failures, out)


def _show(rows: list[dict[str, Any]]) -> None:
    """A table of the rows: a line for each of a video's best classes."""
    folder = _common_folder([row["path"] for row in rows])
    table = Table(Column("video", overflow="fold"), "prediction", "score", title=folder)
    for row in rows:
        name = escape(row["path"].removeprefix(folder))
        if row["error"] is not None:
            table.add_row(name, f"[red]{escape(row['error'])}[/red]", "")
        for number, one in enumerate(row["predictions"]):
            table.add_row("" if number else name, escape(one["label"]), f"{one['score']:.3f}")
        if len(row["predictions"]) > 1:
            table.add_section()
    Console().print(table)


def _common_folder(paths: list[str]) -> str:
    """The folder that all paths are in, if it is one."""
    folders = {path[: path.rfind("/") + 1] for path in paths}
    return folders.pop() if len(folders) == 1 else ""
