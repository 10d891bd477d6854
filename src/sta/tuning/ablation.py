"""Running studies: all variants on the same clips, in one pass over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sta.inference.evaluate import Evaluation, evaluation
from sta.inference.metrics import Method
from sta.inference.setup import Setup
from sta.methods import Config, STAConfig
from sta.tuning.studies import Study, Subject, Variant, make_studies

UNPRUNED: Method = ("unpruned", 0)
TEMPORAL_VIEWS = (1, 2, 4, 8)


@dataclass
class Pass:
    """One pass over the clips, with all variants that want the same views of them.

    Attributes:
        views: Clips x crops, where they are not what the data set has.
        evaluation: Of every distinct setting once, and of the unpruned model.
        keys: What each setting's rows are called.
    """

    views: str | None
    evaluation: Evaluation
    keys: dict[Config | None, Method]

    def beside(self, out: str | None) -> str | None:
        """The file that this pass's rows go to: one for each views."""
        if out is None or self.views is None:
            return out
        path = Path(out)
        return str(path.with_name(f"{path.stem}-{self.views}{path.suffix}"))


@dataclass
class Ablation:
    """Studies of one model on one data set.

    Attributes:
        setup: The model; the methods are filled in here.
        source: "digits", or a labelled list or folder.
        default: The settings that every study varies.
        names: Which studies; none are all.
        limit: Only the first so many clips.
        options: Of the run, e.g. `batch_size`.
        root: Where a list's paths start.
        studies: What is run.
    """

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
        """What is to be run, one after another."""
        wanted: dict[str | None, dict[Config | None, Method]] = {}
        for study in self.studies:
            for variant in study.variants:
                if variant.refused is None:
                    keys = wanted.setdefault(variant.views, self._always())
                    r = int(getattr(variant.config, "r", 0))
                    keys.setdefault(variant.config, (f"{study.name}: {variant.name}", r))
        for views, keys in wanted.items():
            yield Pass(views, self._evaluation(views, keys), keys)

    def _always(self) -> dict[Config | None, Method]:
        return {None: UNPRUNED, self.default: ("default", self.default.r)}

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

    def report(self, tables: Sequence[tuple[Pass, list[dict[str, Any]]]]) -> dict[str, Any]:
        """Everything that was measured, study by study.

        Args:
            tables: Each pass with its evaluation's table.
        """
        by_views = {done.views: (done, _by_key(table)) for done, table in tables}
        unpruned = next(iter(by_views.values()))[1][UNPRUNED] if by_views else {}
        return {
            "model": self.setup.name,
            "data": self.source,
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
            "config": variant.config
            and {"method": variant.config.method, **asdict(variant.config)},
            "refused": variant.refused,
        }
        if variant.refused is None:
            done, table = by_views[variant.views]
            row |= _measured(table[done.keys[variant.config]])
        return row


def _by_key(table: list[dict[str, Any]]) -> dict[Method, dict[str, Any]]:
    return {(row["method"], row["r"]): row for row in table}


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("method", "r")}
