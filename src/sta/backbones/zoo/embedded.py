"""The embedded models: small backbones trained on digit actions, in three files each.

``NAME.safetensors`` are the weights in float16, ``NAME.json`` says how to build the model and what
was measured, ``NAME.md`` is the card for readers. ``tools/digits/export.py`` writes all three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from sta.backbones.zoo.positions import quick_positions
from sta.backbones.zoo.spec import ClipSpec, Layout
from sta.video.views import ViewSpec

FOLDER = Path(__file__).parent / "weights"


def names() -> list[str]:
    """The embedded models, e.g. ``vit-digits``."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def facts(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """What is known of an embedded model: backbone, settings, labels, input, training, accuracy."""
    path = folder / f"{name}.json"
    if not path.is_file():
        have = ", ".join(names()) or "none"
        raise ValueError(f"{name!r} is not an embedded model; there are: {have}")
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: damaged; write it again with tools/digits/export.py") from error
    return content


def is_exported(path: Path) -> bool:
    """Is this the weights file of an embedded model, or one like it, with its facts beside?"""
    beside = path.with_suffix(".json")
    if path.suffix != ".safetensors" or not path.is_file() or not beside.is_file():
        return False
    return {"backbone", "settings"} <= set(facts(path.stem, path.parent))


def check_overrides(name: str, overrides: Mapping[str, Any]) -> None:
    """Refuse other settings than the weights were trained with."""
    if overrides:
        raise ValueError(
            f"{name}: its settings are known, {', '.join(overrides)} cannot be changed; leave it "
            f"out, or build the model untrained with weights=None"
        )


def card(name: str, folder: Path = FOLDER) -> str:
    """The Markdown card of an embedded model."""
    facts(name, folder)
    return (folder / f"{name}.md").read_text()


def build(about: Mapping[str, Any], **overrides: Any) -> nn.Module:
    """The stock class that an embedded model of these `facts` is of, untrained, in `eval` mode."""
    settings = {**about["settings"], **overrides}
    if about["backbone"] == "swin":
        from sta.backbones.zoo import swin

        return swin.build({"num_classes": len(about["labels"]), **settings})
    if about["backbone"] != "vit":
        raise ValueError(f"backbone {about['backbone']!r}: use one of vit, swin")
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    from sta.backbones.zoo.checkpoints import check_fields

    check_fields(VideoMAEConfig, overrides)
    names = dict(enumerate(about["labels"]))
    config = VideoMAEConfig(id2label=names, label2id={v: k for k, v in names.items()}, **settings)
    with quick_positions():
        model: nn.Module = VideoMAEForVideoClassification(config)
    return model.eval()


def load(name: str, folder: Path = FOLDER) -> nn.Module:
    """An embedded model in float32 and `eval` mode."""
    from sta.backbones.zoo.checkpoints import fill, read_state

    model = build(facts(name, folder))
    path = folder / f"{name}.safetensors"
    # Index tables are the same in every model of these settings, so the file goes without them.
    tables = {k: v for k, v in model.state_dict().items() if not v.is_floating_point()}
    weights = {k: v.float() for k, v in read_state(path).items()}
    fill(model, {**tables, **weights}, path)
    return model.eval()


def clip_and_names(name: str, folder: Path = FOLDER) -> tuple[ClipSpec, tuple[str, ...]]:
    """The clips that an embedded model expects, and its class names."""
    about = facts(name, folder)
    given = about["input"]
    views = ViewSpec(given["frames"], given["stride"], given["size"])
    layout: Layout = "TCHW" if about["backbone"] == "vit" else "CTHW"
    clip = ClipSpec(views, layout, tuple(given["mean"]), tuple(given["std"]))
    return clip, tuple(about["labels"])
