"""`sta.compare`: methods on models and data, at the same GFLOPs or in the same measured time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from torch import nn

from sta.backbones.copies import meta_copy
from sta.backbones.patch import apply
from sta.backbones.zoo.video_model import VideoModel, model_name
from sta.inference.collect import Failure
from sta.inference.evaluate import Evaluation, evaluation
from sta.inference.metrics import cell
from sta.inference.rows import Row
from sta.inference.setup import Setup
from sta.measure.flops import gflops
from sta.measure.matching import CostCurve, Method, TimeCurve
from sta.measure.stats import bootstrap
from sta.methods import METHODS, Config, RandomConfig, STAConfig, has_r, make_config
from sta.progress import ProgressArg
from sta.results import Result, WideTable
from sta.tuning.search import Clock
from sta.tuning.thresholds import ThresholdCurve
from sta.tuning.tune import TIMED_BATCHES, make_clock
from sta.version import __version__
from sta.video.clips import Videos, load_clips, read_samples
from sta.video.lists import Entry

Match = Literal["gflops", "time"]
UNPRUNED: Method = ("unpruned", 0)
#: Settings that have a name beside those of the methods.
PRESETS: dict[str, Callable[[int], Config]] = {"paper": STAConfig.paper}
#: Settings whose counts follow the clip: their threshold is set to meet the budget.
CLIP_DEPENDENT: dict[str, Config] = {
    "rlt": make_config("rlt", 0),
    "auto": STAConfig(budget="auto", threshold=0.0, temporal="pixels", combine="both"),
}
SAVED = (0.35, 0.5, 0.65)
SEEDS = 3
#: Clips that thresholds are set by.
THRESHOLD_CLIPS = 48
#: How far from a budget of time a measured time may be, and how often settings are corrected.
TIME_TOLERANCE, CORRECTIONS = 0.02, 3


def contestants() -> list[str]:
    """Names that can be compared: every registered method that drops, and the presets."""
    return [*(name for name, config in METHODS.items() if has_r(config)), *CLIP_DEPENDENT, *PRESETS]


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


@dataclass(frozen=True)
class CompareResult(Result):
    """Methods side by side: a row per model, data, budget and method.

    Attributes:
        rows: `model`, `data`, `method`, `saved` (asked for), `reached` (the share of GFLOPs, or of
            time, that it does save), `within_reach` (whether any r saves as much as was asked
            for; with the closest one, `reached` may be a little off), `r`, `config`, `gflops`,
            `speedup`, then what `sta.evaluate` counts, and `to_random`: accuracy minus the mean of
            the seeds of random dropping on the same videos. Shares are 0..1, with 95 % intervals.
            Where counts follow the clip, `r` and `gflops` are means over these videos.
        match: What is the same at a budget: "gflops" or "time".
        left_out: What could not be compared, and why.
        videos: How many there were, of all data.
        failures: Videos that could not be read.
        precision: What all were computed and timed in.
    """

    rows: tuple[dict[str, Any], ...]
    match: Match
    left_out: tuple[str, ...] = ()
    videos: int = 0
    failures: tuple[Failure, ...] = ()
    precision: str = "float32"

    def records(self) -> list[dict[str, Any]]:
        """The rows, settings as JSON."""
        return [{**row, "config": json.dumps(row["config"])} for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "sta": __version__,
            "match": self.match,
            "precision": self.precision,
            "rows": list(self.rows),
            "left_out": list(self.left_out),
        }

    def plot(self, path: str | Path) -> None:
        """Draw accuracy and KL over GFLOPs, and over time, ``.png``, ``.pdf`` or ``.svg``."""
        from sta.tuning.plots import draw_comparison

        draw_comparison(self.rows, path)

    def tables(self) -> Iterator[RenderableType]:
        """A table per model and data, then what was left out."""
        for model, data in dict.fromkeys((row["model"], row["data"]) for row in self.rows):
            own = [row for row in self.rows if (row["model"], row["data"]) == (model, data)]
            yield f"{model} on {data}, {own[0]['clips']} videos, {self.precision}; shares in %"
            yield WideTable(*_columns(own), keys=2)
            yield from _missed_budgets(own, self.match)
            yield ""
        for line in self.left_out:
            yield f"left out: {line}"


def _missed_budgets(rows: Sequence[Row], match: Match) -> Iterator[str]:
    """A line for each method that does not save what was asked for; seeds have one."""
    lines: dict[tuple[str, float], str] = {}
    for row in rows:
        if row["saved"] is None:
            continue
        name, asked = _unseeded(row["method"]), f"{100 * row['saved']:.4g} %"
        saves = f"it saves {100 * row['reached']:.1f} %"
        if not row["within_reach"]:
            line = f"{name} cannot save {asked}: {saves} at most (r={row['r']})"
        elif match == "time" and abs(row["reached"] - row["saved"]) > TIME_TOLERANCE:
            line = f"{name} at {asked}: {saves} (r={row['r']}), as last measured"
        else:
            continue
        lines.setdefault((name, row["saved"]), line)
    yield from lines.values()


def _columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    names = ("top1", "difference", "to_random", "agreement", "kl")
    heads = ["method", "saved", "r", "GFLOPs", "top-1", "to unpruned", "to random", "agree", "KL"]
    cells = []
    for row in rows:
        faster = "-" if row["speedup"] is None else f"{row['speedup']:.2f}x"
        saved = "-" if row["saved"] is None else f"{100 * row['saved']:.0f}"
        line = [row["method"], saved, str(row["r"]), f"{row['gflops']:.4g}", faster]
        cells.append([*line, *(cell(row, name) for name in names)])
    return [*heads[:4], "speed-up", *heads[4:]], cells


def compare(
    data: str | Path | Sequence[str | Path],
    models: str | Path | nn.Module | VideoModel | Sequence[str | Path | nn.Module] = "vit-digits",
    *,
    methods: str | Sequence[str] | None = None,
    configs: Mapping[str, Config] | Sequence[str | Path] = (),
    saved: float | Sequence[float] = SAVED,
    match: Match = "gflops",
    seeds: int = SEEDS,
    root: str | Path | None = None,
    clips: int | None = None,
    calibrate: Videos | None = None,
    views: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    batch_size: int = 8,
    rounds: int = 5,
    device: str = "auto",
    precision: str = "float32",
    timeout: float = 60.0,
    workers: int | None = None,
    progress: ProgressArg = True,
) -> CompareResult:
    """Every method on every model and data set, at the same cost; what `sta compare` does.

    >>> print(sta.compare("val.txt", "vit-b-k400", methods=["sta", "tome", "random"], saved=0.5))

    At each budget a method gets the r whose GFLOPs, or whose time on this machine, come closest to
    that share less than the unpruned model's. Where counts follow the clip ("rlt", and "auto", STA
    with `budget="auto"`), it gets the threshold that meets the budget on average over a few dozen
    other videos, without labels. All methods see the same videos.

    Args:
        data: Labelled lists or folders, "digits" or "digits-jitter"; several are gone through.
        models: What `sta.load` takes, or models; each is run on all data that it has classes for.
        methods: By name; "paper" is STA as published. Default: all that the models take.
        configs: More settings by name, or files of them; their r, or their threshold, is set to
            meet the budget.
        saved: Shares of the unpruned model's cost to save, e.g. 0.5.
        match: What the budget is of: "gflops", or "time" as measured here.
        seeds: Of random dropping.
        root: Where lists' paths start.
        clips: Limit on the videos of each data set: the first ones.
        calibrate: Videos that thresholds are set by. Without, those that come after the first
            `clips`; where there are none, the first few dozen of the compared ones.
        views: Clips x crops per video, e.g. "2x3".
        out: A folder for every video's predictions; the same call goes on with what is there.
        overwrite: Start `out` anew.
        batch_size: Clips per forward, also when timed.
        rounds: How often each is timed, in turn; 0 takes no times.
        device: "cpu", "cuda", "cuda:1" ...; "auto" is where a given model is, or a GPU.
        precision: What all compute in, and are timed in: "float32", "float16" or "bfloat16".
        timeout: Seconds without a sign of life after which a video is given up.
        workers: Decoding processes.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.

    Raises:
        ValueError: An argument is wrong, or nothing is left to compare.
    """
    sources = [str(data)] if isinstance(data, str | Path) else [str(one) for one in data]
    given = models if isinstance(models, list | tuple) else [models]
    shares = [saved] if isinstance(saved, int | float) else list(saved)
    for share in shares:
        if not 0 < share < 1:
            raise ValueError(f"saved={share:g}: give shares between 0 and 1, e.g. 0.5 for half")
    if match == "time" and not rounds:
        raise ValueError("match='time' needs times: give rounds of 1 or more")
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: random dropping needs at least one")
    makers = _makers(methods, configs, seeds)
    options = {"batch_size": batch_size, "timeout": timeout, "workers": workers}
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    failures: list[Failure] = []
    videos = 0
    for model, source in product(given, sources):
        name = model_name(model)
        setup = Setup.make(model, methods=(), device=device, precision=precision, views=views)
        try:
            job = evaluation(
                source, setup, setup.run(), root=None if root is None else str(root), limit=clips
            )
        except ValueError as error:
            left_out.append(f"{name} on {source}: {error}")
            continue
        if calibrate is None:
            all_of = evaluation(source, setup, job.run, root=None if root is None else str(root))
            others = all_of.entries[len(job.entries) :] or job.entries
            set_by = partial(_clips_of, others[:THRESHOLD_CLIPS], setup)
        else:
            set_by = partial(_load, calibrate, setup, None if root is None else str(root))
        about = {"root": str(root), "device": device, "calibrate": _called(calibrate)}
        comparison = ModelComparison(setup, job, source, match, rounds, batch_size, set_by, about)
        rows_file = _rows_file(out, name, source)
        entrants, refused = comparison.entrants(makers, shares, rows_file, overwrite)
        left_out += refused
        done = comparison.run(entrants, rows_file, overwrite, progress, options)
        rows += [{"model": name, "data": source, **row} for row in done.rows]
        failures += done.failures
        videos += done.videos
    if not rows:
        raise ValueError("nothing could be compared: " + "; ".join(left_out))
    return CompareResult(
        tuple(rows), match, tuple(dict.fromkeys(left_out)), videos, tuple(failures), precision
    )


def _makers(
    methods: str | Sequence[str] | None,
    configs: Mapping[str, Config] | Sequence[str | Path],
    seeds: int,
) -> dict[str, Callable[[int], Config]]:
    """Each name with what makes its settings from r; random dropping once for each seed."""
    names = [methods] if isinstance(methods, str) else methods
    if names is None:
        names = [] if configs else contestants()
    makers: dict[str, Callable[[int], Config]] = {}
    for name in dict.fromkeys(["random", *names]):
        if name in PRESETS:
            makers[name] = PRESETS[name]
        elif name in CLIP_DEPENDENT:
            makers[name] = partial(_with_r, CLIP_DEPENDENT[name])
        elif name not in contestants():
            raise ValueError(f"method {name!r}: use one of {', '.join(contestants())}")
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


def _values(config: Config) -> dict[str, Any]:
    """Settings by name, with their method."""
    return {"method": config.method, **asdict(config)}


def _unseeded(name: str) -> str:
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


def _one_of_each(entrants: Sequence[Entrant]) -> list[Entrant]:
    """Thresholds of close budgets that drop as many tokens are one setting: the first of them."""
    first: dict[Method, Entrant] = {}
    for one in entrants:
        first.setdefault(one.key, one)
    return [
        replace(first[one.key], saved=one.saved, within_reach=one.within_reach) for one in entrants
    ]


def _clips_of(entries: Sequence[Entry], setup: Setup) -> Iterator[NDArray[np.uint8]]:
    """The clips of videos that can be read."""
    samples = read_samples(entries, setup.spec)
    return (sample.clips for sample in samples if sample.clips is not None)


def _load(videos: Videos, setup: Setup, root: str | None) -> Iterator[NDArray[np.uint8]]:
    """A few dozen clips that are not those of digits' test split."""
    spec = replace(setup.spec, temporal=1, spatial=1)
    yield load_clips(videos, spec, THRESHOLD_CLIPS, split="train", root=root, seed=0)[0]


def _called(videos: Videos | None) -> str:
    """What tells videos from others: their names, or a digest of their pixels."""
    if isinstance(videos, np.ndarray):
        return f"{zlib.crc32(videos.tobytes()):08x}"
    return str(videos)


def _rows_file(out: str | Path | None, model: str, source: str) -> str | None:
    """The rows of one model on one data set, which may be called as others in other folders are."""
    if out is None:
        return None
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{Path(model).name}-{Path(source).stem}"
    if Path(model).name != model or Path(source).name != source:
        name += f"-{zlib.crc32(f'{model} {source}'.encode()):08x}"
    return str(folder / f"{name}.jsonl")


@dataclass
class ModelComparison:
    """One model on one data set; `set_by` gives the clips that thresholds are set by.

    `about` is what else budgets depend on, to know an earlier run by.
    """

    setup: Setup
    job: Evaluation
    source: str
    match: Match
    rounds: int
    batch_size: int
    set_by: Callable[[], Iterator[NDArray[np.uint8]]]
    about: Mapping[str, str] = field(default_factory=dict)
    # By whether counts depend on the clip, so that several batches have to be timed.
    _clocks: dict[bool, Clock] = field(default_factory=dict, init=False)
    _thresholds: dict[str, tuple[ThresholdCurve, ThresholdCurve]] = field(
        default_factory=dict, init=False
    )

    def entrants(
        self,
        makers: Mapping[str, Callable[[int], Config]],
        shares: Sequence[float],
        rows_file: str | None,
        overwrite: bool,
    ) -> tuple[list[Entrant], list[str]]:
        """Each method at each budget, and what was left out; as before where a run goes on.

        Times are never the same twice, and other times might give another r.
        """
        asked = {
            "settings": {name: _values(make(0)) for name, make in makers.items()},
            "saved": list(shares),
            "match": self.match,
            "rounds": self.rounds,
            "batch_size": self.batch_size,
            "videos": len(self.job.entries),
            "precision": self.setup.precision,
            **self.about,
        }
        asked = json.loads(json.dumps(asked))
        file = None if rows_file is None else Path(rows_file).with_suffix(".entrants.json")
        if file is not None and file.exists() and not overwrite:
            known = json.loads(file.read_text())
            if known["asked"] == asked:
                return [
                    Entrant(**{**one, "config": Config.from_values(one["config"], file)})
                    for one in known["entrants"]
                ], known["left_out"]
            if self.match == "time":  # other r may meet it when it is measured again
                other = [name for name, value in asked.items() if known["asked"].get(name) != value]
                raise ValueError(
                    f"{rows_file}: cannot be resumed with other {', '.join(other)}; use another "
                    "folder, or overwrite=True"
                )
        left_out: list[str] = []
        found = self.enter(makers, shares, left_out)
        if file is not None:
            entrants = [{**vars(one), "config": _values(one.config)} for one in found]
            content = {"asked": asked, "entrants": entrants, "left_out": left_out}
            file.write_text(json.dumps(content, indent=1) + "\n")
        return found, left_out

    def enter(
        self,
        makers: Mapping[str, Callable[[int], Config]],
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
            curve = curves.setdefault(_unseeded(name), CostCurve(partial(count, makers[name])))
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
        entrants = _one_of_each(entrants)
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
            return abs(curves[_unseeded(one.method)].share(one.gflops) - (1 - one.saved))

        for number in range(CORRECTIONS + 1):
            for one in timed:
                tried.setdefault((one.method, one.saved), []).append(one)
                curve = curves.setdefault(_unseeded(one.method), TimeCurve(unpruned))
                curve.add(one.gflops, one.speedup or 1.0)
            again = []
            for (name, saved), ones in tried.items():
                # Of those that are as close, within what times can tell, the one that drops least.
                enough = max(TIME_TOLERANCE, min(map(off, ones)) + TIME_TOLERANCE / 2)
                ones.sort(key=lambda one: (max(off(one), enough), -one.gflops))
                if number == CORRECTIONS or off(ones[0]) <= TIME_TOLERANCE:
                    continue
                other = at(name, saved, curves[_unseeded(name)].gflops_at(1 - saved))
                if other.config in (one.config for one in ones):  # it comes no closer
                    ones[0] = replace(ones[0], within_reach=other.within_reach)
                else:
                    again.append(other)
            if not again:
                break
            timed = self._timed(again)
        chosen = self._timed(_one_of_each([ones[0] for ones in tried.values()]))
        return [replace(one, within_reach=one.within_reach or _saves_enough(one)) for one in chosen]

    def _follow(self, name: str, base: Config, saved: float, cost: float) -> Entrant:
        """Settings whose counts follow the clip, with the threshold that meets a cost."""
        if name not in self._thresholds:
            sources = self.set_by(), _clips_of(self.job.entries, self.setup)
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
            apart = max(1, len(self.job.entries) // count)
            some = self.job.entries[::apart][:count]
            if not (read := list(_clips_of(some, self.setup))):
                raise ValueError(f"{self.source}: none of {len(some)} videos can be read")
            clips = np.concatenate(read)
            pixels = opened.pixels(clips[np.arange(count) % len(clips)]).to(self.setup.device)
            batches = pixels.split(self.batch_size)
            self._clocks[depends] = make_clock(opened, batches, self.rounds, self.setup.precision)
        return self._clocks[depends]

    def run(
        self,
        entrants: Sequence[Entrant],
        out: str | None,
        overwrite: bool,
        progress: ProgressArg,
        options: Mapping[str, Any],
    ) -> CompareResult:
        """Evaluate all of them on the same videos."""
        methods: dict[Method, Config | None] = {UNPRUNED: None}
        methods |= {one.key: one.config for one in entrants}
        setup = replace(self.setup, methods=methods)
        job = ComparedEvaluation(
            setup,
            setup.run(**options),
            self.job.entries,
            self.job.factors,
            costs={one.key: one.gflops for one in entrants},
            matched={one.key: 1 - self._reached(one, 1.0) for one in entrants},
        )
        resume = out is not None and Path(out).exists() and not overwrite
        done = job.collect(out=out, resume=resume, overwrite=overwrite, progress=progress)
        found = {(row["method"], row["r"]): row for row in done.table}
        full = found[UNPRUNED]
        none = {"saved": None, "reached": None, "within_reach": True, "config": None}
        rows = [{**full, **none, "speedup": 1.0}]
        for one in entrants:
            about: Row = {"saved": one.saved, "reached": self._reached(one, full["gflops"])}
            about |= {"within_reach": one.within_reach, "config": _values(one.config)}
            rows.append({**found[one.key], **about, "speedup": one.speedup})
        return CompareResult(tuple(rows), self.match, (), done.total, tuple(done.failures))

    def _reached(self, one: Entrant, unpruned: float) -> float:
        """The share of the unpruned model's cost that an entrant saves."""
        if self.match == "time" and one.speedup is not None:
            return 1 - 1 / one.speedup
        return 1 - one.gflops / unpruned


@dataclass
class ComparedEvaluation(Evaluation):
    """An evaluation that also compares with random dropping.

    `costs` are GFLOPs as they were, `matched` what a budget is of: GFLOPs, or a share of the time.
    """

    costs: Mapping[Method, float] = field(default_factory=dict)
    matched: Mapping[Method, float] = field(default_factory=dict)

    def table(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """A row per method, with `to_random`: of random dropping at the closest cost."""
        right: dict[Method, list[bool]] = {}

        def noted() -> Iterator[Row]:
            for row in rows:
                if row["error"] is None:
                    hit = row["classes"][0] == row["label"]
                    right.setdefault((row["method"], row["r"]), []).append(hit)
                yield row

        table = super().table(noted())
        seeds: dict[int, list[Method]] = {}  # by r
        for key in right:
            if key[0].startswith("random, seed"):
                seeds.setdefault(key[1], []).append(key)
        cost = {r: np.mean([self.matched[seed] for seed in level]) for r, level in seeds.items()}
        for row in table:
            key = row["method"], row["r"]
            row["gflops"] = self.costs.get(key, row["gflops"])
            if key == UNPRUNED or key[0].startswith("random, seed") or key not in right:
                continue
            if not seeds:
                continue
            level = seeds[min(cost, key=lambda r: abs(cost[r] - self.matched[key]))]
            drawn = np.mean([right[seed] for seed in level], axis=0)
            each = np.asarray(right[key], dtype=float) - drawn
            row["to_random"] = float(each.mean())
            row["to_random_low"], row["to_random_high"] = bootstrap(each.tolist())
        return table
