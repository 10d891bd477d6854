"""What `sta tune` chooses from: schedules and blocks of the steps, each with any r."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import nn

from sta.backbones import find
from sta.core.schedule import STEPS, spread_blocks
from sta.measure.matching import CostCurve, cost_counter
from sta.methods import METHODS, Config, STAConfig, make_config, r_of

#: Configs to GFLOPs; a ValueError is for those that do not fit the model.
Count = Callable[[Config], float]


@dataclass
class Family:
    """STA with one schedule at one choice of blocks, or another method; r is still open."""

    name: str  # for tables
    make: Callable[[int], Config]  # the config at some r
    count: Count = field(repr=False)  # its GFLOPs
    start: int = 1  # an r to begin the search with
    costs: CostCurve = field(init=False, repr=False)  # its GFLOPs by r

    def __post_init__(self) -> None:
        self.costs = CostCurve(lambda r: self.count(self.make(r)), self.start)

    def gflops(self, config: Config) -> float:
        """GFLOPs of one of its settings; the mean over clips where they keep different numbers."""
        if config.follows_clip:
            return self.count(config)
        return self.costs.gflops(r_of(config)) or 0.0


def families(
    model: nn.Module, input_shape: Sequence[int], base: STAConfig | None = None
) -> list[Family]:
    """Schedules and blocks that suit the model, the default ones first; the rest is `base`'s."""
    base = base or STAConfig()
    layout = find(model).layout
    count = cost_counter(model, input_shape)
    places = {"all stages": None} if layout.staged else placements(layout.blocks)
    start = 16 if layout.grid is None else max(1, layout.grid.tokens // 4)
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
        for schedule in ("decreasing", "even" if layout.staged else "constant", "increasing")
    ]
    if not layout.staged and layout.blocks > STEPS + 1:
        blocks = tuple(range(1, layout.blocks))

        def everywhere(r: int) -> STAConfig:
            return replace(base, r=r, schedule=(r,) * len(blocks), blocks=blocks)

        found.insert(1, Family("constant, every block", everywhere, count, 1))
    return found


def tuned_methods() -> list[str]:
    """Methods beside STA that settings are chosen from."""
    return [name for name, config in METHODS.items() if config.tuned]


def method_families(
    model: nn.Module, input_shape: Sequence[int], methods: Sequence[str]
) -> list[Family]:
    """Other methods with their default settings, where the model takes them."""
    count = cost_counter(model, input_shape)
    found = []
    for name in methods:
        try:
            count(make_config(name, 1))
        except ValueError:
            continue
        found.append(Family(name, partial(make_config, name), count))
    return found


def placements(depth: int) -> dict[str, tuple[int, ...] | None]:
    """Blocks after which the steps can come: as the paper has them, earlier or later."""
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
