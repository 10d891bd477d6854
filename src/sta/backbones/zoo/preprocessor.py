"""What ``preprocessor_config.json`` says of a model's clips, read and written.

The file is transformers': size, crop, rescaling and normalisation of the frames. How clips are cut
from a video is kept in it, too, under the key ``clip``, which transformers leaves alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sta.backbones.zoo.spec import ClipSpec

VIDEO_FILE = "video_preprocessor_config.json"
IMAGE_FILE = "preprocessor_config.json"
#: Where the fields are looked for, as transformers' video processors do.
FILES = (VIDEO_FILE, IMAGE_FILE)

_CLIP_FIELDS = ("frames", "stride", "sampling", "temporal", "spatial", "mmaction_crops")
#: transformers' own classes, by a model's type.
_CLASSES = {
    "videomae": "VideoMAEImageProcessor",
    "vivit": "VivitImageProcessor",
    "vjepa2": "VJEPA2VideoProcessor",
}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        content = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object with named fields")
    return content


def read_clip(path: Path, known: ClipSpec, fixed: Mapping[str, tuple[str, int]]) -> ClipSpec:
    """The clips that a file asks for; `known` is expected where it says nothing.

    `fixed` is what the model cannot change, of "size" and "frames": the name of the model's own
    setting and its value. A file that contradicts it, or asks for what is not done here, is
    refused.
    """
    fields = read_json(path)
    crop, short = _sizes(fields, path, known)
    views = _views(fields, path, known)
    mean, std = _statistics(fields, path, known)
    try:
        views = replace(views, size=crop, short_side=None if short == crop else short)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for name, found in (("size", crop), ("frames", views.frames)):
        if name in fixed and found != fixed[name][1]:
            where = "crop_size" if name == "size" else "clip.frames"
            setting, value = fixed[name]
            raise ValueError(
                f"{path}: {where} is {found}, but the model's {setting} is {value}; correct one of "
                f"the two"
            )
    return replace(known, views=views, mean=mean, std=std)


def _views(fields: Mapping[str, Any], path: Path, known: ClipSpec) -> Any:
    clip = fields.get("clip", {})
    if not isinstance(clip, dict) or (unknown := set(clip) - set(_CLIP_FIELDS)):
        wrong = f"has {', '.join(sorted(unknown))}" if isinstance(clip, dict) else f"is {clip!r}"
        raise ValueError(f"{path}: clip {wrong}; use {', '.join(_CLIP_FIELDS)}")
    try:
        return replace(known.views, **clip)
    except ValueError as error:
        raise ValueError(f"{path}: clip: {error}") from None


def _sizes(fields: Mapping[str, Any], path: Path, known: ClipSpec) -> tuple[int, int]:
    """Side of the crop, and short side of the frames that it is cut from."""
    size = fields.get("size")
    short = size.get("shortest_edge") if isinstance(size, dict) else size
    if size is not None and (not isinstance(short, int) or not fields.get("do_resize", True)):
        raise ValueError(
            f"{path}: size is {json.dumps(size)} with do_resize "
            f"{json.dumps(fields.get('do_resize', True))}; frames are resized by their short side "
            f"here, which keeps their shape: expected {{'shortest_edge': pixels}}"
        )
    crop = fields.get("crop_size")
    if isinstance(crop, dict):
        if crop.get("height") != crop.get("width"):
            raise ValueError(
                f"{path}: crop_size is {crop.get('height')} x {crop.get('width')}; crops are "
                f"square here"
            )
        crop = crop.get("height")
    if not fields.get("do_center_crop", True):
        crop = None
    crop = crop or short or known.views.size
    return crop, short or max(crop, known.views.short_side or crop)


def _statistics(
    fields: Mapping[str, Any], path: Path, known: ClipSpec
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and deviation of pixels from 0 to 1 that have the effect of the file's fields.

    transformers computes ``(x * rescale - offset - mean) / std`` of x from 0 to 255.
    """
    kind = str(fields.get("video_processor_type") or fields.get("image_processor_type") or "")
    vivit = kind.startswith("Vivit")
    scale = float(fields.get("rescale_factor") or (1 / 127.5 if vivit else 1 / 255))
    if not fields.get("do_rescale", True):
        scale = 1.0
    shifted = vivit and fields.get("do_rescale", True) and fields.get("offset", True)
    if fields.get("do_normalize", True):
        mean, std = (fields.get(f"image_{name}") for name in ("mean", "std"))
        if mean is None and std is None:
            return known.mean, known.std
    else:
        mean, std = 0.0, 1.0
    means, stds = (
        _per_channel(value, name, path) for value, name in ((mean, "mean"), (std, "std"))
    )
    unit = 255 * scale
    full_mean = tuple((float(shifted) + value) / unit for value in means)
    full_std = tuple(value / unit for value in stds)
    return full_mean, full_std  # type: ignore[return-value]


def _per_channel(value: Any, name: str, path: Path) -> list[float]:
    values = value if isinstance(value, list) else [value] * 3
    numbers = [v for v in values if isinstance(v, int | float)]
    if len(numbers) != 3 or len(values) != 3 or (name == "std" and not all(numbers)):
        raise ValueError(f"{path}: image_{name} is {value!r}; expected three numbers")
    return [float(number) for number in numbers]


def write_clip(folder: Path, clip: ClipSpec, model_type: str | None) -> None:
    """Write the file that `read_clip` reads, by transformers' own class where it has one.

    `model_type` is the type in the model's config; None for a model that is not transformers'.
    """
    views = clip.views
    size = {"shortest_edge": views.short_side or views.size}
    fields: dict[str, Any] = {
        "do_resize": True,
        "size": size,
        "resample": 2,  # bilinear
        "do_center_crop": True,
        "crop_size": {"height": views.size, "width": views.size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(clip.mean),
        "image_std": list(clip.std),
    }
    if model_type == "vivit":  # whose processors take pixels from -1 to 1, whatever offset says
        fields |= {"rescale_factor": 1 / 127.5, "offset": True}
        fields["image_mean"] = [2 * value - 1 for value in clip.mean]
        fields["image_std"] = [2 * value for value in clip.std]
    name = _CLASSES.get(model_type or "")
    if name is not None:
        import transformers

        # V-JEPA 2's class sets the short side by itself; what the model was trained with counts.
        processor = getattr(transformers, name)(**fields)
        fields = {**json.loads(processor.to_json_string()), "size": size}
    cut = asdict(views)
    fields["clip"] = {key: cut[key] for key in _CLIP_FIELDS}
    file = VIDEO_FILE if name is not None and name.endswith("VideoProcessor") else IMAGE_FILE
    (folder / file).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")
