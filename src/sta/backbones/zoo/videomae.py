"""VideoMAE's official checkpoint format, loaded into transformers' classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

from sta.backbones.zoo.checkpoints import check_fields, fill
from sta.backbones.zoo.positions import quick_positions

_NAMES = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def is_official(state: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of VideoMAE's own fine-tuned files."""
    return "blocks.0.attn.qkv.weight" in state and "patch_embed.proj.weight" in state


def load_official(
    state: Mapping[str, Tensor], path: str | Path, **overrides: Any
) -> VideoMAEForVideoClassification:
    """Build the model that an official file belongs to, and load it.

    `overrides` are fields of `VideoMAEConfig` that the file cannot tell: `num_attention_heads`
    (default: 64 channels a head), `image_size` (224), `num_frames` (16).
    """
    state = {n.removeprefix("encoder."): t for n, t in state.items()}
    if "head.weight" not in state or "fc_norm.weight" not in state:
        raise ValueError(
            f"{path}: a VideoMAE file without classifier (fc_norm, head), such as a pre-trained "
            f"one; expected a fine-tuned checkpoint"
        )
    config = _config(state, overrides)
    with quick_positions():
        model = VideoMAEForVideoClassification(config)
    # transformers leaves this norm at PyTorch's default; the official program uses one eps for all.
    model.fc_norm.eps = config.layer_norm_eps
    fill(model, _convert(state), path)
    return model.eval()


def _config(state: Mapping[str, Tensor], overrides: Mapping[str, Any]) -> VideoMAEConfig:
    patch = state["patch_embed.proj.weight"]  # (D, C, tubelet, patch, patch)
    width = patch.shape[0]
    depth = 1 + max(int(n.split(".")[1]) for n in state if n.startswith("blocks."))
    inferred = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": max(1, width // 64) if width != 1280 else 16,  # ViT-H: 80 a head
        "intermediate_size": state["blocks.0.mlp.fc1.weight"].shape[0],
        "num_channels": patch.shape[1],
        "tubelet_size": patch.shape[2],
        "patch_size": patch.shape[3],
        "num_labels": state["head.weight"].shape[0],
        "qkv_bias": "blocks.0.attn.q_bias" in state,  # queries' and values'
        "use_mean_pooling": True,
        "layer_norm_eps": 1e-6,
    }
    check_fields(VideoMAEConfig, overrides)
    settings = {**inferred, **overrides}
    heads = settings["num_attention_heads"]
    if settings["hidden_size"] % heads:
        raise ValueError(f"num_attention_heads={heads} does not divide the width of {width}")
    return VideoMAEConfig(**settings)


def _convert(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names and shapes of transformers' class; the fused qkv is cut in three."""
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        block = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(\w+)", name)
        if block is None:
            out.update(_convert_outer(name, tensor))
            continue
        number, part, kind = block.groups()
        prefix = f"videomae.encoder.layer.{number}."
        if part == "attn.qkv":
            for piece, value in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                if not (piece == "key" and kind == "bias"):
                    out[f"{prefix}attention.attention.{piece}.{kind}"] = value
        elif part == "attn":  # q_bias, v_bias; keys have none
            piece = {"q_bias": "query", "v_bias": "value"}.get(kind, kind)
            out[f"{prefix}attention.attention.{piece}.bias"] = tensor
        else:
            out[f"{prefix}{_NAMES.get(part, part)}.{kind}"] = tensor
    return out


def _convert_outer(name: str, tensor: Tensor) -> dict[str, Tensor]:
    if name == "pos_embed":  # fixed sin-cos table, which the class makes itself
        return {}
    prefixes = {
        "patch_embed.proj.": "videomae.embeddings.patch_embeddings.projection.",
        "head.": "classifier.",
    }
    for old, new in prefixes.items():
        if name.startswith(old):
            return {new + name.removeprefix(old): tensor}
    return {name: tensor}
