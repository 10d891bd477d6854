"""``sta show``: pictures of the tokens that each pruning step keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sta.cli import options as cli


def show(
    video: Annotated[
        str, typer.Argument(metavar="VIDEO", help="A file, or digits:5 for a generated clip.")
    ],
    model: cli.ModelOption = "vit-digits",
    r: Annotated[
        int | None,
        typer.Option(min=0, help=f"{cli.R_HELP} Default: about a third."),
    ] = None,
    method: Annotated[
        cli.MethodName, typer.Option(help="How tokens are chosen.")
    ] = cli.MethodName.STA,
    compare: Annotated[
        list[cli.MethodName], typer.Option(help="More methods, left with as many tokens.")
    ] = [],  # noqa: B006, typer copies it
    config: cli.ConfigOption = None,
    out: Annotated[
        Path,
        typer.Option(
            help="A folder for the strip (PNG, PDF) and the film (MP4); or one file, whose ending "
            "says what it is: .png .pdf .mp4 .gif .webp .html."
        ),
    ] = Path("out"),
    html: Annotated[
        bool, typer.Option("--html", help="Also write a page with sliders over time and step.")
    ] = False,
    gif: Annotated[bool, typer.Option("--gif", help="Film as GIF instead of MP4.")] = False,
    columns: Annotated[int, typer.Option(min=1, help="Frames on the strip, at most.")] = 8,
    dots: Annotated[
        int, typer.Option(min=30, max=600, help="Of the PNG per inch; a frame is an inch wide.")
    ] = 144,
    fps: Annotated[int, typer.Option(min=1, max=100, help="Frames of the film per second.")] = 8,
    stride: cli.StrideOption = None,
    rounds: Annotated[
        int, typer.Option(min=0, help="How often each method is timed; 0 leaves it out.")
    ] = 5,
    device: cli.DeviceOption = "auto",
    timeout: cli.TimeoutOption = 60.0,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Show which tokens of a clip each pruning step keeps: pictures, a film, a page.

    The clip in the middle of the video is run through the model as it is and under each method.
    """
    options = cli.arguments(locals(), "out", "html", "gif", "columns", "dots", "fps")
    import sta
    from sta.explain.inspect import PAGES, PICTURES, check_ending
    from sta.video.decode import VideoError

    single = bool(out.suffix) and not out.is_dir()
    if single:
        check_ending(out)
    try:
        shown = sta.show(**options)
    except VideoError as error:
        typer.echo(f"failed: {video}: {error}", err=True)
        raise typer.Exit(1) from None
    cli.print_result(shown)
    if single:
        files = [out, *(out.with_suffix(ending) for ending in PAGES if html)]
    else:
        endings = [*PICTURES, ".gif" if gif else ".mp4", *(PAGES if html else ())]
        files = [out / f"{shown.clip}{ending}" for ending in endings]
    for file in dict.fromkeys(files):
        typer.echo(f"wrote {shown.save(file, columns=columns, dots=dots, fps=fps)}")
