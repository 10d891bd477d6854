"""What ``sta predict`` and ``sta eval`` share: options, set-up, progress and the last words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sta.inference.samples import Scored


class MethodName(StrEnum):
    """What tokens are chosen by: the methods of `sta.methods.make_config`."""

    STA = "sta"
    RANDOM = "random"
    TOME = "tome"
    FRAME_DIFFERENCE = "frame-difference"
    DENSE = "dense"
    RELEASED = "released"


EngineName = Literal["local", "ray"]
RuntimeName = Literal["torch", "compile", "onnxruntime", "openvino", "fastest"]
ProtocolName = Literal["k400", "ssv2"]

#: What --r counts, by method.
R_HELP = (
    "Tokens to drop per frame: at the first of the steps (sta, random, released), or once, at the "
    "input (frame-difference); for tome, tokens to merge per block, of the whole clip."
)

ModelOption = Annotated[
    str, typer.Option(help="Zoo name, hub id, folder or checkpoint: what sta.load takes.")
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Field of the backbone's config that a checkpoint cannot tell, e.g. image_size=112.",
    ),
]
RandomWeightsOption = Annotated[
    bool, typer.Option("--random-weights", help="Do not load weights: to measure speed only.")
]
ConfigOption = Annotated[
    str | None, typer.Option(help="Method and settings from a file, instead of --method and --r.")
]


def _check_views(views: str | None) -> str | None:
    """Found out when options are read, not when the model is loaded."""
    if views is not None:
        from sta.video.views import ViewSpec

        ViewSpec().with_views(views)
    return views


ViewsOption = Annotated[
    str | None, typer.Option(callback=_check_views, help="Clips x crops per video, e.g. 5x3.")
]
FramesOption = Annotated[int | None, typer.Option(min=1, help="Frames per clip.")]
StrideOption = Annotated[int | None, typer.Option(min=1, help="Distance between frames.")]
SizeOption = Annotated[int | None, typer.Option(min=1, help="Side of a clip in pixels.")]
ProtocolOption = Annotated[
    ProtocolName | None, typer.Option(help="Test views as published for this data set.")
]
BatchOption = Annotated[int, typer.Option(min=1, help="Clips per forward.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...; auto takes a GPU.")]
RuntimeOption = Annotated[
    RuntimeName, typer.Option(help="What runs the model; fastest tries all on the first batch.")
]
RootOption = Annotated[str | None, typer.Option(help="Where the list's paths start.")]
OutOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write a row per video: .jsonl, .parquet or .csv."),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the file in --out.")]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Start the file in --out anew, if it is there.")
]
TimeoutOption = Annotated[
    float, typer.Option(min=0.1, help="Seconds of silence after which a video is given up.")
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Decoding processes.")]
EngineOption = Annotated[EngineName, typer.Option(help="Where to run.")]
AddressOption = Annotated[
    str | None, typer.Option(help="Ray cluster: auto, or host:port. A local one without.")
]
ActorsOption = Annotated[int | None, typer.Option(min=1, help="Model replicas on Ray.")]


def choose_device(name: str) -> str:
    """The device that a name means here."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"--device {name}: not usable here ({why})") from None
    return name


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """``field=value`` pairs as keyword arguments; values are JSON where they can be."""
    settings = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair}: give FIELD=VALUE, e.g. image_size=112")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


def watched(videos: Iterable[Scored], total: int, done: int) -> Iterator[Scored]:
    """The same videos, with a bar that shows clips per second and the time left."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("videos", total=total, completed=done, speed="")
        start, clips = time.monotonic(), 0
        for video in videos:
            yield video
            clips += video.views
            speed = clips / (time.monotonic() - start)
            progress.update(task, advance=1, speed=f"{speed:.1f} clips/s")


def failures(rows: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    """Path and error of every video that failed."""
    return list({row["path"]: row["error"] for row in rows if row["error"] is not None}.items())


def finish(count: int, failures: Sequence[tuple[str, str]], where: str | None) -> None:
    """Name what failed, and leave with code 1 if anything did."""
    for path, error in failures:
        typer.echo(f"failed: {path}: {error}", err=True)
    videos = f"{count} video{'' if count == 1 else 's'}"
    share = f"{len(failures)} of {videos} failed" if failures else videos
    typer.echo(f"{share}{f'; rows in {where}' if where else ''}", err=True)
    if failures:
        raise typer.Exit(1)


def interrupted(out: str | None) -> NoReturn:
    """Ctrl-C: say how to go on."""
    hint = f"; the same command with --resume goes on with {out}" if out else ""
    typer.echo(f"interrupted{hint}", err=True)
    raise typer.Exit(130)
