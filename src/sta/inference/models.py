"""What inference must know of a model: its clips, its class names, its family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

import sta
from sta.video.views import ViewSpec, protocol
from sta.zoo.spec import ClipSpec


@dataclass
class OpenModel:
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


def open_model(name: str, *, random_weights: bool = False, **overrides: Any) -> OpenModel:
    """Load a model and find out what it expects.

    Args:
        name: What `sta.load` takes.
        random_weights: Build it without loading weights.
        overrides: Passed on to `sta.load`.
    """
    return describe(sta.load(name, **overrides))


def describe(model: nn.Module, clip: ClipSpec | None = None) -> OpenModel:
    """What the model itself tells; `clip` is what is known of it from elsewhere."""
    config: Any = getattr(model, "config", None)
    if config is None:  # torchvision's
        known = clip or ClipSpec(protocol("k400", "swin"), "CTHW")
        return OpenModel(model, known, _numbered(_outputs(model)), "swin")
    if clip is None:
        told: dict[str, Any] = config.to_dict()
        frames = told.get("num_frames") or told.get("frames_per_clip") or 16
        size = told.get("crop_size") or told.get("image_size") or 224
        side = size if isinstance(size, int) else size[0]
        views = replace(protocol("k400", "vit"), frames=frames, size=side)
        clip = ClipSpec(views, "TCHW")
    names = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    return OpenModel(model, clip, names, "vit")


def view_spec(
    opened: OpenModel,
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
    return spec.with_views(views) if views is not None else spec


def _outputs(model: nn.Module) -> int:
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1].out_features


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"class {number}" for number in range(count))
