"""Backbones by name, hub id or checkpoint file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from sta.zoo.checkpoints import read_state

_FILES = {".safetensors", ".pth", ".pt", ".bin"}


def load(name_or_path: str | Path, **overrides: Any) -> nn.Module:
    """A backbone, ready to predict (`eval` mode).

    Args:
        name_or_path: A name of the zoo (`sta models` lists them), a hub id ("owner/name"), a folder
            that `save_pretrained` wrote, or a checkpoint file in an official format.
        overrides: Fields of the backbone's config that the checkpoint cannot tell, e.g.
            `num_attention_heads=3, image_size=112`.

    Raises:
        FileNotFoundError: The file or folder is not there.
        ValueError: The name is unknown, the file is damaged or does not fit.
    """
    path = Path(name_or_path)
    if path.suffix in _FILES or path.is_file():
        return _load_file(path, overrides)
    return _load_pretrained(str(name_or_path), overrides)


def _load_file(path: Path, overrides: dict[str, Any]) -> nn.Module:
    from sta.zoo import videomae

    state = read_state(path)
    if videomae.is_official(state):
        return videomae.load_official(state, path, **overrides)
    raise ValueError(
        f"{path}: not a checkpoint of a known format; expected VideoMAE's official fine-tuned "
        f"files (blocks.0.attn.qkv.weight, ...). A folder made by save_pretrained is loaded by its path"
    )


def _load_pretrained(name: str, overrides: dict[str, Any]) -> nn.Module:
    from transformers import AutoModelForVideoClassification

    model: nn.Module = AutoModelForVideoClassification.from_pretrained(name, **overrides)
    return model.eval()
