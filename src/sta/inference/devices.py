"""Where a model runs."""

from __future__ import annotations


def choose_device(name: str) -> str:
    """The device that a name means here; "auto" takes a GPU if there is one.

    Raises:
        ValueError: It is not usable here.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"--device {name}: not usable here ({why})") from None
    return name
