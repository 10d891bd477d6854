"""``sta data``: labelled video that is made, and caches of frames."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from sta.cli import options as cli
from sta.progress import track

app = typer.Typer(no_args_is_help=True, help="Make labelled video, and caches of frames.")


@app.callback()
def _group() -> None:
    """Make labelled video, and caches of frames."""


@app.command()
def digits(
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    split: Annotated[str, typer.Option(help="train or test; they share no digit image.")] = "test",
    clips: Annotated[
        int, typer.Option(min=1, help="How many; the test split's standard is 4096.")
    ] = 4096,
    camera_jitter: Annotated[bool, typer.Option(help="Shake the camera.")] = False,
    takes: Annotated[
        int, typer.Option(min=1, help="Clips in a row, of one label: videos of several views.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Another seed is another data set.")] = 0,
    crf: Annotated[
        int | None, typer.Option(help="H.264 quality, 0 to 51. Default: lossless.")
    ] = None,
) -> None:
    """Write digit actions as video files, with a Kinetics-style list (path label).

    A digit moves among others that stand still; the label is how it moves and its colour.
    """
    from sta.video.digits import CLASSES, LIST, DigitActions, Split, check_target, write_videos

    data = DigitActions(cast(Split, split), size=clips, camera_jitter=camera_jitter, seed=seed)
    check_target(split, out, crf)
    for _ in track(write_videos(data, out, crf=crf, takes=takes), clips, "videos"):
        pass
    name = out / LIST.format(split=split)
    typer.echo(f"{clips} videos: {name} lists them, {out / CLASSES} names the classes.")
    typer.echo(f"Try: sta eval {name} --model vit-digits")


@app.command()
def cache(
    source: Annotated[str, typer.Argument(help="A list, a folder per class, or a folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the cache; an unfinished one goes on.")],
    root: cli.RootOption = None,
    size: Annotated[int, typer.Option(min=1, help="Short side of the frames.")] = 128,
    frames: Annotated[
        str, typer.Option(help="Frames to keep of each video, evenly spread, or 'all'.")
    ] = "all",
    workers: cli.WorkersOption = None,
) -> None:
    """Decode videos once to small frames, which `sta train` and `sta eval` read in their place."""
    from sta.video.cache import count_videos, make_cache

    if frames != "all" and not frames.isdecimal():
        raise ValueError(f"--frames {frames}: give a number, or all")
    kept = None if frames == "all" else int(frames)
    videos = make_cache(source, out, root=root, size=size, frames=kept, workers=workers)
    failed = 0
    for name, problem in track(videos, count_videos(source, root), "videos"):
        if problem is not None:
            failed += 1
            typer.echo(f"left out: {name}: {problem}", err=True)
    typer.echo(f"{out} is ready: sta train {out}, sta eval {out}")
    if failed:
        raise typer.Exit(1)
