"""What ranks the tokens and stands in for dropped ones: chosen before how many are dropped where.

All of it costs the same, so the choice is by fidelity alone. It matters most where a model's tokens
are unlike those the paper's score was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

from torch import nn

from sta.backbones import find
from sta.backbones.swin import SwinAdapter
from sta.core.options import Semantic
from sta.methods import Fill, STAConfig
from sta.tuning.families import Family
from sta.tuning.fidelity import Fidelity

LEVEL = 0.6  # of the unpruned model's GFLOPs: where the scores are compared
TEMPERATURES = (1.0, 0.1)


@dataclass(frozen=True)
class Scored:
    """Settings of the score, without r, and how faithful they were."""

    base: STAConfig
    fidelity: Fidelity

    @property
    def name(self) -> str:
        """Its settings, in words; "the paper's" is its norm, flat softmax and filling."""
        paper = STAConfig.paper(0)
        if self.base == paper:
            return "the paper's"
        told = [f"semantic={self.base.semantic}"]
        told += [
            f"{name}={value}"
            for name in ("temperature", "fill")
            if (value := getattr(self.base, name)) != getattr(paper, name)
        ]
        return ", ".join(told)


def choices(model: nn.Module) -> list[STAConfig]:
    """Scores that suit the model; the paper's comes first."""
    fills: Sequence[Fill] = get_args(Fill) if isinstance(find(model), SwinAdapter) else ("frame",)
    return [
        STAConfig(semantic=semantic, temperature=temperature, fill=fill)
        for fill, semantic, temperature in product(fills, get_args(Semantic), TEMPERATURES)
    ]


def compare(
    bases: Sequence[STAConfig],
    family: Family,
    judge: Callable[..., Fidelity],
    clips: int,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Scored]:
    """The scores at the same r, on so many clips, most faithful first.

    Args:
        bases: The scores, as settings without r.
        family: Which r: the one that costs `LEVEL` of the unpruned model, or the largest.
        judge: Compares settings with the unpruned model.
        clips: On how many clips.
        tell: Is told what is being done.
    """
    r = family.at_most(LEVEL * (family.gflops(0) or 0.0)) or family.most()
    found = []
    for number, base in enumerate(bases, start=1):
        tell(f"score {number} of {len(bases)} on {clips} clips")
        found.append(Scored(base, judge(replace(base, r=r), clips)))
    return sorted(found, key=lambda one: (one.fidelity.kl, -one.fidelity.agree))
