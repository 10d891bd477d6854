"""Who takes part in a comparison, and with which settings each method meets each budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sta.backbones.copies import meta_copy
from sta.backbones.patch import apply
from sta.inference.setup import Setup
from sta.measure.flops import gflops
from sta.measure.matching import CostCurve, Method, TimeCurve
from sta.methods import METHODS, PRESETS, Config, RandomConfig, STAConfig, make_config
from sta.tuning.search import Clock
from sta.tuning.thresholds import ThresholdCurve
from sta.tuning.tune import TIMED_BATCHES, make_clock
from sta.video.clips import read_samples
from sta.video.lists import Entry

Match = Literal["gflops", "time"]
#: Names with what makes their settings from r.
Makers = Mapping[str, Callable[[int], Config]]
#: STA with as many tokens as a clip needs; as any threshold, its own is set to meet the budget.
AUTO = STAConfig(budget="auto", threshold=0.0, temporal="pixels", combine="both")
#: Clips that thresholds are set by.
THRESHOLD_CLIPS = 48
#: How far from a budget of time a measured time may be, and how often settings are corrected.
TIME_TOLERANCE, CORRECTIONS = 0.02, 3


def comparable_methods() -> list[str]:
    """Names that can be compared: every registered method with an r, or with a threshold where its
    counts follow the clip, and the presets."""
    configs = {name: make_config(name, 0) for name in METHODS}
    follow = [n for n, c in configs.items() if c.follows_clip and hasattr(c, "threshold")]
    return [*(n for n, c in configs.items() if c.drops), *follow, "auto", *PRESETS]


@dataclass(frozen=True)
class Entrant:
    """One setting at one budget."""

    method: str  # its name in tables
    saved: float  # the share of the unpruned model's GFLOPs or time that it should save
    config: Config  # its settings
    gflops: float  # of one clip; the mean over the compared ones where counts follow the clip
    # How many times faster than the unpruned model, measured in turn with it.
    speedup: float | None = None
    r: int = 0  # its r; where counts follow the clip, how many a frame loses on average
    within_reach: bool = True  # whether any r, or threshold, saves as much

    @property
    def key(self) -> Method:
        """What its rows are called; the same settings at two budgets are run once."""
        return self.method, self.r


def makers_of(
    methods: str | Sequence[str] | None,
    configs: Mapping[str, Config] | Sequence[str | Path],
    seeds: int,
    rival: str | None = None,
) -> dict[str, Callable[[int], Config]]:
    """Each name with what makes its settings from r; random dropping once for each seed.

    A rival takes part, too, if it is a method.
    """
    names = [methods] if isinstance(methods, str) else methods
    if names is None:
        names = [] if configs else comparable_methods()
    if rival in comparable_methods():
        names = [*names, rival]
    makers: dict[str, Callable[[int], Config]] = {}
    for name in dict.fromkeys(["random", *names]):
        if name == "auto":
            makers[name] = lambda _: AUTO
        elif name not in comparable_methods():
            raise ValueError(f"method {name!r}: use one of {', '.join(comparable_methods())}")
        elif name == RandomConfig.method:
            for seed in range(seeds):
                makers[f"random, seed {seed}"] = partial(make_config, name, seed=seed)
        else:
            makers[name] = partial(make_config, name)
    if not isinstance(configs, Mapping):
        configs = {Path(file).stem: Config.from_file(file) for file in configs}
    for name, config in configs.items():
        if not (config.drops or config.follows_clip):
            raise ValueError(f"{name}: {config.method} has no r that could meet a budget")
        schedule = getattr(config, "schedule", None)
        if isinstance(schedule, tuple) and not schedule[0]:
            raise ValueError(f"{name}: schedule={schedule} begins with 0, so no r meets a budget")
        if name in makers:
            raise ValueError(f"{name}: there is a method of that name; call the settings otherwise")
        makers[name] = partial(_with_r, config)
    return makers


def unseeded(name: str) -> str:
    """What the seeds of random dropping are called together."""
    return name.partition(", seed")[0]


def _with_r(config: Config, r: int) -> Config:
    """The settings at r; those whose counts follow the clip have none.

    Where the drops are written out, r is the first one, and the others change in proportion.
    """
    if not config.drops:
        return config
    changes: dict[str, Any] = {"r": r}
    if isinstance(schedule := getattr(config, "schedule", None), tuple):
        changes["schedule"] = tuple(round(drop * r / schedule[0]) for drop in schedule)
    return replace(config, **changes)


def _saves_enough(one: Entrant) -> bool:
    """Whether an entrant was measured to save as much time as it should, within the tolerance."""
    return 1 / (one.speedup or 1.0) <= 1 - one.saved + TIME_TOLERANCE


def one_of_each(entrants: Sequence[Entrant]) -> list[Entrant]:
    """Thresholds of close budgets that drop as many tokens are one setting: the first of them."""
    first: dict[Method, Entrant] = {}
    for one in entrants:
        first.setdefault(one.key, one)
    return [
        replace(first[one.key], saved=one.saved, within_reach=one.within_reach) for one in entrants
    ]


def clips_of(entries: Sequence[Entry], setup: Setup) -> Iterator[NDArray[np.uint8]]:
    """The clips of videos that can be read."""
    samples = read_samples(entries, setup.spec)
    return (sample.clips for sample in samples if sample.clips is not None)


@dataclass
class BudgetSearch:
    """Settings of every method at every budget, for one model and the videos it is compared on.

    Attributes:
        setup: The model.
        entries: The compared videos.
        source: What they are called.
        match: What the budgets are of.
        rounds: Of timing; 0: none.
        batch_size: Clips per forward when timed.
        set_by: Gives the clips that thresholds are set by.
    """

    setup: Setup
    entries: Sequence[Entry]
    source: str
    match: Match
    rounds: int
    batch_size: int
    set_by: Callable[[], Iterator[NDArray[np.uint8]]]
    # By whether counts depend on the clip, so that several batches have to be timed.
    _clocks: dict[bool, Clock] = field(default_factory=dict, init=False)
    _thresholds: dict[str, tuple[ThresholdCurve, ThresholdCurve]] = field(
        default_factory=dict, init=False
    )

    def entrants(
        self,
        makers: Makers,
        shares: Sequence[float],
        left_out: list[str],
    ) -> list[Entrant]:
        """Each method at each budget; what the model refuses is left out with the reason."""
        skeleton, shape = meta_copy(self.setup.opened.model), self.setup.opened.clip.shape()
        unpruned = gflops(skeleton, shape)

        def count(make: Callable[[int], Config], r: int) -> float:
            return gflops(apply(skeleton, make(r)), shape)

        curves: dict[str, CostCurve] = {}

        def at(name: str, saved: float, cost: float) -> Entrant:
            if (base := makers[name](0)).follows_clip:
                return self._follow(name, base, saved, cost)
            curve = curves.setdefault(unseeded(name), CostCurve(partial(count, makers[name])))
            r = curve.nearest(cost)
            found = curve.gflops(r) or 0.0
            reached = curve.within(cost) is not None
            return Entrant(name, saved, makers[name](r), found, r=r, within_reach=reached)

        entrants: list[Entrant] = []
        for name, make in makers.items():
            try:
                count(make, 0)  # what the model refuses altogether says why
            except ValueError as error:
                left_out.append(f"{self.setup.name}, {name}: {error}")
                continue
            entrants += [at(name, saved, (1 - saved) * unpruned) for saved in shares]
        entrants = one_of_each(entrants)
        if not self.rounds:
            return entrants
        entrants = self._timed(entrants)
        if self.match == "time":
            entrants = self._at_equal_time(entrants, at, unpruned)
        return entrants

    def _at_equal_time(
        self,
        entrants: Sequence[Entrant],
        at: Callable[[str, float, float], Entrant],
        unpruned: float,
    ) -> list[Entrant]:
        """The entrants with r, or thresholds, corrected until their times meet the budgets.

        What the chosen settings are said to take is measured afresh, all in turn: of many times the
        one that comes closest to a budget is a lucky one.
        """
        curves: dict[str, TimeCurve] = {}
        tried: dict[tuple[str, float], list[Entrant]] = {}
        timed = list(entrants)

        def off(one: Entrant) -> float:
            return abs(curves[unseeded(one.method)].share(one.gflops) - (1 - one.saved))

        for number in range(CORRECTIONS + 1):
            for one in timed:
                tried.setdefault((one.method, one.saved), []).append(one)
                curve = curves.setdefault(unseeded(one.method), TimeCurve(unpruned))
                curve.add(one.gflops, one.speedup or 1.0)
            again = []
            for (name, saved), ones in tried.items():
                # Of those that are as close, within what times can tell, the one that drops least.
                enough = max(TIME_TOLERANCE, min(map(off, ones)) + TIME_TOLERANCE / 2)
                ones.sort(key=lambda one: (max(off(one), enough), -one.gflops))
                if number == CORRECTIONS or off(ones[0]) <= TIME_TOLERANCE:
                    continue
                other = at(name, saved, curves[unseeded(name)].gflops_at(1 - saved))
                if other.config in (one.config for one in ones):  # it comes no closer
                    ones[0] = replace(ones[0], within_reach=other.within_reach)
                else:
                    again.append(other)
            if not again:
                break
            timed = self._timed(again)
        chosen = self._timed(one_of_each([ones[0] for ones in tried.values()]))
        return [replace(one, within_reach=one.within_reach or _saves_enough(one)) for one in chosen]

    def _follow(self, name: str, base: Config, saved: float, cost: float) -> Entrant:
        """Settings whose counts follow the clip, with the threshold that meets a cost."""
        if name not in self._thresholds:
            sources = self.set_by(), clips_of(self.entries, self.setup)
            given = (
                ThresholdCurve(self.setup.opened, base, clips, self.setup.device)
                for clips in sources
            )
            self._thresholds[name] = next(given), next(given)
        others, compared = self._thresholds[name]
        threshold = others.nearest(cost)
        config = replace(base, threshold=threshold)  # type: ignore[call-arg]
        dropped = max(1, round(compared.dropped(threshold)))
        found, reached = compared.gflops(threshold), others.lowest() <= cost
        return Entrant(name, saved, config, found, r=dropped, within_reach=reached)

    def _timed(self, entrants: Sequence[Entrant]) -> list[Entrant]:
        """The same with how many times faster they are, all taking turns with the unpruned one."""
        timed: dict[Config, float] = {}
        for depends in (False, True):
            configs = [one.config for one in entrants if one.config.follows_clip == depends]
            if configs := list(dict.fromkeys(configs)):
                timed |= zip(configs, self._clock(depends)(configs), strict=True)
        return [replace(one, speedup=timed[one.config]) for one in entrants]

    def _clock(self, depends: bool) -> Clock:
        """Times a batch of clips, or where the time depends on the clip, several of them."""
        if depends not in self._clocks:
            opened, count = self.setup.opened, self.batch_size * (TIMED_BATCHES if depends else 1)
            apart = max(1, len(self.entries) // count)
            some = self.entries[::apart][:count]
            if not (read := list(clips_of(some, self.setup))):
                raise ValueError(f"{self.source}: none of {len(some)} videos can be read")
            clips = np.concatenate(read)
            pixels = opened.pixels(clips[np.arange(count) % len(clips)]).to(self.setup.device)
            batches = pixels.split(self.batch_size)
            self._clocks[depends] = make_clock(opened, batches, self.rounds, self.setup.precision)
        return self._clocks[depends]
