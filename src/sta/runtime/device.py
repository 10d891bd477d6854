"""Where to run."""

from __future__ import annotations

import torch


def choose_device(name: str = "auto") -> str:
    """The device that a name means here: "auto" is a GPU if there is one, else the CPU."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name}: not usable here ({reason})") from None
    return name
