"""Methods with pruning steps: how many, after which blocks, how many tokens each drops."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from sta.core.options import check_drop, check_option
from sta.core.schedule import STEPS, NamedSchedule, drops, spread_blocks
from sta.methods.base import Config, Fill, Layout, Step, check_count
from sta.methods.budget import BudgetConfig, plan_once


@dataclass(frozen=True)
class SteppedConfig(BudgetConfig):
    """Settings that every method with pruning steps shares."""

    r: int = 0
    schedule: NamedSchedule | tuple[int, ...] = "decreasing"
    blocks: tuple[int, ...] | None = None
    fill: Fill = field(default="frame", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("r", self.r)
        check_option("fill", self.fill, get_args(Fill))
        if isinstance(self.schedule, (tuple, list)):
            self._check_explicit_schedule(tuple(self.schedule))
        elif self.schedule not in get_args(NamedSchedule):
            names = ", ".join(map(repr, get_args(NamedSchedule)))
            raise ValueError(
                f"schedule={self.schedule!r} is unknown; use one of {names}, or a tuple of drops "
                f"per step, e.g. (64, 32, 16)"
            )
        if self.blocks is not None:
            self._check_blocks(tuple(self.blocks))
        if self.follows_clip:
            if self.blocks is not None and len(self.blocks) > 1:
                raise ValueError(
                    f'budget="auto" chooses once, but blocks={self.blocks} names '
                    f"{len(self.blocks)} blocks; give one"
                )
        elif self.steps is not None and self.blocks is not None and len(self.blocks) != self.steps:
            raise ValueError(
                f"blocks={self.blocks} names {len(self.blocks)} blocks, but schedule="
                f"{self.schedule} has {self.steps} drops; give one block per drop"
            )

    @property
    def steps(self) -> int | None:
        """Number of steps these settings ask for; None leaves it to the backbone."""
        if self.follows_clip:
            return 1
        if isinstance(self.schedule, tuple):
            return len(self.schedule)
        return len(self.blocks) if self.blocks is not None else None

    def plan(self, layout: Layout) -> Sequence[Step]:
        if self.follows_clip:
            return plan_once(self, layout, (self.blocks or (0,))[0])
        return plan_staged(self, layout) if layout.staged else plan_columnar(self, layout)

    def _check_explicit_schedule(self, schedule: tuple[int, ...]) -> None:
        if not schedule:
            raise ValueError("schedule=() has no step; give at least one drop, e.g. (64, 32, 16)")
        for drop in schedule:
            check_count("schedule", drop)
        if self.r not in (0, schedule[0]):
            raise ValueError(
                f"r={self.r} contradicts schedule={schedule}, whose first drop is {schedule[0]}; "
                f"leave r out when schedule lists the drops"
            )
        object.__setattr__(self, "schedule", schedule)
        object.__setattr__(self, "r", schedule[0])

    def _check_blocks(self, blocks: tuple[int, ...]) -> None:
        whole = all(isinstance(b, int) and not isinstance(b, bool) and b >= 0 for b in blocks)
        if not blocks or not whole or list(blocks) != sorted(set(blocks)):
            raise ValueError(
                f"blocks={blocks} must be rising block numbers counted from 1, e.g. (1, 5, 9); "
                f"0 is the patch embedding"
            )
        object.__setattr__(self, "blocks", blocks)


def plan_at_input(r: int, layout: Layout) -> list[Step]:
    """A single step, on the patch embeddings."""
    assert layout.grid is not None
    check_drop(r, layout.grid.tokens)
    return [Step(0, r)]


def plan_columnar(config: SteppedConfig, layout: Layout) -> list[Step]:
    """Steps on a backbone whose blocks all have the same grid: dropped tokens stay away."""
    depth = layout.blocks
    count = config.steps or min(STEPS, depth)
    blocks = config.blocks or spread_blocks(depth, count)
    if max(blocks) > depth or len(set(blocks)) < count:
        raise ValueError(
            f"blocks={blocks} do not fit this model, which has {depth} blocks; "
            f"use {count} different numbers from 1 to {depth}"
        )
    dropped = drops(config.r, config.schedule, count)
    assert layout.grid is not None
    tokens = layout.grid.tokens
    if sum(dropped) >= tokens:
        if isinstance(config.schedule, tuple):
            raise ValueError(
                f"schedule={config.schedule} leaves no tokens: it drops {sum(dropped)} of the "
                f"{tokens} per frame here; drop {tokens - 1} or fewer altogether"
            )
        schedule = config.schedule
        most = largest(lambda r: sum(drops(r, schedule, count)) < tokens, config.r)
        raise ValueError(
            f"r={config.r} leaves no tokens: the steps drop {', '.join(map(str, dropped))} of the "
            f"{tokens} per frame here; use r <= {most}"
        )
    return [Step(block, drop) for block, drop in zip(blocks, dropped, strict=True)]


def plan_staged(
    config: Config, layout: Layout, schedule: NamedSchedule = "decreasing"
) -> list[Step]:
    """Steps that choose from the full grid of a stage, as on Swin.

    "decreasing" is a share of the full grid, which has a quarter of the places after every merging:
    r/N of the first, 1.5 r/N, 2 r/N, ... of the later ones. Settings with a schedule of their own
    take that.
    """
    stages = tuple(range(1, layout.blocks + 1))
    stepped = config if isinstance(config, SteppedConfig) else None
    count = (stepped.steps if stepped else None) or layout.blocks
    chosen = (stepped.blocks if stepped else None) or stages[:count]
    if len(chosen) < count or not set(chosen) <= set(stages) or not stages:
        raise ValueError(
            f"{count} steps after stages {chosen} do not fit this model, which has {len(stages)} "
            f"stages with a patch merging; blocks are different stage numbers from 1 to "
            f"{len(stages)}"
        )
    later = [stage - chosen[0] for stage in chosen]
    dropped = drops(
        config.r,  # type: ignore[attr-defined]
        stepped.schedule if stepped else schedule,
        count,
        later=later,
    )
    return [Step(stage, drop) for stage, drop in zip(chosen, dropped, strict=True)]


def largest_staged(config: Config, layout: Layout, step: int, tokens: Sequence[int]) -> int | None:
    """The largest r whose steps leave a token in every frame; None where the drops are listed.

    `tokens` are those of a frame at the first step to look at and the later ones.
    """
    if isinstance(getattr(config, "schedule", None), tuple):
        return None

    def fits(r: int) -> bool:
        planned = replace(config, r=r).plan(layout)[step:]  # type: ignore[call-arg]
        return all(one.drop < here for one, here in zip(planned, tokens, strict=True))

    return largest(fits, config.r)  # type: ignore[attr-defined]


def largest(fits: Callable[[int], bool], refused: int) -> int:
    """The largest r below a refused one that fits; whatever fits, so does all that is smaller."""
    return bisect_left(range(1, refused), True, key=lambda r: not fits(r))
