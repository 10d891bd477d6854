"""The two small backbones of the embedded models, with weights that are good to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sta.backbones.zoo import embedded
from sta.video.digits import CLASS_NAMES, FRAMES, SIDE

#: What each backbone's class is given, besides the class names.
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
        settings: What its class is given; None is the embedded model's.
    """
    if backbone not in SETTINGS:
        raise ValueError(f"backbone {backbone!r}: use one of {', '.join(SETTINGS)}")
    settings = SETTINGS[backbone] if settings is None else settings
    about = {"backbone": backbone, "settings": settings, "labels": CLASS_NAMES}
    model = embedded.build(about).train()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            draw_for_width(module)
        if isinstance(table := getattr(module, "relative_position_bias_table", None), nn.Parameter):
            look_around(table, settings["window_size"])
    if backbone == "vit":
        _start_heads(model)
    return model


def _start_heads(model: nn.Module) -> None:
    from transformers.models.videomae.modeling_videomae import VideoMAESelfAttention

    config: Any = model.config
    side = config.image_size // config.patch_size
    for module in model.modules():
        if isinstance(module, VideoMAESelfAttention):
            heads = config.num_attention_heads
            look_along(module.query.weight, module.key.weight, heads, (side * side, side, 1))


def draw_for_width(layer: nn.Linear) -> None:
    """Draw a layer's weights anew: both classes draw them as for models ten times as wide."""
    nn.init.trunc_normal_(layer.weight, std=layer.in_features**-0.5)


#: How far the neighbours are that heads look at first, in time, height and width.
REACH = (2.0, 1.5, 1.5)


@torch.no_grad()
def look_along(
    query: nn.Parameter,
    key: nn.Parameter,
    heads: int,
    strides: Sequence[int],
    sharpness: float = 1.3,
) -> None:
    """Start every second head of a ViT as a soft look at one neighbour, drawn at random.

    Its fixed positions are sines and cosines of the token's number, so that to look a number of
    tokens ahead is to turn each such pair by an angle: queries are turned, keys are not.

    Args:
        query: Weights (D, D) of the queries; the layer's input is taken for its positions.
        key: Those of the keys.
        heads: Number of heads.
        strides: Tokens from one place to the next in time, height and width.
        sharpness: Weight of the positions in queries and keys.
    """
    width = query.shape[1]
    size = width // heads
    rates = 10_000.0 ** (-2 * torch.arange(width // 2) / width)  # angle per token, of each pair
    useful = int((rates > 0.03).sum())  # slower ones hardly turn inside a clip
    for head in range(0, heads, 2):
        steps = ((2 * torch.rand(3) - 1) * torch.tensor(REACH)).round()
        ahead = float((steps * torch.tensor(strides, dtype=torch.float32)).sum())
        pairs = torch.randperm(useful)[: size // 2].sort().values
        sine, cosine = 2 * pairs, 2 * pairs + 1  # columns of the input
        first = head * size + 2 * torch.arange(len(pairs))  # rows of the output
        turn = rates[pairs] * ahead
        for matrix in (query, key):
            matrix[head * size : (head + 1) * size] *= 0.3
        query[first, sine] += sharpness * turn.cos()
        query[first, cosine] += sharpness * turn.sin()
        query[first + 1, cosine] += sharpness * turn.cos()
        query[first + 1, sine] -= sharpness * turn.sin()
        key[first, sine] += sharpness
        key[first + 1, cosine] += sharpness


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
    centres = (2 * torch.rand(table.shape[1], 3) - 1) * torch.tensor(REACH)
    table.copy_(-sharpness * (offsets[:, None] - centres).square().sum(-1).clamp(max=16.0))
