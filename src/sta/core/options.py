"""What the method's options are called, and how wrong values are refused. Needs no torch."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

Budget = Literal["frame", "clip", "auto"]
Combine = Literal["either", "both"]
Direction = Literal["F", "B"]
FirstFrame = Literal["tome", "grid", "random"]
Score = Literal["sta", "temporal", "semantic"]
Semantic = Literal["norm", "deviation"]
Temporal = Literal["chain", "place", "pixels"]


def check_drop(r: int, tokens: int) -> None:
    """Refuse a drop that is negative or leaves a frame empty."""
    if r < 0:
        raise ValueError(f"r={r} is negative; use a number of tokens from 0 to {tokens - 1}")
    if r >= tokens:
        raise ValueError(
            f"r={r} leaves no tokens: there are {tokens} per frame here; use r <= {tokens - 1}"
        )


def check_literals(config: object, kind: type) -> None:
    """Refuse values that are not among those of a literal type: all fields that `kind` declares."""
    for name, allowed in _literals(kind):
        check_option(name, getattr(config, name), allowed)


@cache
def _literals(kind: type) -> list[tuple[str, tuple[Any, ...]]]:
    hints = get_type_hints(kind).items()
    return [(name, get_args(hint)) for name, hint in hints if get_origin(hint) is Literal]


def check_option(name: str, given: object, allowed: tuple[object, ...]) -> None:
    """Refuse a value that is not one of the allowed ones."""
    if given not in allowed:
        choices = ", ".join(repr(a) for a in allowed)
        raise ValueError(f"{name}={given!r} is unknown; use one of {choices}")
