"""What is varied: one choice of the method at a time, everything else as it is by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import get_args

from torch import nn

import sta
from sta.backbones import find
from sta.backbones.copies import meta_copy
from sta.core.options import FirstFrame, Score, Semantic
from sta.core.schedule import STEPS, NamedSchedule, directions, spread_blocks
from sta.measure.matching import match_gflops
from sta.methods import Config, Fill, Layout, RandomConfig, Similarity, STAConfig, r_of

TEMPERATURES = (0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_RANDOM_SEEDS = 3  # all clips share a random choice, so that one seed alone may be an outlier


@dataclass(frozen=True)
class Variant:
    """One row of a study."""

    name: str  # what is different in it
    config: Config | None  # its settings; None is the unpruned model
    refused: str | None = None  # why the model cannot run it; None if it can
    views: str | None = None  # clips x crops of a video, where they are not what the data set has


@dataclass(frozen=True)
class Study:
    """One choice of the method, and what may be chosen."""

    name: str
    title: str
    variants: tuple[Variant, ...] = ()
    left_out: str | None = None  # why there are no variants


@dataclass
class Subject:
    """The model that is studied."""

    model: nn.Module  # as loaded; it is not changed
    shape: tuple[int, ...]  # of a clip, as `sta.gflops` takes it
    default: STAConfig  # the settings that every study varies
    # Clips x crops of a video to try, e.g. "2x3"; none if clips are whole videos.
    views: tuple[str, ...] = ()
    skeleton: nn.Module = field(init=False)  # the model without its weights, to try variants on
    gflops: float = field(init=False)  # of the default

    def __post_init__(self) -> None:
        if self.default.r < 1:
            raise ValueError(
                f"r={self.default.r} drops nothing: there is nothing to vary; use 1 up"
            )
        self.skeleton = meta_copy(self.model)
        self.gflops = sta.gflops(sta.apply(self.skeleton, self.default), self.shape)

    @cached_property
    def layout(self) -> Layout:
        """What methods know of the backbone."""
        return find(self.skeleton).layout

    @property
    def places(self) -> int:
        """After how many blocks (on Swin: stages) a step may come."""
        return self.layout.blocks

    def blocks(self, steps: int) -> tuple[int, ...]:
        """The default blocks of this number of steps."""
        if self.layout.staged:
            return tuple(range(1, steps + 1))
        return spread_blocks(self.places, steps)

    @property
    def steps(self) -> int:
        """How many steps the default has."""
        return self.default.steps or min(STEPS, self.places)

    def variant(self, name: str, config: Config) -> Variant:
        """A variant, tried out on the model without its weights."""
        try:
            sta.apply(self.skeleton, config)
            if _drops(config) != _drops(self.default):  # Swin finds out in a forward
                sta.gflops(self.skeleton, self.shape)
        except ValueError as error:
            return Variant(name, config, str(error))
        return Variant(name, config)

    def matched(self, name: str, make: Callable[[int], Config]) -> Variant:
        """The variant of a kind that costs what the default costs, or comes closest."""
        config = make(self.default.r)
        if config != self.default:  # that costs what it costs
            try:
                config = match_gflops(self.skeleton, self.shape, self.gflops, make)
            except ValueError as error:
                return Variant(name, config, str(error))
        return Variant(name.format(r=r_of(config)), config)


def _drops(config: Config) -> tuple[object, ...]:
    """What decides how many tokens are dropped where."""
    return tuple(getattr(config, name, None) for name in ("method", "r", "schedule", "blocks"))


Found = tuple[Variant, ...] | str  # or why there are none


def _each(setting: str, kind: object) -> Callable[[Subject], Found]:
    return lambda subject: _options(subject, setting, get_args(kind))


def _options(subject: Subject, setting: str, options: Sequence[object]) -> tuple[Variant, ...]:
    """A variant per value of a setting."""
    return tuple(
        subject.variant(str(value), replace(subject.default, **{setting: value}))  # type: ignore[arg-type]
        for value in options
    )


def _order(subject: Subject) -> Found:
    there = directions(None, subject.steps)
    back = there.translate(str.maketrans("FB", "BF"))
    orders = dict.fromkeys((there, back, "F" * subject.steps, "B" * subject.steps))
    default = subject.default.order or there
    return tuple(
        subject.variant(
            order, subject.default if order == default else replace(subject.default, order=order)
        )
        for order in orders
    )


def _schedule(subject: Subject) -> Found:
    default = subject.default
    if not subject.layout.staged:
        return tuple(
            subject.matched(f"{name}, r={{r}}", partial(_scheduled, default, name))
            for name in get_args(NamedSchedule)
            if name != "even"  # constant, where the grid stays the same
        )
    # A quarter of the places is left after every merging, so a schedule is of shares of the grid.
    shares = {
        "rising shares 1, 1.5, 2": None,
        "equal shares 1, 1, 1": (1.0, 1.0, 1.0),
        "falling shares 2, 1.5, 1": (2.0, 1.5, 1.0),
    }
    return tuple(
        subject.matched(f"{name}, r={{r}}", partial(_with_shares, default, given, subject.steps))
        for name, given in shares.items()
    )


def _scheduled(default: STAConfig, name: NamedSchedule, r: int) -> Config:
    return replace(default, r=r, schedule=name)


def _with_shares(
    default: STAConfig, shares: tuple[float, ...] | None, steps: int, r: int
) -> Config:
    if shares is None:
        return replace(default, r=r)
    drops = tuple(int(r * share / 4**i) for i, share in enumerate(shares[:steps]))
    return replace(default, r=drops[0], schedule=drops)


def _score(subject: Subject) -> Found:
    default = subject.default
    shared = {
        "r": default.r,
        "schedule": default.schedule,
        "blocks": default.blocks,
        "fill": default.fill,
    }
    randoms = [RandomConfig(**shared, seed=seed) for seed in range(_RANDOM_SEEDS)]  # type: ignore[arg-type]
    return (
        *_options(subject, "score", get_args(Score)),
        *(subject.variant(f"random, seed {config.seed}", config) for config in randoms),
    )


def _steps(subject: Subject) -> Found:
    """Other numbers of steps, for the same GFLOPs; one or two fewer and one more."""
    default, usual = subject.default, subject.steps
    counts = [n for n in (usual - 2, usual - 1, usual, usual + 1) if 1 <= n <= subject.places]
    variants = []
    for count in counts:
        if count == usual:
            variants.append(subject.variant(f"{count}, r={default.r}", default))
        else:
            variants.append(
                subject.matched(f"{count}, r={{r}}", _at(default, subject.blocks(count)))
            )
    return tuple(variants)


def _place(subject: Subject) -> Found:
    """Later places of the steps: with the default's r, as the paper, and for the same GFLOPs."""
    default, steps = subject.default, subject.steps
    if subject.layout.staged:
        places = [tuple(b for b in range(1, steps + 1) if b != out) for out in range(steps, 0, -1)]
    else:
        first = subject.blocks(steps)
        room = subject.places - first[-1]
        shifts = sorted({room * part // 2 for part in (1, 2)} - {0})
        places = [tuple(block + shift for block in first) for shift in shifts]
    places = [place for place in places if place]
    if not places:
        return f"the model has {subject.places} places for {steps} steps: there is no other"
    usual = default.blocks or subject.blocks(steps)
    variants = [subject.variant(f"{_listed(usual)}, r={default.r}", default)]
    for place in places:
        make = _at(default, place)
        # A later stage's grid has a quarter of the tokens.
        r = default.r // 4 ** (place[0] - 1) if subject.layout.staged else default.r
        variants.append(subject.variant(f"{_listed(place)}, r={r}", make(r)))
        variants.append(subject.matched(f"{_listed(place)}, r={{r}}, same cost", make))
    return tuple(variants)


def _at(default: STAConfig, blocks: tuple[int, ...]) -> Callable[[int], Config]:
    return lambda r: replace(default, r=r, blocks=blocks, order=None)


def _listed(blocks: Sequence[int]) -> str:
    return " ".join(map(str, blocks))


def _temperature(subject: Subject) -> Found:
    values = sorted({*TEMPERATURES, float(subject.default.temperature)})
    return _options(subject, "temperature", values)


def _program(subject: Subject) -> Found:
    released = subject.variant("released", STAConfig.released(subject.default.r))
    if released.refused is not None:
        return released.refused
    paper = subject.variant("paper", replace(subject.default, semantic="norm"))
    if paper.config == subject.default:
        return (paper, released)
    return (subject.variant("paper, by deviation", subject.default), paper, released)


def _pool(subject: Subject) -> Found:
    if not subject.layout.staged:
        return "only Video Swin has a grid at its end to average over; a ViT has its tokens"
    return _options(subject, "pool", ("kept", "grid"))


def _fill(subject: Subject) -> Found:
    if not subject.layout.staged:
        return "only Video Swin puts tokens in the place of dropped ones; a ViT goes on without"
    return _options(subject, "fill", get_args(Fill))


def _views(subject: Subject) -> Found:
    if not subject.views:
        return (
            "the clips are whole videos, so that there is one view of each (longer ones: sta data "
            "digits --out DIR --takes 4, then DIR/test.txt as data)"
        )
    both = {"unpruned": None, f"r={subject.default.r}": subject.default}
    return tuple(
        Variant(f"{views}, {name}", config, views=views)
        for views in subject.views
        for name, config in both.items()
    )


STUDIES: dict[str, tuple[str, Callable[[Subject], Found]]] = {
    "first-frame": ("Token removal at the first frame", _each("first_frame", FirstFrame)),
    "order": ("Order of the chain at each step", _order),
    "similarity": ("Features that measure similarity", _each("similarity", Similarity)),
    "schedule": ("Drops per step, for the same GFLOPs", _schedule),
    "score": ("Score", _score),
    "semantic": ("What the semantic score weighs tokens by", _each("semantic", Semantic)),
    "steps": ("Number of steps, for the same GFLOPs", _steps),
    "place": ("Blocks after which the steps come", _place),
    "temperature": ("Temperature of the affinity softmax", _temperature),
    "program": ("The paper's steps and the released program's", _program),
    "fill": ("What stands in for dropped tokens", _fill),
    "pool": ("What the final average is over", _pool),
    "views": ("Temporal views of a video", _views),
}


def make_studies(names: Sequence[str], subject: Subject) -> list[Study]:
    """The studies of these names; none, or "all", are all of them."""
    if unknown := [name for name in names if name not in (*STUDIES, "all")]:
        raise ValueError(
            f"there is no ablation {unknown[0]!r}; use all, or some of {', '.join(STUDIES)}"
        )
    chosen = STUDIES if not names or "all" in names else dict.fromkeys(names)
    out = []
    for name in chosen:
        title, make = STUDIES[name]
        found = make(subject)
        if isinstance(found, str):
            out.append(Study(name, title, left_out=found))
        else:
            out.append(Study(name, title, found))
    if all(study.left_out is not None for study in out):
        reasons = "; ".join(f"{study.name}: {study.left_out}" for study in out)
        raise ValueError(f"there is nothing to compare; {reasons}")
    return out
