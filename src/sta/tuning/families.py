"""What `sta tune` chooses from: schedules and places of the steps, each with any r."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

import sta
from sta.backbones import find
from sta.backbones.copies import meta_copy
from sta.backbones.vit import ViTAdapter
from sta.core.schedule import STEPS, spread_blocks
from sta.methods import STAConfig

#: Configs to GFLOPs; a ValueError is for those that do not fit the model.
Count = Callable[[STAConfig], float]


@dataclass
class Family:
    """STA with one schedule at one choice of blocks; r is still open.

    Attributes:
        name: For tables.
        make: The config at some r.
        count: Its GFLOPs.
        start: An r to begin the search with.
    """

    name: str
    make: Callable[[int], STAConfig]
    count: Count = field(repr=False)
    start: int = 1
    _known: dict[int, float | None] = field(default_factory=dict, init=False, repr=False)

    def gflops(self, r: int) -> float | None:
        """GFLOPs at r, counted once; None where so many tokens cannot be dropped."""
        if r not in self._known:
            try:
                self._known[r] = self.count(self.make(r))
            except ValueError:
                self._known[r] = None
        return self._known[r]

    def at_most(self, target: float) -> int | None:
        """The smallest r whose GFLOPs are not above a target; None if there is none."""
        _, high = self._around(target)
        return None if self.gflops(high) is None else high

    def most(self) -> int:
        """The largest r that fits the model."""
        return self._around(0.0)[0]

    def _around(self, target: float) -> tuple[int, int]:
        """r below and above the target, one apart; both 0 if nothing need be dropped."""
        whole = self.gflops(0)
        if whole is not None and whole <= target:
            return 0, 0
        low, high = 0, max(1, self.start)
        while not self._enough(high, target):
            low, high = high, 2 * high
        while high - low > 1:
            middle = self._guess(low, high, target)
            low, high = (low, middle) if self._enough(middle, target) else (middle, high)
        return low, high

    def _enough(self, r: int, target: float) -> bool:
        cost = self.gflops(r)
        return cost is None or cost <= target

    def _guess(self, low: int, high: int, target: float) -> int:
        """Between the two, where the cost would meet the target if it fell evenly."""
        above, below = self.gflops(low), self.gflops(high)
        if above is None or below is None or above == below:
            return (low + high) // 2
        guess = low + round((above - target) / (above - below) * (high - low))
        # Not too near the ends: the cost is no straight line.
        margin = max(1, (high - low) // 8)
        return max(low + margin, min(high - margin, guess))


def families(
    model: nn.Module, input_shape: Sequence[int], base: STAConfig | None = None
) -> list[Family]:
    """Schedules and places of steps that suit the model; the default ones come first.

    Args:
        model: A supported model, left as it is.
        input_shape: Of a clip, as `sta.gflops` takes it.
        base: All other settings.
    """
    base = base or STAConfig()
    adapter = find(model)
    skeleton = meta_copy(model)

    def count(config: STAConfig) -> float:
        return sta.gflops(sta.apply(skeleton, config), input_shape)

    if isinstance(adapter, ViTAdapter):
        places = placements(len(adapter.blocks))
        start = max(1, adapter.grid.tokens // 4)
    else:
        places = {"all stages": None}
        start = 16
    found = [
        Family(
            f"{schedule}, {place}",
            lambda r, schedule=schedule, blocks=blocks: replace(  # type: ignore[misc]
                base, r=r, schedule=schedule, blocks=blocks
            ),
            count,
            start,
        )
        for place, blocks in places.items()
        for schedule in ("decreasing", "constant", "increasing")
    ]
    if not isinstance(adapter, ViTAdapter):
        found.insert(1, Family("even, all stages", lambda r: _even(base, adapter, r), count, start))
    return found


def placements(depth: int) -> dict[str, tuple[int, ...] | None]:
    """Where the steps can come in so many blocks: as the paper has them, earlier or later."""
    steps = min(STEPS, depth)
    spread = spread_blocks(depth, steps)
    shift = max(1, depth // (2 * steps))
    chosen = {
        "spread": None,
        "early": tuple(1 + i * depth // (2 * steps) for i in range(steps)),
        "late": tuple(block + shift for block in spread),
    }
    return {
        name: blocks
        for name, blocks in chosen.items()
        if blocks is None or (len(set(blocks)) == steps and blocks[-1] < depth)
    }


def _even(base: STAConfig, adapter: object, r: int) -> STAConfig:
    """The same share of every stage's grid, which has a quarter of the places of the last."""
    stages = len(adapter.mergings)  # type: ignore[attr-defined]
    return replace(base, r=r, schedule=tuple(r // 4**stage for stage in range(stages)))
