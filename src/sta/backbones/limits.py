"""Refusing an r that leaves too few tokens, and saying which would do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sta.backbones.base import Grid
from sta.core.schedule import STEPS, NamedSchedule, drops
from sta.methods import SteppedConfig


def largest(fits: Callable[[int], bool], refused: int) -> int:
    """The largest r below a refused one that fits; whatever fits, so does all that is smaller."""
    return bisect_left(range(1, refused), True, key=lambda r: not fits(r))


def check_steps(config: SteppedConfig, dropped: Sequence[int], tokens: int) -> None:
    """Refuse steps that together leave a frame empty.

    Args:
        config: What asks for them.
        dropped: Tokens that each drops.
        tokens: Tokens per frame before the first.
    """
    if sum(dropped) < tokens:
        return
    if isinstance(config.schedule, tuple):
        raise ValueError(
            f"schedule={config.schedule} leaves no tokens: it drops {sum(dropped)} of the {tokens} "
            f"per frame here; drop {tokens - 1} or fewer altogether"
        )
    schedule = config.schedule
    most = largest(lambda r: sum(drops(r, schedule, len(dropped))) < tokens, config.r)
    raise ValueError(
        f"r={config.r} leaves no tokens: the steps drop {', '.join(map(str, dropped))} of the "
        f"{tokens} per frame here; use r <= {most}"
    )


def released_groups(r: int, tokens: int) -> list[int]:
    """Tokens of a group before each step of the released program; groups pair up in between.

    Args:
        r: Tokens dropped per group, of which a step can drop no more than half.
        tokens: Tokens per frame, which are the first groups.
    """
    sizes = _groups(r, tokens)
    for number, size in enumerate(sizes, start=1):
        if not _within_half(r, size):
            most = largest(lambda r: all(_within_half(r, n) for n in _groups(r, tokens)), r)
            raise ValueError(
                f"r={r} is over half of a group of {size} tokens, more than the released program "
                f"can drop at step {number}; use r <= {most}"
            )
    return sizes


def _groups(r: int, tokens: int) -> list[int]:
    sizes = [tokens]
    while len(sizes) < STEPS:
        sizes.append(2 * (sizes[-1] - r))
    return sizes


def _within_half(r: int, size: int) -> bool:
    return r <= (size + 1) // 2


def check_merging(r: int, tokens: int, blocks: int) -> None:
    """Refuse an r that is over half of what is left in a block, of which ToMe can merge no more.

    Args:
        r: Tokens merged away in every block.
        tokens: Tokens of the clip before the first.
        blocks: How many there are.
    """
    if r * (blocks + 1) <= tokens:
        return
    block = max(0, tokens // r - 1)  # blocks before it that can merge r
    raise ValueError(
        f"r={r} is over half of the {tokens - block * r} tokens left at block {block + 1}: ToMe "
        f"merges r of the clip's {tokens} away in each of {blocks} blocks; "
        f"use r <= {tokens // (blocks + 1)}"
    )


@dataclass(frozen=True)
class StageDrops:
    """What steps drop that choose from the full grid of a stage, as on Swin.

    Attributes:
        r: The config's.
        schedule: The config's.
        stages: After which stages' patch merging the steps come, counted from 1.
    """

    r: int
    schedule: NamedSchedule | tuple[int, ...]
    stages: tuple[int, ...]

    def of(self, r: int) -> tuple[int, ...]:
        """Tokens per frame that each step drops.

        "decreasing" is a share of the full grid, which has a quarter of the places after every
        merging: r/N of the first, 1.5 r/N, 2 r/N, ... of the later ones.
        """
        since = [stage - self.stages[0] for stage in self.stages]
        shares = [(1 + later / 2) / 4**later for later in since]
        return drops(r, self.schedule, len(self.stages), decreasing=shares)

    def advice(self, step: int, grid: Grid) -> str:
        """What to do about the first step that is to drop all that there is on its grid."""
        if isinstance(self.schedule, tuple):
            return "use smaller drops"

        def fits(r: int) -> bool:
            later = zip(self.stages[step:], self.of(r)[step:], strict=True)
            return all(wanted < _merged(grid, stage - self.stages[step]) for stage, wanted in later)

        return f"use r <= {largest(fits, self.r)}"


def _merged(grid: Grid, times: int) -> int:
    """Places per frame after so many more patch mergings, which pad odd sides."""
    side = 2**times
    return -(-grid.height // side) * -(-grid.width // side)
