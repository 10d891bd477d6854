"""Video Swin's checkpoint files, its authors' and torchvision's, in torchvision's class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.video import SwinTransformer3d

from sta.backbones.patch import add_stored
from sta.backbones.zoo.checkpoints import fill

_FIRST_BLOCK = "features.0.0.attn."


def is_official(state: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of Video Swin's own files."""
    return "backbone.layers.0.blocks.0.attn.qkv.weight" in state


def is_torchvision(state: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of torchvision's `SwinTransformer3d`."""
    return f"{_FIRST_BLOCK}qkv.weight" in state


def build(settings: Mapping[str, Any]) -> SwinTransformer3d:
    """The model with random weights, ready to predict."""
    allowed = list(inspect.signature(SwinTransformer3d).parameters)
    for name, value in settings.items():
        if name not in allowed:
            raise ValueError(
                f"{name}={value!r} is not an argument of SwinTransformer3d; "
                f"use one of {', '.join(allowed)}"
            )
    return SwinTransformer3d(**settings).eval()


def load_official(
    state: Mapping[str, Tensor], path: str | Path, **overrides: Any
) -> SwinTransformer3d:
    """Build the model that one of Video Swin's own files belongs to, and load it.

    `overrides` are arguments of `SwinTransformer3d` that are not to be read off the tensors, e.g.
    `window_size=[8, 7, 7]` where the file lacks `relative_position_index`.
    """
    return load_torchvision(_convert(state), path, **overrides)


def load_torchvision(
    state: Mapping[str, Tensor], path: str | Path, **overrides: Any
) -> SwinTransformer3d:
    """`load_official` for a file with the names of torchvision's class."""
    if "head.weight" not in state:
        raise ValueError(
            f"{path}: a Video Swin file without classifier (cls_head.fc_cls, head), such as a "
            f"pre-trained backbone; expected a fine-tuned checkpoint"
        )
    model = build({**_inferred(state, path, overrides), **overrides})
    add_stored(model, state)
    # These tables are the same in every model of these settings; some files go without.
    tables = {n: t for n, t in model.state_dict().items() if n.endswith("relative_position_index")}
    fill(model, {**tables, **state}, path)
    return model


def arguments(model: nn.Module) -> dict[str, Any]:
    """What `SwinTransformer3d` was built with, read off a model."""
    block: Any = [part for part in model.modules() if hasattr(part, "stochastic_depth")][-1]
    found = _inferred(model.state_dict(), type(model).__name__, {})
    rest = {
        "dropout": block.attn.dropout,
        "attention_dropout": block.attn.attention_dropout,
        "stochastic_depth_prob": block.stochastic_depth.p,  # the last block has it in full
    }
    return {**found, **rest}


def _convert(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Torchvision's names: stages and mergings take turns in `features`."""
    out = {}
    for name, tensor in state.items():
        name = name.removeprefix("backbone.").replace("cls_head.fc_cls.", "head.")
        name = name.replace(".mlp.fc1.", ".mlp.0.").replace(".mlp.fc2.", ".mlp.3.")
        if part := re.fullmatch(r"layers\.(\d+)\.(?:blocks|(downsample))\.(.+)", name):
            stage, merging, rest = part.groups()
            name = f"features.{2 * int(stage) + (merging is not None)}.{rest}"
        out[name] = tensor
    return out


def _inferred(
    state: Mapping[str, Tensor], path: str | Path, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings that tensors imply."""
    patch = state["patch_embed.proj.weight"]  # (C, 3, frames, height, width)
    stages: dict[int, set[int]] = {}
    for name in state:
        if block := re.match(r"features\.(\d+)\.(\d+)\.attn\.", name):
            stages.setdefault(int(block[1]), set()).add(int(block[2]))
    order = sorted(stages)
    tables = [state[f"features.{s}.0.attn.relative_position_bias_table"] for s in order]
    found = {
        "patch_size": list(patch.shape[2:]),
        "embed_dim": patch.shape[0],
        "depths": [len(stages[stage]) for stage in order],
        "num_heads": [table.shape[1] for table in tables],
        "mlp_ratio": state["features.0.0.mlp.0.weight"].shape[0] / patch.shape[0],
        "num_classes": state["head.weight"].shape[0],
    }
    if "window_size" not in overrides:
        found["window_size"] = _window(state, path)
    return found


def _window(state: Mapping[str, Tensor], path: str | Path) -> list[int]:
    """The window whose relative positions are those in the file."""
    index = state.get(f"{_FIRST_BLOCK}relative_position_index")
    positions = len(state[f"{_FIRST_BLOCK}relative_position_bias_table"])
    if index is not None:
        for window in _windows(len(index), positions):
            if torch.equal(_relative_positions(window), index.long()):
                return window
    fits = [
        [t, side, side]
        for side in range(2, 17)
        for t in range(1, 33)
        if (2 * t - 1) * (2 * side - 1) ** 2 == positions
    ]
    such = " or ".join(f"window_size={window}" for window in fits) or "window_size=[t, h, w]"
    raise ValueError(
        f"{path}: does not tell the window; pass it: {such} has its {positions} relative positions"
    )


def _windows(places: int, positions: int) -> Iterator[list[int]]:
    """Windows of so many places and relative positions."""
    sides = [side for side in range(1, places + 1) if places % side == 0]
    for t, h, w in product(sides, repeat=3):
        if t * h * w == places and (2 * t - 1) * (2 * h - 1) * (2 * w - 1) == positions:
            yield [t, h, w]


def _relative_positions(window: list[int]) -> Tensor:
    """Number of the relative position of any two places of a window, (places, places)."""
    number: Tensor = torch.zeros(1, 1, dtype=torch.long)
    for side in window:
        place = torch.arange(side)
        apart = place.unsqueeze(1) - place + side - 1  # (side, side)
        joined = number[:, None, :, None] * (2 * side - 1) + apart[None, :, None, :]
        number = joined.flatten(2).flatten(0, 1)
    return number
