"""Which device a name means here."""

from __future__ import annotations

import torch


def choose_device(name: str = "auto") -> str:
    """The device of a name; "auto" is a GPU where there is one.

    Raises:
        ValueError: The device cannot be used here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here ({why}); use cpu or auto") from None
    return name
