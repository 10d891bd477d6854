"""Evaluation: predictions plus labels plus metrics, of files or of data made on the fly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sta.inference.metrics import Method, summarise
from sta.inference.rows import Row, evaluation_rows
from sta.inference.run import Run
from sta.inference.samples import Sample, Scored
from sta.inference.scoring import score_samples
from sta.inference.setup import Setup
from sta.video.digits import NAMES
from sta.video.lists import find_labelled

#: Scores ``(classes,)`` and the label to the parts of the label that were told right.
Factors = Callable[[NDArray[np.float64], int], dict[str, bool]]


@dataclass
class Evaluation:
    """A labelled source under a set-up.

    Attributes:
        setup: The model and its methods.
        run: How it is run.
        total: Number of videos.
        score: Scores the videos whose paths are not in a set.
        factors: What a label is made of, where it is made of parts.
        reference: The method that accuracy is compared with; None is the unpruned model.
    """

    setup: Setup
    run: Run
    total: int
    score: Callable[[Set[str]], Iterator[Scored]]
    factors: Factors | None = None
    reference: Method | None = None

    def rows(self, video: Scored) -> list[Row]:
        """The rows of one video, one per method."""
        rows = evaluation_rows(video, self.setup.opened.class_names, list(self.setup.methods))
        if self.factors is not None and video.scores is not None and video.label is not None:
            for row, scores in zip(rows, video.scores, strict=True):
                row["factors"] = self.factors(scores, video.label)
        return rows

    def table(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """A row per method: ``method``, ``r``, ``gflops``, then what `summarise` counts."""
        summaries = summarise(rows, self.reference)
        gflops = dict(zip(self.setup.methods, self.run.classifier.gflops(), strict=True))
        return [
            {"method": method, "r": r, "gflops": gflops[method, r], **summaries[method, r]}
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
    """The evaluation of a list, a folder, or the digit actions.

    Args:
        source: What `find_labelled` takes, ``"digits"``, or ``"digits-jitter"``: with a camera that
            shakes, so that nothing stands still.
        setup: The model and its methods.
        run: How to run it.
        root: Where a list's paths start.
        labels: Something-Something's labels file.
        limit: Only the first so many.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"{limit} clips of {source}: an evaluation needs at least one")
    if source in NAMES:
        return _digits(source, setup, run, limit)
    names = setup.opened.class_names
    entries = find_labelled(source, root, classes=names, labels=labels)[:limit]

    def score(done: Set[str]) -> Iterator[Scored]:
        return run.score([entry for entry in entries if entry.path not in done])

    return Evaluation(setup, run, len(entries), score)


def _digits(source: str, setup: Setup, run: Run, limit: int | None) -> Evaluation:
    from sta.video.digits import (
        CLASS_NAMES,
        COLOURS,
        FRAMES,
        MOTIONS,
        SIDE,
        TEST_CLIPS,
        DigitActions,
    )

    expected = setup.opened.clip.views
    if len(setup.opened.class_names) != len(CLASS_NAMES) or (expected.frames, expected.size) != (
        FRAMES,
        SIDE,
    ):
        raise ValueError(
            f"{setup.name} cannot be evaluated on digits: it has {len(setup.opened.class_names)} "
            f"classes and takes {expected.frames} frames of {expected.size} pixels, digits need "
            f"{len(CLASS_NAMES)}, {FRAMES} and {SIDE}; use vit-digits or swin-digits"
        )
    if run.engine != "local":
        raise ValueError("digits are made where they are used: leave --engine out")
    size = TEST_CLIPS if limit is None else limit
    data = DigitActions("test", size=size, camera_jitter=source == "digits-jitter")

    def samples(done: Set[str]) -> Iterator[Sample]:
        for number in range(len(data)):
            if (path := f"{source}/test/{number:06d}") not in done:
                frames, label = data[number]
                yield Sample(path, frames[None], label)  # one view: the whole clip

    def factors(scores: NDArray[np.float64], label: int) -> dict[str, bool]:
        table = scores.reshape(len(MOTIONS), len(COLOURS))
        motion, colour = divmod(label, len(COLOURS))
        return {
            "motion": bool(table.sum(axis=1).argmax() == motion),
            "colour": bool(table.sum(axis=0).argmax() == colour),
        }

    def score(done: Set[str]) -> Iterator[Scored]:
        return score_samples(samples(done), run.classifier, run.batch_size)

    return Evaluation(setup, run, len(data), score, factors)
