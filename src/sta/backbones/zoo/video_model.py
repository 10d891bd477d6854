"""What inference must know of a model: its clips, its class names, its family."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import sta
from sta.backbones.zoo import embedded, entries
from sta.backbones.zoo.spec import IMAGENET_MEAN, IMAGENET_STD, ClipSpec, Layout, TorchvisionWeights
from sta.video.views import ViewSpec, protocol

#: Mean and standard deviation of the pixels where they are not ImageNet's, by transformers' names.
_HALF = (0.5, 0.5, 0.5)
_PIXELS = {"vivit": (_HALF, _HALF)}

#: Whole numbers of so many bytes, to look at the bits of other types as.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class VideoModel:
    """A loaded model with what goes in and what comes out.

    Attributes:
        model: The classifier.
        clip: The clips it expects, and its own test views.
        names: Class names in label order.
        family: ``"vit"`` or ``"swin"``, whose test protocols differ.
    """

    model: nn.Module
    clip: ClipSpec
    names: tuple[str, ...]
    family: str


def load_video_model(name: str, *, random_weights: bool = False, **overrides: Any) -> VideoModel:
    """Load a model and find out what it expects.

    Args:
        name: What `sta.load` takes.
        random_weights: Build it with random weights, the same ones every time.
        overrides: Passed on to `sta.load`.
    """
    if not random_weights:
        return describe(sta.load(name, **overrides), *_told(name))
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the same ones every time, so that two runs can be compared
        return describe(sta.load(name, weights=None, **overrides), *_told(name))


def _told(name: str) -> tuple[ClipSpec | None, tuple[str, ...] | None]:
    """The clip and the class names that a name of the zoo stands for, where it tells them."""
    if name in embedded.names():
        facts = embedded.facts(name)
        given = facts["input"]
        views = ViewSpec(given["frames"], given["stride"], given["size"], 1, 1, "strided")
        layout: Layout = "TCHW" if facts["backbone"] == "vit" else "CTHW"
        clip = ClipSpec(views, layout, tuple(given["mean"]), tuple(given["std"]))
        return clip, tuple(facts["labels"])
    if not entries.known(name):
        return None, None
    found = entries.find(name)
    if isinstance(found.source, TorchvisionWeights):
        from torchvision.models import get_weight

        meta = get_weight(f"{found.source.enum}.{found.source.member}").meta
        return found.clip, tuple(meta["categories"])
    return found.clip, None


def describe(
    model: nn.Module, clip: ClipSpec | None = None, names: tuple[str, ...] | None = None
) -> VideoModel:
    """What the model itself tells; `clip` and `names` are what is known of it from elsewhere."""
    config: Any = getattr(model, "config", None)
    if config is None:  # torchvision's
        known = clip or ClipSpec(protocol("k400", "swin"), "CTHW")
        return VideoModel(model, known, names or _numbered(_outputs(model)), "swin")
    told: dict[str, Any] = config.to_dict()
    if clip is None:
        mean, std = _PIXELS.get(told["model_type"], (IMAGENET_MEAN, IMAGENET_STD))
        clip = ClipSpec(protocol("k400", "vit"), "TCHW", mean, std)
    frames = told.get("num_frames") or told.get("frames_per_clip") or clip.views.frames
    size = told.get("crop_size") or told.get("image_size") or clip.views.size
    side = size if isinstance(size, int) else size[0]
    clip = replace(clip, views=replace(clip.views, frames=frames, size=side))
    if names is None:
        names = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    return VideoModel(model, clip, names, "vit")


def fingerprint(model: nn.Module) -> str:
    """A word that tells weights apart, from all their bits: the same model gives the same one."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        bits = value.detach().contiguous().view(_INTEGERS[value.element_size()])
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {int(bits.sum())} ".encode())
    return digest.hexdigest()[:16]


def view_spec(
    opened: VideoModel,
    *,
    data_set: str | None = None,
    views: str | None = None,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
) -> ViewSpec:
    """The views to take: the model's own, or a data set's protocol, changed where asked for."""
    own = opened.clip.views
    spec = own
    if data_set is not None:
        spec = replace(protocol(data_set, opened.family), frames=own.frames, size=own.size)
    spec = replace(
        spec,
        frames=spec.frames if frames is None else frames,
        stride=spec.stride if stride is None else stride,
        size=spec.size if size is None else size,
    )
    _check_clip(opened, spec)
    return spec.with_views(views) if views is not None else spec


def _check_clip(opened: VideoModel, spec: ViewSpec) -> None:
    """Refuse clips that the model has no position embeddings for."""
    kind = getattr(getattr(opened.model, "config", None), "model_type", None)
    own = opened.clip.views
    if kind is None:  # Swin's positions are relative: it takes any clip
        return
    if spec.size != own.size:
        raise ValueError(
            f"--size {spec.size}: this model takes clips of {own.size} pixels; leave it out"
        )
    if spec.frames != own.frames and kind != "vjepa2":  # whose positions are rotary
        raise ValueError(
            f"--frames {spec.frames}: this model takes clips of {own.frames} frames; leave it out"
        )


def _outputs(model: nn.Module) -> int:
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1].out_features


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"class {number}" for number in range(count))
