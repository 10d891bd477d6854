"""`sta.evaluate`: predictions plus labels plus metrics, of files or of data made on the fly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from torch import nn

from sta.backbones.zoo.video_model import VideoModel
from sta.inference.collect import Collected, Failure, Interrupted, Job, collect
from sta.inference.journal import check_out
from sta.inference.metrics import Tally, columns, summarise
from sta.inference.options import RunOptions, split
from sta.inference.rows import Row, evaluation_rows
from sta.inference.run import Run
from sta.inference.scoring import Scored
from sta.inference.setup import Setup
from sta.measure.matching import UNPRUNED, Method
from sta.measure.stats import divergence
from sta.methods import Config
from sta.progress import ProgressArg
from sta.results import Result, WideTable
from sta.runtime.exported import ExportedModel
from sta.video.clips import digit_entries
from sta.video.digits import CLASS_NAMES, COLOURS, FRAMES, MOTIONS, NAMES, SIDE, TEST_CLIPS
from sta.video.lists import Entry, check_source, find_labelled
from sta.video.views import ViewSpec

#: Scores ``(classes,)`` and the label to which parts of the label were predicted right.
Factors = Callable[[NDArray[np.float64], int], dict[str, bool]]


@dataclass
class EvaluationResult(Result):
    """Accuracy, cost and speed: a row per method and r. It iterates over them, and prints well.

    Attributes:
        table: The rows: `method`, `r`, `gflops`, `clips_per_s`, `clips`, `top1`, `top5`,
            `agreement`, `kl`, `difference`, `failed`; shares are 0..1, each with its 95 % interval
            (`..._low`, `..._high`); `kl` is the mean divergence from the unpruned model's
            probabilities, in nats; `gflops` of a method whose count follows the clip are the most
            that a clip can cost.
        total: Videos that were asked for.
        done: Videos that have their rows: all, unless Ctrl-C ended the run.
        failures: Videos that could not be read, and are left out: path, error and kind of each.
        out: The file with the rows of every video, if one was written.
        left_out: Methods that the model does not take, and why.
    """

    table: list[dict[str, Any]]
    total: int
    done: int
    failures: list[Failure] = field(default_factory=list)
    out: str | None = None
    left_out: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def records(self) -> list[dict[str, Any]]:
        return list(self.table)

    def tables(self) -> Iterator[RenderableType]:
        """The rows in one table; where it is too wide, in several; then what was left out."""
        yield WideTable(*columns(self.table), keys=2)
        for line in self.left_out:
            yield f"left out: {line}"


def evaluate(
    source: str | Path,
    model: str | Path | nn.Module | VideoModel = "vit-digits",
    *,
    methods: str | Sequence[str] | None = None,
    r: int | Sequence[int] = 0,
    match_gflops: bool = False,
    config: Config | str | Path | None = None,
    root: str | Path | None = None,
    labels: str | Path | None = None,
    clips: int | None = None,
    protocol: Literal["k400", "ssv2"] | None = None,
    views: str | None = None,
    out: str | Path | None = None,
    progress: ProgressArg = True,
    **options: Unpack[RunOptions],
) -> EvaluationResult:
    """Accuracy, agreement with the unpruned model, GFLOPs and speed; what `sta eval` does.

    >>> print(sta.evaluate("val.txt", "vit-b-k400", methods=["sta", "random"], r=[0, 32, 64]))

    Every video is decoded once for all methods and r.

    Args:
        source: A list of ``path label`` lines, Something-Something's JSON, a folder with a folder
            per class, "digits", or "digits-jitter" (with a camera that shakes).
        model: What `sta.load` takes, a model, or a `VideoModel`. A model is left as it is.
        methods: How tokens are chosen; default: "sta". Several are compared, without those that the
            model does not take (see `EvaluationResult.left_out`).
        r: Tokens to drop per frame, for every method; several are compared. 0 is the model as it
            is, whatever the methods; where none of them has an r, its row is called "unpruned".
        match_gflops: Give every other method the r whose GFLOPs come closest to STA's.
        config: A method's settings, or a file of them, instead of `methods` and `r`; with r=0 the
            unpruned model is beside it.
        root: Where a list's paths start.
        labels: Folders' names in label order, or Something-Something's labels file.
        clips: Limit on the number of videos: the first ones.
        protocol: Test views as published for this data set; by default the model's own.
        views: Clips x crops per video, e.g. "5x3".
        out: Write the rows of every video to this file (.jsonl, .parquet or .csv) as they come.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.
        options: How the model is loaded and run, where, and what becomes of the file: see
            `ModelOptions`, `EngineOptions` and `RowOptions`.

    Raises:
        ValueError: An argument is wrong, or does not fit the model.
        OSError: A file cannot be read or written.
        Interrupted: Ctrl-C; a `KeyboardInterrupt` whose `result` is what was done.
    """
    out = None if out is None else str(out)
    loaded, engine, rows = split(options)
    at = [r] if isinstance(r, int) else list(r)
    names = [methods] if isinstance(methods, str) else methods
    if config is not None and (any(at) or names is not None):
        raise ValueError(
            "config has a method and its r: leave method and r out, or give r 0 to have the "
            "unpruned model beside it"
        )
    check_out(out, **rows)
    if views is not None:
        ViewSpec().with_views(views)  # before the model is loaded
    if str(source) not in NAMES:
        check_source(str(source), None if labels is None else str(labels))
    setup = Setup.make(
        model,
        methods=["sta"] if names is None else names,
        r=at,
        match_gflops=match_gflops,
        config=config,
        protocol=protocol,
        views=views,
        **loaded,
    )
    exported = isinstance(setup.opened.model, ExportedModel)  # what it is stays in it
    if 0 in at and not exported and None not in setup.methods.values():
        setup.methods = {UNPRUNED: None, **setup.methods}
    run = setup.run(**engine)
    job = evaluation(
        str(source),
        setup,
        run,
        root=None if root is None else str(root),
        labels=None if labels is None else str(labels),
        limit=clips,
    )
    return job.collect(out=out, progress=progress, **rows)


@dataclass
class Evaluation:
    """A labelled source under a set-up."""

    setup: Setup  # the model and its methods
    run: Run  # how it is run
    entries: Sequence[Entry]  # the videos
    factors: Factors | None = None  # what a label is made of, where it is made of parts
    # The method that accuracy is compared with; None is the unpruned model.
    reference: Method | None = None

    def collect(self, *, out: str | None = None, **options: Any) -> EvaluationResult:
        """Evaluate.

        Raises:
            Interrupted: Ctrl-C; its `result` is of what was done.
        """
        setup = self.setup
        about = setup.prepare(
            self.run.classifier, self.entries, len(self.entries) * self.run.spec.views
        )
        job = Job(self.entries, self.run.score, self.rows, len(setup.methods), about)
        done: Collected[list[dict[str, Any]]] = collect(job, self.table, out=out, **options)
        result = EvaluationResult(
            done.summary, done.total, done.done, done.failures, out, setup.left_out
        )
        if done.interrupted:
            raise Interrupted(result)
        return result

    def rows(self, video: Scored) -> list[Row]:
        """The rows of one video, one per method."""
        rows = evaluation_rows(video, self.setup.opened.class_names, list(self.setup.methods))
        whole = [n for n, config in enumerate(self.setup.methods.values()) if config is None]
        names = ["kl"] * bool(whole) + ["factors"] * (self.factors is not None)
        for row in rows:
            row |= dict.fromkeys(names)  # a failed video has the same columns as the others
        if whole and video.scores is not None:
            apart = divergence(video.scores[whole[0]], video.scores)
            for row, value in zip(rows, apart, strict=True):
                row["kl"] = round(max(0.0, float(value)), 12)  # rounding of sums ends there
        if self.factors is not None and video.scores is not None and video.label is not None:
            for row, scores in zip(rows, video.scores, strict=True):
                row["factors"] = self.factors(scores, video.label)
        return rows

    def table(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """A row per method: ``method``, ``r``, ``gflops``, then what `summarise` counts."""
        summaries = summarise(rows, self.reference)
        gflops = dict(zip(self.setup.methods, self.run.classifier.gflops(), strict=True))
        return [
            {
                "method": method,
                "r": r,
                "gflops": gflops[method, r],
                **summaries.get((method, r), Tally().summary()),
            }
            for method, r in self.setup.methods
        ]


def evaluation(
    source: str,
    setup: Setup,
    run: Run,
    *,
    root: str | None = None,
    labels: str | None = None,
    limit: int | None = None,
) -> Evaluation:
    """The evaluation of a list, a folder, or the digit actions."""
    if limit is not None and limit < 1:
        raise ValueError(f"{limit} clips of {source}: an evaluation needs at least one")
    if source in NAMES:
        return _digits(source, setup, run, limit)
    names = setup.opened.class_names
    entries = find_labelled(source, root, classes=names, labels=labels)[:limit]
    return Evaluation(setup, run, entries)


def _digits(source: str, setup: Setup, run: Run, limit: int | None) -> Evaluation:
    expected, classes = setup.opened.clip.views, len(setup.opened.class_names)
    if (classes, expected.frames, expected.size) != (len(CLASS_NAMES), FRAMES, SIDE):
        raise ValueError(
            f"{setup.name} cannot be evaluated on digits: it has {classes} classes and takes "
            f"{expected.frames} frames of {expected.size} pixels, digits need "
            f"{len(CLASS_NAMES)}, {FRAMES} and {SIDE}; use vit-digits or swin-digits"
        )
    if run.engine != "local":
        raise ValueError("digits are made where they are used: leave engine out")

    def factors(scores: NDArray[np.float64], label: int) -> dict[str, bool]:
        table = scores.reshape(len(MOTIONS), len(COLOURS))
        motion, colour = divmod(label, len(COLOURS))
        return {
            "motion": bool(table.sum(axis=1).argmax() == motion),
            "colour": bool(table.sum(axis=0).argmax() == colour),
        }

    entries = [
        replace(entry, path=f"{source}/test/{number:06d}")
        for number, entry in enumerate(digit_entries(source, limit or TEST_CLIPS))
    ]
    return Evaluation(setup, run, entries, factors)
