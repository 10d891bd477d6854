"""`sta.ablate`: studies of one choice of the method each, all variants on the same clips."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from torch import nn

from sta.backbones.zoo.video_model import VideoModel
from sta.inference.evaluate import Evaluation, evaluation
from sta.inference.journal import check_out
from sta.inference.metrics import cell
from sta.inference.setup import Setup
from sta.measure.matching import UNPRUNED, Method
from sta.methods import Config, STAConfig, r_of
from sta.progress import ProgressArg
from sta.results import Result, table
from sta.tuning.ablation_studies import Study, Subject, Variant, make_studies

DEFAULT_R = 24
TEMPORAL_VIEWS = (1, 2, 4, 8)


@dataclass
class Pass:
    """One pass over the clips, with all variants that want the same views of them."""

    views: str | None  # clips x crops, where they are not what the data set has
    evaluation: Evaluation  # of every distinct setting once, and of the unpruned model
    keys: dict[Config | None, Method]  # what each setting's rows are called

    def beside(self, out: str | None) -> str | None:
        """The file that this pass's rows go to: one for each views."""
        if out is None or self.views is None:
            return out
        path = Path(out)
        return str(path.with_name(f"{path.stem}-{self.views}{path.suffix}"))


@dataclass(frozen=True)
class AblationResult(Result):
    """Measured studies.

    Attributes:
        report: Everything that was measured: `model`, `data`, `clips`, `default`, `unpruned`, and
            `studies` with a row per variant.
        videos: How many videos there were.
        failures: Path and error of each video that failed.
    """

    report: dict[str, Any]
    videos: int
    failures: tuple[tuple[str, str], ...] = ()

    def records(self) -> list[dict[str, Any]]:
        """A row per variant, settings as JSON; the unpruned model first."""
        unpruned = self.report["unpruned"]
        head = {"study": "", "variant": "unpruned", "default": False}
        rows = [{**head, "config": None, "refused": None, **unpruned}] if unpruned else []
        for study in self.report["studies"]:
            rows += [{"study": study["name"], **row} for row in study["rows"]]
        return [{**row, "config": json.dumps(row["config"])} for row in rows]

    def plot(self, path: str | Path) -> None:
        """Draw all studies into a file, ``.png``, ``.pdf`` or ``.svg``."""
        from sta.tuning.plots import draw_studies

        draw_studies(self.report, path)

    def tables(self) -> Iterator[RenderableType]:
        """A table per study, and what was left out and why."""
        for study in self.report["studies"]:
            measured = [row for row in study["rows"] if row["refused"] is None]
            if measured:
                yield _study_table(study["title"], measured)
            for row in study["rows"]:
                if row["refused"] is not None:
                    yield f"{study['name']}: {row['variant']} left out: {row['refused']}"
            if study["left_out"] is not None:
                yield f"{study['name']} left out: {study['left_out']}"


#: Columns that a study may have, beside the accuracy, and their heads.
_SHARES = {"agreement": "agree", "motion": "motion", "colour": "colour"}


def _study_table(title: str, rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    shares = [name for name in _SHARES if name in rows[0]]
    return table(
        ("variant", "GFLOPs", "top-1", "difference", *(_SHARES[name] for name in shares)),
        [
            (
                f"{row['variant']} (default)" if row["default"] else str(row["variant"]),
                cell(row, "gflops"),
                "-" if row["top1"] is None else f"{100 * row['top1']:.2f}",
                *(cell(row, name) for name in ("difference", *shares)),
            )
            for row in rows
        ],
        title=f"{title} (shares in %)",
    )


def ablate(
    studies: str | Sequence[str] = (),
    *,
    model: str | nn.Module | VideoModel = "vit-digits",
    data: str = "digits",
    root: str | None = None,
    r: int | None = None,
    config: str | Path | STAConfig | None = None,
    temperature: float | None = None,
    clips: int | None = None,
    protocol: str | None = None,
    views: str | None = None,
    batch_size: int = 32,
    device: str = "auto",
    precision: str = "float32",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    timeout: float = 60.0,
    workers: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    progress: ProgressArg = True,
) -> AblationResult:
    """The paper's ablations, one choice of the method at a time, on a model of yours.

    All variants run on the same clips, in one pass over them. `difference` is a variant's accuracy
    minus the default's on the same clips, with its 95 % interval; `agreement` is with the unpruned
    model. Where costs are to be the same, r is chosen so that GFLOPs come closest to the default's.

    Args:
        studies: Names of `sta.tuning.ablation_studies.STUDIES`; none, or "all", are all.
        model: What `sta.load` takes, or a model without a method applied.
        data: "digits", "digits-jitter", or a labelled list or folder.
        root: Where a list's paths start.
        r: Tokens dropped per frame at the first step; default: 24.
        config: STA's settings that are varied, or a file with them, instead of `r`.
        temperature: Of all variants but those of that study.
        clips: How many of the first clips; None takes all.
        protocol: Test views as published for this data set.
        views: Clips x crops per video, e.g. "5x3".
        batch_size: Clips per forward.
        device: "cpu", "cuda", "cuda:1" ...; "auto" is where a given model is, or a GPU.
        precision: What all compute in: "float32", "float16" or "bfloat16".
        out: A file for every clip's predictions: ``.jsonl``, ``.parquet`` or ``.csv``.
        resume: Go on with the file in `out`.
        overwrite: Start the file in `out` anew.
        timeout: Seconds without a sign of life after which a video is given up.
        workers: Decoding processes.
        overrides: Fields of the backbone's config, for `sta.load`.
        random_weights: Build the model without loading weights.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.

    Returns:
        The studies, with what was measured of each variant.

    Raises:
        ValueError: An argument does not fit, or there is nothing to compare.
    """
    rows_file = None if out is None else str(out)
    check_out(rows_file, resume=resume, overwrite=overwrite)
    default = _default(r, config, temperature)
    setup = Setup.make(
        model,
        methods=(),
        overrides=overrides,
        random_weights=random_weights,
        device=device,
        precision=precision,
        protocol=protocol,
        views=views,
    )
    names = [studies] if isinstance(studies, str) else list(studies)
    options = {"batch_size": batch_size, "timeout": timeout, "workers": workers}
    ablation = Ablation(setup, data, default, names, clips, options, root)
    return ablation.run(rows_file, resume=resume, overwrite=overwrite, progress=progress)


def _default(
    r: int | None, config: str | Path | STAConfig | None, temperature: float | None
) -> STAConfig:
    """The settings that every study varies."""
    if config is not None:
        if r is not None or temperature is not None:
            raise ValueError(f"config {config} has the settings: leave r and temperature out")
        return config if isinstance(config, STAConfig) else STAConfig.from_file(config)
    default = STAConfig(r=DEFAULT_R if r is None else r)
    return default if temperature is None else replace(default, temperature=temperature)


@dataclass
class Ablation:
    """Studies of one model on one data set."""

    setup: Setup
    source: str
    default: STAConfig
    names: Sequence[str] = ()
    limit: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    root: str | None = None
    studies: list[Study] = field(init=False)

    def __post_init__(self) -> None:
        spec = self.setup.spec
        views = (
            () if self.source == "digits" else tuple(f"{n}x{spec.spatial}" for n in TEMPORAL_VIEWS)
        )
        opened = self.setup.opened
        self.subject = Subject(opened.model, opened.clip.shape(), self.default, views)
        self.studies = make_studies(self.names, self.subject)

    def passes(self) -> Iterator[Pass]:
        wanted: dict[str | None, dict[Config | None, Method]] = {}
        for study in self.studies:
            for variant in study.variants:
                if variant.refused is None:
                    keys = wanted.setdefault(
                        variant.views, {None: UNPRUNED, self.default: ("default", self.default.r)}
                    )
                    r = r_of(variant.config)
                    keys.setdefault(variant.config, (f"{study.name}: {variant.name}", r))
        for views, keys in wanted.items():
            yield Pass(views, self._evaluation(views, keys), keys)

    def _evaluation(self, views: str | None, keys: dict[Config | None, Method]) -> Evaluation:
        spec = self.setup.spec if views is None else self.setup.spec.with_views(views)
        methods = {key: config for config, key in keys.items()}
        setup = replace(self.setup, methods=methods, spec=spec)
        job = evaluation(
            self.source, setup, setup.run(**self.options), root=self.root, limit=self.limit
        )
        # Other views are compared with the unpruned model on the same views.
        job.reference = keys[self.default] if views is None else None
        return job

    def run(
        self,
        out: str | None = None,
        *,
        resume: bool = False,
        overwrite: bool = False,
        progress: ProgressArg = False,
    ) -> AblationResult:
        """Run all passes; rows go to `out`, where another run may resume them."""
        measured, videos = [], 0
        failures: dict[str, str] = {}
        for one in self.passes():
            done = one.evaluation.collect(
                out=one.beside(out),
                resume=resume,
                overwrite=overwrite,
                progress=progress,
            )
            videos = max(videos, done.total)
            measured.append((one, done.table))
            failures.update((failure.path, failure.error) for failure in done.failures)
        return AblationResult(self.report(measured), videos, tuple(failures.items()))

    def report(self, tables: Sequence[tuple[Pass, list[dict[str, Any]]]]) -> dict[str, Any]:
        """Everything that was measured, study by study."""
        by_views = {
            done.views: (done, {(row["method"], row["r"]): row for row in table})
            for done, table in tables
        }
        unpruned = next(iter(by_views.values()))[1][UNPRUNED] if by_views else {}
        return {
            "model": self.setup.name,
            "data": self.source,
            "precision": self.setup.precision,
            "clips": unpruned.get("clips", 0),
            "default": asdict(self.default),
            "unpruned": _measured(unpruned),
            "studies": [
                {
                    "name": study.name,
                    "title": study.title,
                    "left_out": study.left_out,
                    "rows": [self._row(variant, by_views) for variant in study.variants],
                }
                for study in self.studies
            ],
        }

    def _row(
        self,
        variant: Variant,
        by_views: dict[str | None, tuple[Pass, dict[Method, dict[str, Any]]]],
    ) -> dict[str, Any]:
        row: dict[str, Any] = {
            "variant": variant.name,
            "default": variant.views is None and variant.config == self.default,
            "config": variant.config and variant.config.to_values(),
            "refused": variant.refused,
        }
        if variant.refused is None:
            done, table = by_views[variant.views]
            row |= _measured(table[done.keys[variant.config]])
        return row


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("method", "r")}
