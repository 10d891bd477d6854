"""``sta show``: which tokens of a clip are kept, to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sta.cli import inference as cli

if TYPE_CHECKING:
    from sta.explain.look import ClipLook

PICTURES, PAGES = (".png", ".pdf"), (".html",)
FILMS = (".mp4", ".gif", ".webp", ".webm", ".mkv", ".mov")


def show(
    video: Annotated[
        str, typer.Argument(metavar="VIDEO", help="A file, or digits:5 for a clip made on the fly.")
    ],
    model: cli.ModelOption = "vit-digits",
    r: Annotated[
        int | None,
        typer.Option(min=0, help=f"{cli.R_HELP} About a third without."),
    ] = None,
    method: Annotated[
        cli.MethodName, typer.Option(help="How tokens are chosen.")
    ] = cli.MethodName.STA,
    compare: Annotated[
        list[cli.MethodName] | None,
        typer.Option(help="More methods, left with as many tokens: --compare random tome."),
    ] = None,
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
    rounds: Annotated[int, typer.Option(min=1, help="How often each method is timed.")] = 5,
    device: cli.DeviceOption = "auto",
    timeout: cli.TimeoutOption = 60.0,
    settings: cli.SettingOption = None,
    random_weights: cli.RandomWeightsOption = False,
) -> None:
    """Show which tokens of a clip each pruning step keeps: pictures, a film, a page.

    The clip in the middle of the video is run through the model as it is and under each method.
    """
    from sta.backbones.zoo.video_model import load_video_model
    from sta.explain.look import look
    from sta.explain.source import read_clip, rivals, single_view
    from sta.video.decode import VideoError

    _check_ending(out)
    opened = load_video_model(
        model, random_weights=random_weights, **cli.parse_settings(settings or ())
    )
    methods = rivals(opened, method, r, compare or (), config)
    try:
        clip = read_clip(video, single_view(opened, stride), timeout=timeout)
    except VideoError as error:
        typer.echo(f"failed: {video}: {error}", err=True)
        raise typer.Exit(1) from None
    seen = look(
        opened,
        clip.seen,
        list(methods.values()),
        clip_name=clip.name,
        model_name=Path(model).name,
        frames=clip.shown,
        device=cli.choose_device(device),
        rounds=rounds,
    )
    if out.suffix:
        files = [out, *(out.with_suffix(ending) for ending in PAGES if html)]
        files = list(dict.fromkeys(files))
    else:
        endings = [*PICTURES, ".gif" if gif else ".mp4", *(PAGES if html else ())]
        files = [out / f"{clip.name}{ending}" for ending in endings]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        _write(seen, file, columns, dots, fps)
        typer.echo(f"wrote {file}")


def _check_ending(out: Path) -> None:
    known = (*PICTURES, *FILMS, *PAGES)
    if out.suffix and out.suffix not in known and not out.is_dir():
        raise ValueError(f"--out {out}: use a folder, or a file that ends in {' '.join(known)}")


def _write(seen: ClipLook, file: Path, columns: int, dots: int, fps: int) -> None:
    from sta.explain import animation, page, strip

    if file.suffix in PICTURES:
        strip.save(strip.strip(seen, columns), file, dots)
    elif file.suffix in FILMS:
        animation.save(seen, file, fps)
    else:
        page.save(seen, file, fps)
