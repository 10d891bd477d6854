"""What commands share: options, those that take several values, and how a command ends.

Several values are ``--r 0 32 64`` as well as ``--r 0 --r 32 --r 64``. Click, and typer on top of
it, know options of a fixed number of values only: an option with ``nargs=-1`` is refused when it is
made. So the option is repeated before each of its values, and the parser sees the second form.
"""

from __future__ import annotations

import csv
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

import typer
from typer.core import TyperCommand

from sta.methods import METHODS, has_r, method_names
from sta.results import print_result as print_result

T = TypeVar("T")
#: Failures that are named at the end; the others are counted.
NAMED = 10
#: Endings of files that are plotted into.
PLOTS = (".png", ".pdf", ".svg")


if TYPE_CHECKING:

    class MethodName(StrEnum):
        """What tokens are chosen by: a method's or a preset's name. These are used as defaults."""

        STA = "sta"
        RANDOM = "random"
else:  # all that are registered
    _members = {name.replace("-", "_").upper(): name for name in method_names()}
    MethodName = StrEnum("MethodName", _members)


EngineName = Literal["local", "ray"]
RuntimeName = Literal["auto", "torch", "compile", "onnxruntime", "openvino"]
PrecisionName = Literal["float32", "float16", "bfloat16", "int8"]
ProtocolName = Literal["k400", "ssv2"]
DecoderName = Literal["pyav", "torchcodec"]


def _r_help() -> str:
    """What --r counts, by method."""
    by_count: dict[str, list[str]] = {}
    for name, config in METHODS.items():
        if has_r(config):
            by_count.setdefault(config.r_counts, []).append(name)
    text = "; ".join(f"{counts} ({', '.join(names)})" for counts, names in by_count.items())
    return f"{text[0].upper()}{text[1:]}."


R_HELP = _r_help()

ModelOption = Annotated[
    str, typer.Option(help="Zoo name, hub id, folder, checkpoint or exported file.")
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
    RuntimeName, typer.Option(help="What runs the model; auto is what finishes first here.")
]
PrecisionOption = Annotated[
    PrecisionName,
    typer.Option(help="float16 and bfloat16 where the device has them; int8 on CPUs, in openvino."),
]
#: Of commands that run PyTorch alone.
TorchPrecisionOption = Annotated[
    Literal["float32", "float16", "bfloat16"],
    typer.Option(help="What all compute in."),
]
CalibrateOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="VIDEO|FOLDER|LIST",
        help="What int8 takes its ranges from. Default: the first videos.",
    ),
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
RetryFailedOption = Annotated[
    bool, typer.Option("--retry-failed", help="With --resume: try all failed videos again.")
]


def _check_timeout(seconds: float) -> float:
    if not 0.1 <= seconds < math.inf:
        raise ValueError(f"--timeout {seconds:g}: use a finite number of seconds, 0.1 or more")
    return seconds


TimeoutOption = Annotated[
    float,
    typer.Option(
        callback=_check_timeout, help="Seconds of silence after which a video is given up."
    ),
]
DecoderOption = Annotated[
    DecoderName,
    typer.Option(
        help="What decodes; torchcodec does it on the GPU where there is one, needs pip install "
        "torchcodec, and is for videos that you trust."
    ),
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Decoding processes.")]
EngineOption = Annotated[EngineName, typer.Option(help="Where to run.")]
AddressOption = Annotated[
    str | None, typer.Option(help="Ray cluster: auto, or host:port. Default: a local one.")
]
ActorsOption = Annotated[int | None, typer.Option(min=1, help="Model replicas on Ray.")]
MatchGflopsOption = Annotated[
    bool,
    typer.Option(
        "--match-gflops", help="Give every other method the r that comes closest to STA's cost."
    ),
]
ClipsOption = Annotated[
    int | None, typer.Option(min=1, help="Limit on the videos: the first ones.")
]
RoundsOption = Annotated[int, typer.Option(min=1, help="How often each is timed.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV.")
]
PlotOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .pdf or .svg.")
]


#: Options that predict, eval and features share, as `sta.inference.options` has them.
_RUN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "config": (ConfigOption, None),
    "frames": (FramesOption, None),
    "stride": (StrideOption, None),
    "size": (SizeOption, None),
    "batch_size": (BatchOption, 8),
    "device": (DeviceOption, "auto"),
    "runtime": (RuntimeOption, "auto"),
    "precision": (PrecisionOption, "float32"),
    "calibrate": (CalibrateOption, None),
    "root": (RootOption, None),
    "resume": (ResumeOption, False),
    "overwrite": (OverwriteOption, False),
    "retry_failed": (RetryFailedOption, False),
    "timeout": (TimeoutOption, 60.0),
    "decoder": (DecoderOption, "pyav"),
    "workers": (WorkersOption, None),
    "engine": (EngineOption, "local"),
    "address": (AddressOption, None),
    "actors": (ActorsOption, None),
    "settings": (SettingOption, None),
    "random_weights": (RandomWeightsOption, False),
}


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose `**options` are those of a run over videos."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)
        for name, (option, default) in _RUN_OPTIONS.items()
    ]
    taken: Any = command
    taken.__signature__ = signature.replace(parameters=[*own, *shared])
    taken.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return command


def arguments(options: Mapping[str, Any], *leave_out: str, **renamed: str) -> dict[str, Any]:
    """A command's options, its `locals()` at the start, as arguments of its function.

    Some are left out, as the command's alone; some are renamed, ``option="argument"``. `**options`
    among them count as well.
    """
    options = {**options, **options.get("options", {})}
    found = {
        renamed.get(name, name): _value(value)
        for name, value in options.items()
        if name not in ("settings", "options", *leave_out)
    }
    if "settings" in options:
        found["overrides"] = parse_settings(options["settings"] or ())
    return found


def _value(option: Any) -> Any:
    """An option without enums, which only the command line has."""
    if isinstance(option, list):
        return [_value(one) for one in option]
    return option.value if isinstance(option, StrEnum) else option


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


def check_files(*files: Path | None, plot: Path | None = None) -> None:
    """Refuse files that cannot be written, or drawn, now, not when the work is done."""
    from sta.inference.outputs import check_writable
    from sta.runtime.extras import require

    if plot is not None:
        if plot.suffix not in PLOTS:
            raise ValueError(
                f"--plot {plot}: unknown ending {plot.suffix!r}; use one of {' '.join(PLOTS)}"
            )
        require("matplotlib", "--plot", "plot")
    for file in (*files, plot):
        if file is not None:
            check_writable(file)


def write_json(file: Path | None, content: Any) -> None:
    """Write a file, if there is one to write."""
    from sta.inference.outputs import writing

    if file is not None:
        with writing(file):
            file.write_text(json.dumps(content, indent=1) + "\n")


def write_csv(file: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, if there is a file to write; columns that only some have are empty in others."""
    from sta.inference.outputs import writing

    if file is not None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        with writing(file), file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, names)
            writer.writeheader()
            writer.writerows(rows)


def write_plot(file: Path | None, draw: Callable[[Path], None]) -> None:
    """Draw into a file, if there is one to draw into."""
    from sta.inference.outputs import writing

    if file is not None:
        with writing(file):
            draw(file)


def note_default_model(context: typer.Context, model: str) -> None:
    """The default is there to try things out: who did not ask for it is told what it knows."""
    source = context.get_parameter_source("model")
    if source is not None and source.name == "DEFAULT":
        typer.echo(
            f"note: {model} knows moving digits alone; give --model for other videos "
            "(`sta models` lists some)",
            err=True,
        )


def note_methods_without_r(methods: Sequence[str] | None, r: Sequence[int]) -> None:
    """Say to which methods r means nothing."""
    for name in methods or ():
        if any(r) and name in METHODS and not has_r(METHODS[name]):
            typer.echo(
                f"note: {name} has no r; it runs by its own settings, which --config FILE changes",
                err=True,
            )


def until_interrupted(call: Callable[[], T]) -> tuple[T, bool]:
    """What a run gives; and what was done until then, with True, if Ctrl-C ended it."""
    from sta.inference.collect import Interrupted

    try:
        return call(), False
    except Interrupted as stopped:
        return stopped.result, True


def interrupted(where: str | None, when: str = "") -> NoReturn:
    """After Ctrl-C: say how to go on."""
    hint = f"; the same command with --resume goes on with {where}" if where else ""
    typer.echo(f"interrupted{when}{hint}", err=True)
    raise typer.Exit(130)


def finish(
    count: int,
    failures: Sequence[tuple[str, ...]],
    where: str | None,
    *,
    stopped_after: int | None = None,
) -> None:
    """Name what failed, and leave with code 1 if anything did, or 130 after Ctrl-C.

    `stopped_after` is how many of `count` videos were done when Ctrl-C ended the run.
    """
    for path, error, *_ in failures[:NAMED]:
        typer.echo(f"failed: {path}: {error}", err=True)
    if len(failures) > NAMED:
        hint = "all are in the rows" if where else "--out FILE keeps them all"
        typer.echo(f"failed: {len(failures) - NAMED} more; {hint}", err=True)
    videos = f"{count} video{'' if count == 1 else 's'}"
    if stopped_after is not None:
        interrupted(where, f" after {stopped_after} of {videos}")
    share = f"{len(failures)} of {videos} failed" if failures else videos
    typer.echo(f"{share}{f'; rows in {where}' if where else ''}", err=True)
    if failures:
        raise typer.Exit(1)


#: The options, and which words are values of them. A path after ``--r 0 32`` is an argument again.
MULTI_VALUE: dict[str, Callable[[str], bool]] = {
    "--r": lambda word: word.lstrip("-").isdigit(),
    "--method": lambda word: word in ("stock", *method_names()),
    "--compare": lambda word: word in method_names(),
}


class MultiValueCommand(TyperCommand):
    """A command whose repeatable options take all the values that follow them."""

    multi_value: ClassVar[Mapping[str, Callable[[str], bool]]] = MULTI_VALUE

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values, as the parser knows it."""
        return super().parse_args(ctx, list(_repeat_flags(args, self.multi_value)))


def _repeat_flags(
    args: Sequence[str], multi_value: Mapping[str, Callable[[str], bool]]
) -> Iterator[str]:
    flag = None
    first = False  # the word right after the flag is the parser's business, right or wrong
    for word in args:
        if word in multi_value:
            flag, first = word, True
        elif flag is not None:
            if first:
                first = False
            elif multi_value[flag](word):
                yield flag
            else:
                flag = None
        yield word
