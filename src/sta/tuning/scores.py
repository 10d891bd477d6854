"""Settings of the score and of the filling, chosen before r, schedule and blocks.

All of them cost the same, so fidelity alone decides. The choice matters most for models whose
tokens differ from those that the paper's score was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

from torch import nn

from sta.backbones import find
from sta.core.options import Semantic
from sta.methods import Fill, STAConfig
from sta.tuning.families import Family
from sta.tuning.fidelity import Fidelity

COST_SHARE = 0.6  # of the unpruned model's GFLOPs: where the scores are compared
TEMPERATURES = (1.0, 0.1)


@dataclass(frozen=True)
class Scored:
    """Settings of the score, without r, and how faithful they were."""

    base: STAConfig
    fidelity: Fidelity

    @property
    def name(self) -> str:
        """What differs from the paper's norm, flat softmax and filling."""
        paper = STAConfig.paper(0)
        if self.base == paper:
            return "the paper's"
        parts = [f"semantic={self.base.semantic}"]
        parts += [
            f"{name}={value}"
            for name in ("temperature", "fill")
            if (value := getattr(self.base, name)) != getattr(paper, name)
        ]
        return ", ".join(parts)


def choices(model: nn.Module) -> list[STAConfig]:
    """Scores that suit the model; the paper's comes first."""
    fills: Sequence[Fill] = get_args(Fill) if find(model).layout.staged else ("frame",)
    return [
        STAConfig(semantic=semantic, temperature=temperature, fill=fill)
        for fill, semantic, temperature in product(fills, get_args(Semantic), TEMPERATURES)
    ]


def compare(
    bases: Sequence[STAConfig],
    family: Family,
    measure: Callable[..., Fidelity],
    clips: int,
    report: Callable[[str], None] = lambda _: None,
) -> list[Scored]:
    """The scores at the same r, most faithful first.

    Args:
        bases: The scores, as settings without r.
        family: Which r: the one that costs `COST_SHARE` of the unpruned model, or the largest.
        measure: Compares settings with the unpruned model.
        clips: On how many clips.
        report: Called with what is being done.
    """
    costs = family.costs
    r = costs.within(COST_SHARE * (costs.gflops(0) or 0.0)) or costs.largest()
    found = []
    for number, base in enumerate(bases, start=1):
        report(f"score {number} of {len(bases)} on {clips} clips")
        found.append(Scored(base, measure(replace(base, r=r), clips)))
    return sorted(found, key=lambda one: (one.fidelity.kl, -one.fidelity.agree))
