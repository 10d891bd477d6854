"""The two small backbones that are trained on digit actions and shipped with the package."""

from __future__ import annotations

from typing import Any

from torch import nn

from sta.data.digits import CLASS_NAMES, FRAMES, SIDE

VIT: dict[str, Any] = {
    "image_size": SIDE,
    "patch_size": 8,
    "num_frames": FRAMES,
    "tubelet_size": 2,
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
SWIN: dict[str, Any] = {
    "patch_size": [2, 4, 4],
    "embed_dim": 32,
    "depths": [1, 2, 6, 2],
    "num_heads": [1, 2, 4, 8],
    "window_size": [8, 4, 4],
    "stochastic_depth_prob": 0.0,
}
MODELS = ("vit", "swin")


def vit() -> nn.Module:
    """A 6-block VideoMAE classifier over 8 x 64 tokens."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    names = dict(enumerate(CLASS_NAMES))
    config = VideoMAEConfig(**VIT, id2label=names, label2id={v: k for k, v in names.items()})
    return VideoMAEForVideoClassification(config)


def swin() -> nn.Module:
    """A four-stage Video Swin over 8 x 16 x 16 tokens."""
    from torchvision.models.video import SwinTransformer3d

    return SwinTransformer3d(**SWIN, num_classes=len(CLASS_NAMES))


def build(name: str) -> nn.Module:
    """The untrained backbone called ``"vit"`` or ``"swin"``."""
    if name not in MODELS:
        raise ValueError(f"model {name!r}: use one of {', '.join(MODELS)}")
    return vit() if name == "vit" else swin()
