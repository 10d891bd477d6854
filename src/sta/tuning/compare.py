"""`sta.compare`: methods on models and data, at the same GFLOPs or in the same measured time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from torch import nn

from sta.backbones.zoo.video_model import VideoModel, model_name
from sta.inference.collect import Failure
from sta.inference.evaluate import Evaluation, evaluation
from sta.inference.metrics import cell
from sta.inference.rows import Row
from sta.inference.setup import Setup
from sta.measure.matching import UNPRUNED, Method
from sta.measure.stats import bootstrap
from sta.methods import Config, RandomConfig
from sta.progress import ProgressArg
from sta.results import Result, WideTable
from sta.tuning.entrants import (
    THRESHOLD_CLIPS,
    TIME_TOLERANCE,
    BudgetSearch,
    Entrant,
    Makers,
    Match,
    clips_of,
    makers_of,
    unseeded,
)
from sta.version import __version__
from sta.video.clips import Videos, load_clips

SAVED = (0.35, 0.5, 0.65)
SEEDS = 3


@dataclass(frozen=True)
class CompareResult(Result):
    """Methods side by side: a row per model, data, budget and method.

    Attributes:
        rows: `model`, `data`, `method`, `saved` (asked for), `reached` (the share of GFLOPs, or of
            time, that it does save), `within_reach` (whether any r saves as much as was asked
            for; with the closest one, `reached` may be a little off), `r`, `config`, `gflops`,
            `speedup`, then what `sta.evaluate` counts, and `to_random`: accuracy minus the mean of
            the seeds of random dropping on the same videos, at the closest cost; with a rival
            likewise `to_RIVAL`. Shares are 0..1, with 95 % intervals. Where counts follow the
            clip, `r` and `gflops` are means over these videos.
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
        name, asked = unseeded(row["method"]), f"{100 * row['saved']:.4g} %"
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
    found = dict.fromkeys(name for row in rows for name in row)
    rivals = [n for n in found if n.startswith("to_") and not n.endswith(("_low", "_high"))]
    names = ("top1", "difference", *rivals, "agreement", "kl")
    heads = ["method", "saved", "r", "GFLOPs", "top-1", "to unpruned"]
    heads += [*(name.replace("_", " ") for name in rivals), "agree", "KL"]
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
    rival: str | None = None,
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
        rival: A method, or one of `configs`, that all others are compared with, beside random
            dropping, e.g. "ward": rows have `to_ward`, too.
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
    makers = makers_of(methods, configs, seeds, rival)
    rivals = [RandomConfig.method] if rival is None else [RandomConfig.method, rival]
    if not set(rivals) <= set(map(unseeded, makers)):
        names = ", ".join(dict.fromkeys(map(unseeded, makers)))
        raise ValueError(f"rival={rival!r} does not take part: use one of {names}")
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
            set_by = partial(clips_of, others[:THRESHOLD_CLIPS], setup)
        else:
            set_by = partial(_load, calibrate, setup, None if root is None else str(root))
        about = {"root": str(root), "device": device, "calibrate": _called(calibrate)}
        search = BudgetSearch(setup, job.entries, source, match, rounds, batch_size, set_by)
        comparison = ModelComparison(search, job, rivals, about)
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


def _other_settings(rows_file: str | None, other: Sequence[str]) -> ValueError:
    return ValueError(
        f"{rows_file}: cannot be resumed with other {', '.join(other)}; use another folder, or "
        "overwrite=True"
    )


@dataclass
class ModelComparison:
    """One model on one data set.

    `about` is what else budgets depend on, to know an earlier run by; `rivals` are the methods
    that each is compared with.
    """

    search: BudgetSearch
    job: Evaluation
    rivals: Sequence[str]
    about: Mapping[str, str] = field(default_factory=dict)

    def entrants(
        self,
        makers: Makers,
        shares: Sequence[float],
        rows_file: str | None,
        overwrite: bool,
    ) -> tuple[list[Entrant], list[str]]:
        """Each method at each budget, and what was left out; as before where a run goes on.

        Times are never the same twice, and other times might give another r.
        """
        asked = {
            "settings": {name: make(0).to_values() for name, make in makers.items()},
            "saved": list(shares),
            "match": self.search.match,
            "rounds": self.search.rounds,
            "batch_size": self.search.batch_size,
            "videos": len(self.job.entries),
            "precision": self.search.setup.precision,
            **self.about,
        }
        asked = json.loads(json.dumps(asked))
        file = None if rows_file is None else Path(rows_file).with_suffix(".entrants.json")
        earlier: dict[Method, Config] | None = None  # what the rows that are there were made with
        if file is not None and file.exists() and not overwrite:
            known = json.loads(file.read_text())
            before = [
                Entrant(**{**one, "config": Config.from_values(one["config"], file)})
                for one in known["entrants"]
            ]
            if known["asked"] == asked:
                return before, known["left_out"]
            other = [name for name, value in asked.items() if known["asked"].get(name) != value]
            if "match" in other or self.search.match == "time":  # times are never the same twice
                raise _other_settings(rows_file, other)
            if rows_file is not None and Path(rows_file).exists():
                earlier = {one.key: one.config for one in before}
        left_out: list[str] = []
        found = self.search.entrants(makers, shares, left_out)
        if earlier is not None and earlier != {one.key: one.config for one in found}:
            raise _other_settings(rows_file, other)
        if file is not None:
            entrants = [{**vars(one), "config": one.config.to_values()} for one in found]
            content = {"asked": asked, "entrants": entrants, "left_out": left_out}
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(content, indent=1) + "\n")
            partial.replace(file)
        return found, left_out

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
        setup = replace(self.search.setup, methods=methods)
        job = ComparedEvaluation(
            setup,
            setup.run(**options),
            self.job.entries,
            self.job.factors,
            costs={one.key: one.gflops for one in entrants},
            matched={one.key: 1 - self._reached(one, 1.0) for one in entrants},
            rivals=self.rivals,
        )
        resume = out is not None and Path(out).exists() and not overwrite
        done = job.collect(out=out, resume=resume, overwrite=overwrite, progress=progress)
        found = {(row["method"], row["r"]): row for row in done.table}
        full = found[UNPRUNED]
        none = {"saved": None, "reached": None, "within_reach": True, "config": None}
        rows = [{**full, **none, "speedup": 1.0}]
        for one in entrants:
            about: Row = {"saved": one.saved, "reached": self._reached(one, full["gflops"])}
            about |= {"within_reach": one.within_reach, "config": one.config.to_values()}
            rows.append({**found[one.key], **about, "speedup": one.speedup})
        return CompareResult(tuple(rows), self.search.match, (), done.total, tuple(done.failures))

    def _reached(self, one: Entrant, unpruned: float) -> float:
        """The share of the unpruned model's cost that an entrant saves."""
        if self.search.match == "time" and one.speedup is not None:
            return 1 - 1 / one.speedup
        return 1 - one.gflops / unpruned


@dataclass
class ComparedEvaluation(Evaluation):
    """An evaluation that also compares methods with each other.

    `costs` are GFLOPs as they were, `matched` what a budget is of: GFLOPs, or a share of the time;
    `rivals` are the methods that each is compared with.
    """

    costs: Mapping[Method, float] = field(default_factory=dict)
    matched: Mapping[Method, float] = field(default_factory=dict)
    rivals: Sequence[str] = (RandomConfig.method,)

    def table(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """A row per method, with `to_random` and the like: to a rival at the closest cost."""
        right: dict[Method, list[bool]] = {}

        def noted() -> Iterator[Row]:
            for row in rows:
                if row["error"] is None:
                    hit = row["classes"][0] == row["label"]
                    right.setdefault((row["method"], row["r"]), []).append(hit)
                yield row

        table = super().table(noted())
        for row in table:
            key = row["method"], row["r"]
            row["gflops"] = self.costs.get(key, row["gflops"])
            if key == UNPRUNED or key not in right:
                continue
            for rival in self.rivals:
                if (level := self._closest(rival, key, right)) is None:
                    continue
                drawn = np.mean([right[seed] for seed in level], axis=0)
                each = np.asarray(right[key], dtype=float) - drawn
                name = f"to_{rival}"
                row[name] = float(each.mean())
                row[f"{name}_low"], row[f"{name}_high"] = bootstrap(each.tolist())
        return table

    def _closest(self, rival: str, key: Method, among: Iterable[Method]) -> list[Method] | None:
        """All seeds of a rival at the r whose cost is closest to a setting's; not its own rival."""
        if unseeded(key[0]) == rival:
            return None
        levels: dict[int, list[Method]] = {}  # by r
        for other in among:
            if unseeded(other[0]) == rival:
                levels.setdefault(other[1], []).append(other)
        if not levels:
            return None

        def off(r: int) -> float:
            cost = np.mean([self.matched[seed] for seed in levels[r]])
            return abs(float(cost) - self.matched[key])

        return levels[min(levels, key=off)]
