"""Which device a name means here."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from sta.backbones.zoo.video_model import VideoModel


def choose_device(
    name: str = "auto", model: str | Path | nn.Module | VideoModel | None = None
) -> str:
    """The device of a name; "auto" is where a given model is, else a GPU where there is one."""
    if name == "auto":
        given = model.model if isinstance(model, VideoModel) else model
        if isinstance(given, nn.Module):
            return next((str(p.device) for p in given.parameters()), "cpu")
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here ({why}); use cpu or auto") from None
    return name
