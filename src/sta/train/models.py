"""The two small backbones that are trained on digit actions and shipped with the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
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
    for module in model.modules():
        if isinstance(module, nn.Linear):  # its class draws as for models ten times as wide
            nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5)
        if isinstance(table := getattr(module, "relative_position_bias_table", None), nn.Parameter):
            look_around(table, settings["window_size"])
    return model


@torch.no_grad()
def look_around(table: nn.Parameter, window: Sequence[int], sharpness: float = 0.5) -> None:
    """Start every head of a Swin attention as a soft look at one neighbour, drawn at random.

    A Swin knows where its tokens are by these biases alone. Drawn near zero, as its class does,
    they leave it blind to the direction of a motion for tens of thousands of clips (as ConViT's
    positional heads showed for images, starting as a convolution saves most of the data).

    Args:
        table: ``(offsets, heads)`` biases, offsets in the order of time, height, width.
        window: Tokens of a window in time, height and width.
        sharpness: Falls by this much per squared step from the neighbour.
    """
    axes = [torch.arange(1.0 - size, size) for size in window]
    offsets = torch.cartesian_prod(*axes)  # query minus key
    reach = torch.tensor([2.0, 1.5, 1.5])
    centres = (2 * torch.rand(table.shape[1], 3) - 1) * reach
    table.copy_(-sharpness * (offsets[:, None] - centres).square().sum(-1).clamp(max=16.0))
