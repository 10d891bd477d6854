"""One road from videos to scores, whichever engine drives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sta.inference.clip_model import Classifier
from sta.inference.scoring import Scored, score_samples
from sta.video.clips import read_samples
from sta.video.lists import Entry
from sta.video.prefetch import default_workers
from sta.video.views import ViewSpec

Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "ray")


def check_timeout(timeout: float) -> None:
    """Refuse a time to wait that never ends, or that is none."""
    if not (timeout > 0 and math.isfinite(timeout)):
        raise ValueError(f"timeout {timeout:g}: use a finite number of seconds above 0, e.g. 60")


@dataclass(kw_only=True)
class EngineSettings:
    """How videos are decoded, and where the model runs: see `EngineOptions`."""

    batch_size: int = 8
    timeout: float = 60.0
    workers: int | None = None
    engine: Engine = "local"
    address: str | None = None
    actors: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine {self.engine!r} is unknown: use one of {', '.join(ENGINES)}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} is not possible: use 1 or more")
        check_timeout(self.timeout)


@dataclass
class Run(EngineSettings):
    """How videos are decoded and scored."""

    classifier: Classifier  # the model under its methods
    spec: ViewSpec  # the views of each video

    def score(self, entries: Iterable[Entry], *, alone: bool = False) -> Iterator[Scored]:
        """Score every video; one that cannot be read comes with its error.

        `alone` decodes one at a time, with all memory for it.
        """
        if alone:
            return replace(self, workers=1).score(entries)
        if self.engine == "ray":
            from sta.inference.ray_engine import score_on_ray

            return score_on_ray(self, entries)
        device = self.classifier.device
        samples = read_samples(
            entries,
            self.spec,
            workers=self.workers or default_workers(device),
            timeout=self.timeout,
            # A model on the CPU leaves gaps on its cores; decoding in them costs it nothing.
            niceness=10 if device == "cpu" else 0,
        )
        return score_samples(samples, self.classifier, self.batch_size)
