"""``sta train``: the paper's training recipe, dense or with dropped tokens."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sta.cli import options as cli
from sta.train.recipe import TrainConfig

if TYPE_CHECKING:
    from sta.backbones.zoo.video_model import VideoModel
    from sta.train.clips import Clips

_DEFAULT = TrainConfig()
_RECIPE = [field.name for field in fields(TrainConfig)]


def train(
    data: Annotated[
        str,
        typer.Argument(
            help="'digits', a list of 'path label' lines, a folder per class, or a cache of either."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished one is continued.")],
    model: cli.ModelOption = "vit-digits",
    scratch: Annotated[bool, typer.Option(help="Forget the model's weights first.")] = False,
    classes: Annotated[
        str | None,
        typer.Option(help="New head: how many classes, or a file with a class name per line."),
    ] = None,
    evaluation: Annotated[
        str | None, typer.Option(help="List or folder to measure accuracy on after each epoch.")
    ] = None,
    root: cli.RootOption = None,
    clips: Annotated[int, typer.Option(help="Training clips, for 'digits'.")] = 16_384,
    frames: cli.FramesOption = None,
    stride: cli.StrideOption = None,
    size: cli.SizeOption = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="strided, centred or uniform (frames spread over the video). Default: the model's."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the clips.")] = _DEFAULT.epochs,
    warmup_epochs: Annotated[
        float, typer.Option(help="Epochs the rate takes to rise.")
    ] = _DEFAULT.warmup_epochs,
    batch: Annotated[
        int, typer.Option("--batch-size", "--batch", help="Clips per step and process.")
    ] = _DEFAULT.batch,
    base_rate: Annotated[
        float, typer.Option(help="Learning rate at 256 clips per step.")
    ] = _DEFAULT.base_rate,
    weight_decay: Annotated[float, typer.Option(help="AdamW's.")] = _DEFAULT.weight_decay,
    label_smoothing: Annotated[float, typer.Option(help="0 to 1.")] = _DEFAULT.label_smoothing,
    mixup: Annotated[float, typer.Option(help="Alpha; 0 is off.")] = _DEFAULT.mixup,
    cutmix: Annotated[float, typer.Option(help="Alpha; 0 is off.")] = _DEFAULT.cutmix,
    randaugment: Annotated[
        float, typer.Option(help="Magnitude, 0 (off) to 10.")
    ] = _DEFAULT.randaugment,
    repeats: Annotated[
        int, typer.Option(help="Augmented copies of each clip in a batch.")
    ] = _DEFAULT.repeats,
    flip: Annotated[
        float | None,
        typer.Option(
            help="Chance to mirror; 0 where left and right are classes. "
            f"Default: {_DEFAULT.flip:g}, and 0 for 'digits'."
        ),
    ] = None,
    colour: Annotated[
        bool | None,
        typer.Option(
            help="Change colours, unless they are classes. Default: on, off for 'digits'."
        ),
    ] = None,
    clip_norm: Annotated[
        float, typer.Option(help="Longest gradient; 0 is any.")
    ] = _DEFAULT.clip_norm,
    r: Annotated[
        int, typer.Option(help="What to drop, as the method counts; 0 trains dense.")
    ] = _DEFAULT.r,
    method: Annotated[
        cli.MethodName,
        typer.Option(help="What chooses; one that learns is trained, too."),
    ] = cli.MethodName.STA,
    precision: Annotated[str, typer.Option(help="no, bf16 or fp16.")] = _DEFAULT.precision,
    seed: Annotated[
        int, typer.Option(help="Of new weights, order and augmentation.")
    ] = _DEFAULT.seed,
    workers: Annotated[int, typer.Option(help="Processes that load clips.")] = _DEFAULT.workers,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out.")] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the epochs' rows here.")
    ] = None,
) -> None:
    """Train a model by the paper's recipe; with --r, on the tokens that STA or --method keeps.

    Several processes: torchrun --nproc-per-node 8 -m sta train ... TensorBoard: --logdir OUT/log.
    """
    options = dict(locals())
    import torch

    from sta.backbones.zoo.video_model import load_video_model, view_spec
    from sta.runtime.extras import require

    require("accelerate", "training", "train")
    from sta.train.head import fresh, replace_head
    from sta.train.loop import train as run
    from sta.video.views import Sampling

    if data == "digits":
        if flip or colour:
            raise ValueError(
                "left and right are classes of digit actions, and so are the colours: leave --flip "
                "and --colour out"
            )
        options |= {"flip": 0.0, "colour": False}
    options["method"] = method.value
    config = TrainConfig(**{k: options[k] for k in _RECIPE if options.get(k) is not None})
    names = None if classes is None else _class_names(classes, data)
    video_model = load_video_model(model, new_head=names is not None)
    torch.manual_seed(seed)  # of a new head, or of all weights
    if scratch:
        video_model.model = fresh(video_model.model)
    if names is not None:
        replace_head(video_model.model, names)
        video_model.class_names = names
    if data == "digits" or evaluation == "digits":
        frames, stride, size, sampling = _digits(video_model.class_names)
    spec = view_spec(video_model, frames=frames, stride=stride, size=size, views="1x1")
    if sampling is not None:
        spec = replace(spec, sampling=cast(Sampling, sampling))
    video_model.clip = replace(video_model.clip, views=spec)
    training = _clips(data, video_model, root, training=True, size=clips)
    measured = _clips(evaluation, video_model, root, training=False) if evaluation else None
    history = run(
        video_model,
        training,
        config,
        out,
        evaluation=measured,
        resume=resume,
        progress=sys.stderr.isatty(),  # elsewhere the log is enough
    )
    if json_file is not None:
        json_file.write_text("".join(json.dumps(row) + "\n" for row in history))
    typer.echo(f"The trained model is in {out / 'model'}")


def _class_names(classes: str, data: str) -> tuple[str, ...]:
    """The names that --classes stands for: of a file, of the data's folders, or numbers."""
    from sta.video.digits import CLASS_NAMES
    from sta.video.lists import class_folders, is_folder, read_names

    if not classes.isdecimal():
        return tuple(read_names(classes))
    count = int(classes)
    if data == "digits" and count == len(CLASS_NAMES):
        return CLASS_NAMES
    if data != "digits" and is_folder(data) and (folders := class_folders(data)):
        if len(folders) != count:
            raise ValueError(
                f"--classes {count}: {data} has {len(folders)} folders of videos; give that "
                f"number, or a file with the class names"
            )
        return tuple(folders)
    return tuple(f"class {number}" for number in range(count))


def _digits(class_names: tuple[str, ...]) -> tuple[int, int, int, str]:
    """Frames, stride, size and sampling of digit actions, which leave no choice."""
    from sta.video.digits import CLASS_NAMES, FRAMES, SIDE

    if len(class_names) != len(CLASS_NAMES):
        raise ValueError(
            f"the model has {len(class_names)} classes, digit actions have "
            f"{len(CLASS_NAMES)}: use --classes {len(CLASS_NAMES)}"
        )
    return FRAMES, 1, SIDE, "strided"


def _clips(
    name: str, video_model: VideoModel, root: str | None, *, training: bool, size: int = 1024
) -> Clips:
    """The clips that a name stands for, as the model takes them."""
    from sta.train.clips import FileClips
    from sta.video.digits import DigitActions

    if name == "digits":
        return DigitActions("train" if training else "test", size=size)
    names = video_model.class_names
    return FileClips(name, video_model.clip.views, names, root=root, training=training)
