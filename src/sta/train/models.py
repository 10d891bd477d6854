"""The two small backbones that are trained on digit actions and shipped with the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sta.data.digits import CLASS_NAMES, FRAMES, SIDE

#: What each backbone's class is told, besides the class names.
SETTINGS: dict[str, dict[str, Any]] = {
    "vit": {
        "image_size": SIDE,
        "patch_size": 8,
        "num_frames": FRAMES,
        "tubelet_size": 2,
        "hidden_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 512,
    },
    # Most of the work is in the later stages, as in the large Video Swins: only these are pruned.
    "swin": {
        "patch_size": [2, 4, 4],
        "embed_dim": 32,
        "depths": [1, 2, 6, 2],
        "num_heads": [1, 2, 4, 8],
        "window_size": [8, 4, 4],
        "stochastic_depth_prob": 0.0,
    },
}


def build(backbone: str, settings: Mapping[str, Any] | None = None) -> nn.Module:
    """An untrained digit-action classifier.

    Args:
        backbone: ``"vit"`` (transformers' VideoMAE) or ``"swin"`` (torchvision's Video Swin).
        settings: What its class is told; None is the embedded model's.
    """
    if backbone not in SETTINGS:
        raise ValueError(f"backbone {backbone!r}: use one of {', '.join(SETTINGS)}")
    settings = SETTINGS[backbone] if settings is None else settings
    return _vit(settings) if backbone == "vit" else _swin(settings)


def _vit(settings: Mapping[str, Any]) -> nn.Module:
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    names = dict(enumerate(CLASS_NAMES))
    config = VideoMAEConfig(**settings, id2label=names, label2id={v: k for k, v in names.items()})
    model: nn.Module = VideoMAEForVideoClassification(config)
    return model


def _swin(settings: Mapping[str, Any]) -> nn.Module:
    from torchvision.models.video import SwinTransformer3d

    model: nn.Module = SwinTransformer3d(**settings, num_classes=len(CLASS_NAMES))
    return model
