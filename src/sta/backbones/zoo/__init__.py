"""Backbones by name, hub id or checkpoint file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from torch import nn

from sta.backbones.zoo.checkpoints import read_state

_FILES = {".safetensors", ".pth", ".pt", ".bin"}


def load(
    name_or_path: str | Path,
    *,
    weights: Literal["pretrained"] | None = "pretrained",
    **overrides: Any,
) -> nn.Module:
    """A backbone, ready to predict (`eval` mode).

    Args:
        name_or_path: A name of the zoo (`sta models` lists them), a hub id ("owner/name"), a folder
            that `save_pretrained` wrote, or a checkpoint file in an official format.
        weights: None builds a backbone of the zoo with random weights, for trying and measuring.
        overrides: Fields of the backbone's config that the checkpoint cannot tell, e.g.
            `num_attention_heads=3, image_size=112`, or `num_heads=[...], window_size=[...]`.

    Raises:
        FileNotFoundError: The file or folder is not there.
        ConnectionError: The weights cannot be reached; the message says how else to get them.
        ValueError: The name is unknown, the file is damaged or does not fit.
    """
    from sta.backbones.zoo.fetch import build, fetch, known

    path = Path(name_or_path)
    if known(str(name_or_path)):
        made = build if weights is None else fetch
        return made(str(name_or_path), overrides)
    if weights is None:
        raise ValueError(
            f"{name_or_path}: weights=None builds backbones of the zoo, by their names"
        )
    if path.suffix in _FILES or path.is_file():
        return load_file(path, overrides)
    if path.is_dir() or len(path.parts) == 2:
        return load_pretrained(str(name_or_path), overrides)
    from sta.backbones.zoo.fetch import names

    raise ValueError(
        f"{name_or_path!r} is no file or folder, no hub id (owner/name) and not in the zoo, which "
        f"has {', '.join(names())}"
    )


def load_file(path: Path, overrides: dict[str, Any]) -> nn.Module:
    """A checkpoint file in an official format."""
    from sta.backbones.zoo import embedded, swin, videomae

    if embedded.is_exported(path):
        embedded.check_overrides(path.stem, overrides)
        return embedded.load(path.stem, path.parent)
    state = read_state(path)
    if videomae.is_official(state):
        return videomae.load_official(state, path, **overrides)
    if swin.is_official(state):
        return swin.load_official(state, path, **overrides)
    if swin.is_torchvision(state):
        return swin.load_torchvision(state, path, **overrides)
    raise ValueError(
        f"{path}: not a checkpoint of a known format; expected a fine-tuned file of VideoMAE "
        f"(blocks.0.attn.qkv.weight, ...), of Video Swin (backbone.layers.0.blocks.0..., ...) or "
        f"of torchvision's class. What save_pretrained wrote is loaded by its folder, which holds "
        f"the config, too"
    )


def load_pretrained(name: str, overrides: dict[str, Any]) -> nn.Module:
    """A model of transformers, from a folder or the hub."""
    from transformers import AutoModelForVideoClassification

    from sta.backbones.zoo.fetch import hub_answers

    cached_only = not Path(name).is_dir() and not hub_answers()
    try:
        model: nn.Module = AutoModelForVideoClassification.from_pretrained(
            name, local_files_only=cached_only, **overrides
        )
    except OSError as error:
        if Path(name).is_dir():
            raise ValueError(
                f"{name}: not a folder that save_pretrained wrote ({error})"
            ) from error
        raise ConnectionError(
            f"{name}: cannot be had from the hub. Either connect and try again (hf download "
            f"{name}), or download it elsewhere and pass the folder or official file by its path"
        ) from error
    return model.eval()
