"""``sta train``: the paper's training recipe, dense or with dropped tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from sta.train.recipe import Precision, TrainConfig

if TYPE_CHECKING:
    from torch import nn

    from sta.train.clips import Clips

_DEFAULT = TrainConfig()


def train(
    data: Annotated[
        str, typer.Argument(help="'digits', a list of 'path label' lines, or a folder per class.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished one is continued.")],
    model: Annotated[str, typer.Option(help="What sta.load takes.")] = "vit-digits",
    scratch: Annotated[bool, typer.Option(help="Forget the model's weights first.")] = False,
    classes: Annotated[int, typer.Option(help="New head of so many classes; 0 keeps it.")] = 0,
    evaluation: Annotated[
        str | None, typer.Option(help="List or folder to measure accuracy on after each epoch.")
    ] = None,
    root: Annotated[str | None, typer.Option(help="Where the lists' paths start.")] = None,
    clips: Annotated[int, typer.Option(help="Training clips, for 'digits'.")] = 16_384,
    frames: Annotated[int, typer.Option(help="Per clip; 0 is what the model tells.")] = 0,
    stride: Annotated[int, typer.Option(help="Between frames of a clip.")] = 4,
    size: Annotated[int, typer.Option(help="Side of a clip; 0 is what the model tells.")] = 0,
    epochs: Annotated[int, typer.Option(help="Passes over the clips.")] = _DEFAULT.epochs,
    warmup_epochs: Annotated[
        float, typer.Option(help="Epochs the rate takes to rise.")
    ] = _DEFAULT.warmup_epochs,
    batch: Annotated[int, typer.Option(help="Clips per step and process.")] = _DEFAULT.batch,
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
            f"{_DEFAULT.flip:g} without, 0 for 'digits'."
        ),
    ] = None,
    colour: Annotated[
        bool | None,
        typer.Option(
            help="Change colours; --no-colour where they are classes. On without, off for 'digits'."
        ),
    ] = None,
    clip_norm: Annotated[
        float, typer.Option(help="Longest gradient; 0 is any.")
    ] = _DEFAULT.clip_norm,
    r: Annotated[int, typer.Option(help="Tokens to drop per frame; 0 trains dense.")] = _DEFAULT.r,
    precision: Annotated[str, typer.Option(help="no, bf16 or fp16.")] = _DEFAULT.precision,
    seed: Annotated[int, typer.Option(help="Of order and augmentation.")] = _DEFAULT.seed,
    workers: Annotated[int, typer.Option(help="Processes that load clips.")] = _DEFAULT.workers,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out.")] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the epochs' rows here.")
    ] = None,
) -> None:
    """Train a model by the paper's recipe; with --r, on the tokens that STA keeps.

    Several processes: torchrun --nproc-per-node 8 -m sta train ... TensorBoard: --logdir OUT/log.
    """
    import sta
    from sta.train.head import fresh, replace_head
    from sta.train.loop import train as run

    if data == "digits":
        if flip or colour:
            raise ValueError(
                "left and right are classes of digit actions, and so are the colours: leave --flip "
                "and --colour out"
            )
        flip, colour = 0.0, False
    config = TrainConfig(
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        batch=batch,
        base_rate=base_rate,
        weight_decay=weight_decay,
        label_smoothing=label_smoothing,
        mixup=mixup,
        cutmix=cutmix,
        randaugment=randaugment,
        repeats=repeats,
        flip=_DEFAULT.flip if flip is None else flip,
        colour=_DEFAULT.colour if colour is None else colour,
        clip_norm=clip_norm,
        r=r,
        precision=cast(Precision, precision),
        seed=seed,
        workers=workers,
    )
    net = sta.load(model)
    net = fresh(net) if scratch else net
    if classes:
        replace_head(net, classes)
    shape = (frames, stride, size)
    training = _clips(data, net, shape, root, training=True, size=clips)
    measured = _clips(evaluation, net, shape, root, training=False) if evaluation else None
    history = run(net, training, config, out, evaluation=measured, resume=resume)
    if json_file is not None:
        json_file.write_text("".join(json.dumps(row) + "\n" for row in history))
    typer.echo(f"The trained model is in {out / 'model'}")


def _clips(
    name: str,
    model: nn.Module,
    shape: tuple[int, int, int],
    root: str | None,
    *,
    training: bool,
    size: int = 1024,
) -> Clips:
    """The clips that a name stands for, in the shape that the model takes."""
    from sta.train.clips import FileClips
    from sta.train.head import classes_of
    from sta.video import ViewSpec
    from sta.video.digits import CLASS_NAMES, DigitActions

    if name == "digits":
        if classes_of(model) != len(CLASS_NAMES):
            raise ValueError(
                f"the model has {classes_of(model)} classes, digit actions have "
                f"{len(CLASS_NAMES)}: use --classes {len(CLASS_NAMES)}"
            )
        return DigitActions("train" if training else "test", size=size)
    config = getattr(model, "config", None)
    frames = shape[0] or getattr(config, "num_frames", 32)
    side = shape[2] or getattr(config, "image_size", 224)
    spec = ViewSpec(frames=frames, stride=shape[1], size=side)
    return FileClips(name, spec, classes_of(model), root=root, training=training)
