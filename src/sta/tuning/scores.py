"""Settings of the score and of the filling, chosen before r, schedule and blocks.

All of them have about the same GFLOPs, so fidelity alone decides. No score is the best on every
model that was measured (docs/results.md), so the model's own clips choose, without labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, get_args

from rich.console import RenderableType
from torch import nn

from sta.backbones import find
from sta.backbones.copies import meta_copy
from sta.backbones.patch import apply, remove
from sta.core.options import Semantic
from sta.measure.matching import CostCurve
from sta.measure.stats import nats
from sta.methods import Config, Fill, STAConfig
from sta.results import table
from sta.tuning.fidelity import Fidelity

COST_SHARE = 0.6  # of the unpruned model's GFLOPs: where the scores are compared
TEMPERATURES = (1.0, 0.1)


#: How change is read: through the chain, or at the same place; without: significance alone.
READINGS: tuple[dict[str, Any], ...] = (
    *({"temperature": temperature} for temperature in TEMPERATURES),
    {"temporal": "place"},
    {"temporal": "pixels"},
    {"score": "semantic"},
)


@dataclass(frozen=True)
class Scored:
    """Settings that were compared at the same cost, and how faithful they were."""

    config: Config
    fidelity: Fidelity

    @property
    def name(self) -> str:
        """What differs from the paper's settings; the title of another method."""
        if not isinstance(self.config, STAConfig):
            return self.config.title
        paper = STAConfig.paper(self.config.r)
        different = [
            f"{one.name}={value}"
            for one in fields(STAConfig)
            if (value := getattr(self.config, one.name)) != getattr(paper, one.name)
        ]
        return ", ".join(different) or "the paper's"


def choices(model: nn.Module) -> list[STAConfig]:
    """Scores that suit the model; the paper's comes first.

    Columnar backbones also choose how change is read, whether tokens of all frames compete, and
    whether dropped tokens are merged into others; Swin, what fills dropped places.
    """
    staged = find(model).layout.staged
    fills: Sequence[Fill] = get_args(Fill) if staged else ("frame",)
    found = [
        STAConfig(semantic=semantic, temperature=temperature, fill=fill)
        for fill, semantic, temperature in product(fills, get_args(Semantic), TEMPERATURES)
    ]
    if staged:
        return found
    whole: dict[str, Any] = {"merge": True, "proportional": True}
    found += [STAConfig(**reading, **whole) for reading in READINGS]
    found += [STAConfig(**reading) for reading in READINGS[2:]]
    found += [STAConfig(budget="clip"), STAConfig(budget="clip", score="semantic")]
    skeleton = meta_copy(model)
    return [base for base in dict.fromkeys(found) if _fits(skeleton, base)]


def _fits(skeleton: nn.Module, base: STAConfig) -> bool:
    """Whether the model can be pruned so."""
    try:
        apply(skeleton, replace(base, r=1))
    except ValueError:
        return False
    remove(skeleton)
    return True


def compare(
    configs: Sequence[Config],
    measure: Callable[..., Fidelity],
    clips: int,
    report: Callable[[str], None] = lambda _: None,
) -> list[Scored]:
    """Settings of about the same cost, compared on so many clips; the most faithful first."""
    found = []
    for number, config in enumerate(configs, start=1):
        report(f"score {number} of {len(configs)} on {clips} clips")
        found.append(Scored(config, measure(config, clips)))
    return sorted(found, key=lambda one: (one.fidelity.kl, -one.fidelity.agree))


def shared_r(costs: CostCurve) -> int:
    """The r that costs `COST_SHARE` of the unpruned model, or the largest."""
    return costs.within(COST_SHARE * (costs.gflops(0) or 0.0)) or costs.largest()


def score_table(scores: Sequence[Scored]) -> RenderableType:
    """The scores for people; the first is the chosen one."""
    rows = [
        (
            "chosen" if one is scores[0] else "",
            one.name,
            f"{one.fidelity.agree}/{one.fidelity.clips}",
            nats(one.fidelity.kl),
        )
        for one in scores
    ]
    return table(("", "score", "agree", "KL"), rows, text=("score",))
