"""Backbones by name, hub id, folder or checkpoint file, and what each expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from torch import nn


def load(
    name_or_path: str | Path,
    *,
    weights: Literal["pretrained"] | None = "pretrained",
    new_head: bool = False,
    **overrides: Any,
) -> nn.Module:
    """A backbone, ready to predict (`eval` mode).

    Args:
        name_or_path: A name of the zoo (`sta models` lists them), a hub id ("owner/name"), a folder
            that `save_pretrained` or `sta train` wrote, or a checkpoint file in an official format.
        weights: None builds a backbone of the zoo with random weights, for trying and measuring.
        new_head: Allow an untrained classifier where a folder has none that fits: for training.
        overrides: Fields of the backbone's config that the checkpoint cannot tell, e.g.
            `num_attention_heads=3, image_size=112`, or `num_heads=[...], window_size=[...]`.

    Raises:
        FileNotFoundError: The file or folder is not there.
        ConnectionError: The weights cannot be reached; the message says how else to get them.
        ValueError: The name is unknown, the file is damaged or does not fit, tensors are missing.
    """
    from sta.backbones.zoo.video_model import open_model

    return open_model(str(name_or_path), weights is not None, new_head, overrides).model
