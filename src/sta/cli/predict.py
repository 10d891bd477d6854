"""``sta predict``: what is in these videos?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sta.cli import options as cli
from sta.cli.startup import start


@cli.with_run_options
def predict(
    context: typer.Context,
    inputs: Annotated[
        list[str], typer.Argument(metavar="VIDEO|FOLDER|LIST...", help="Videos to classify.")
    ],
    model: cli.ModelOption = "vit-digits",
    r: Annotated[int | None, typer.Option(min=0, help=f"{cli.R_HELP} Default: 0.")] = None,
    method: Annotated[
        cli.MethodName | None, typer.Option(help="How tokens are chosen. Default: sta.")
    ] = None,
    views: cli.ViewsOption = None,
    protocol: cli.ProtocolOption = None,
    windows: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="A row per window of this length, e.g. 2s."),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="From one window to the next. Default: its length."),
    ] = None,
    smooth: Annotated[
        int | None, typer.Option(min=1, help="Windows that segments average over, odd. Default: 1.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Least score in a segment. Default: 0.5."),
    ] = None,
    segments: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With windows: start, end, label and score (.jsonl)."),
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With windows: draw classes over time, .html or .png."),
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Classes per video.")] = 5,
    logits: Annotated[
        bool, typer.Option("--logits", help="Add each video's logits to its row.")
    ] = False,
    shard: Annotated[
        str | None, typer.Option(metavar="K/N", help="Only the K-th of N parts of the videos.")
    ] = None,
    out: cli.OutOption = None,
    **options: Any,
) -> None:
    """Predict the classes of videos: files, folders of them, or lists.

    Prints a table, or with --out writes a row per video: path, predictions (label and score, best
    first), error and error_kind. With --windows or --every it has a row per window instead, with
    start and end in seconds. One view per video unless --views or --protocol ask for more. The
    exit code is 1 if a video could not be read, and 3 if a result could not be written.
    """
    given = cli.arguments(locals(), "context", "smooth", "threshold", "segments", "timeline")
    start("sta.inference.predict", model, options["settings"], options["engine"])
    import sta

    _check_windows(
        windows or every,
        {"--segments": segments, "--timeline": timeline},
        {"--smooth": smooth, "--threshold": threshold},
        replace=options["overwrite"] or options["resume"],
    )
    if out is None and (segments or timeline):
        given["overwrite"] = False  # it is about those
    result, interrupted = cli.until_interrupted(lambda: sta.predict(**given))
    if out is None:
        cli.note_default_model(context, model)
        cli.print_result(result)
    how = {"smooth": smooth or 1, "threshold": 0.5 if threshold is None else threshold}
    if timeline is not None:
        sta.timeline(result, timeline, **how)  # type: ignore[arg-type]
    if segments is not None:
        from sta.inference.outputs import writing
        from sta.inference.rows import to_line

        with writing(segments):
            made = sta.segments(result, **how)  # type: ignore[arg-type]
            Path(segments).write_bytes(b"".join(map(to_line, made)))
    stopped_after = result.done if interrupted else None
    cli.finish(result.total, result.failures, out, stopped_after=stopped_after)


def _check_windows(
    windowed: str | None,
    files: Mapping[str, str | None],
    how: Mapping[str, Any],
    *,
    replace: bool,
) -> None:
    """Refuse, before anything runs, options that lack what they are about."""
    for option, value in {**files, **how}.items():
        if value is not None and windowed is None:
            raise ValueError(f"{option} is about windows: give --windows or --every as well")
    for option, value in how.items():
        if value is not None and not any(files.values()):
            raise ValueError(f"{option} is for --segments and --timeline: give one of them")
    if how["--smooth"] is not None and how["--smooth"] % 2 == 0:
        raise ValueError(f"--smooth {how['--smooth']}: use an odd number of windows")
    if (timeline := files["--timeline"]) is not None:
        from sta.explain.timeline import check_timeline

        check_timeline(timeline)
    if (segments := files["--segments"]) is not None:
        if not segments.endswith(".jsonl"):
            raise ValueError(f"--segments {segments}: segments are written as .jsonl")
        cli.check_files(Path(segments))
    for option, file in files.items():
        if file is not None and not replace and Path(file).exists():
            raise FileExistsError(f"{option} {file}: is there already; --overwrite replaces it")
