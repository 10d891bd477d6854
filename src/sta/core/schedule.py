"""How many tokens each step drops, and after which blocks the steps come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sta.core.options import check_drop

NamedSchedule = Literal["decreasing", "constant", "increasing", "even"]
STEPS = 3  # the paper's number of steps


def drops(
    r: int,
    schedule: NamedSchedule | tuple[int, ...],
    steps: int,
    *,
    later: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Tokens dropped per frame at each step.

    Args:
        r: Drop of the first step.
        schedule: "decreasing" (r, r/2, r/4), "constant" (r, r, r), "increasing" (r, 2r, 4r), "even"
            (the same share of every grid), or the drops themselves.
        steps: How many steps.
        later: Where each step has a grid of its own: patch mergings since the first one's, each of
            which leaves a quarter of the places. "decreasing" is then r, 1.5r/4, 2r/16, ...
    """
    if isinstance(schedule, tuple):
        return schedule
    if schedule == "increasing":
        return tuple(r << i for i in range(steps))
    if later is not None and schedule != "constant":
        rise = 0.5 if schedule == "decreasing" else 0.0
        return tuple(int(r * (1 + rise * since) / 4**since) for since in later)
    return tuple(r >> i if schedule == "decreasing" else r for i in range(steps))


def directions(order: str | None, steps: int) -> str:
    """The direction of each step's chain, "F" or "B"; None alternates, starting forward."""
    if order is None:
        return ("FB" * steps)[:steps]
    check_order(order, steps)
    return order


def check_order(order: str, steps: int | None) -> None:
    """Refuse an order of other letters, or not one for each step."""
    if not order or set(order) - {"F", "B"}:
        raise ValueError(f"order={order!r} must be made of 'F' and 'B', e.g. 'FBF'")
    if steps is not None and len(order) != steps:
        raise ValueError(
            f"order={order!r} has {len(order)} letters, but there are {steps} steps; give one each"
        )


def spread_blocks(depth: int, steps: int) -> tuple[int, ...]:
    """1-based blocks to prune after: 1, 1 + L/3, 1 + 2L/3 for three steps on L blocks."""
    return tuple(1 + i * depth // steps for i in range(steps))


def tokens_before(tokens: int, dropped: Sequence[int]) -> tuple[int, ...]:
    """Tokens per frame that each step starts from; refuses a step that would leave none."""
    before = []
    whole = tokens
    for number, drop in enumerate(dropped, start=1):
        if number == 1:
            check_drop(drop, tokens)
        elif drop >= tokens:
            raise ValueError(
                f"the drops {tuple(dropped)} leave no tokens: step {number} drops {drop} of the "
                f"{tokens} per frame that are left of {whole}; use a smaller r"
            )
        before.append(tokens)
        tokens -= drop
    return tuple(before)
