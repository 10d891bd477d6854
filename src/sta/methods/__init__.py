"""The methods and their settings: what `sta.apply` takes. Checked when they are made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from sta.core.options import FirstFrame, Score, Semantic, check_option
from sta.core.schedule import NamedSchedule

Similarity = Literal["key", "query", "value", "ffn"]
Program = Literal["paper", "released"]
WindowQueries = Literal["all", "kept"]
Pool = Literal["kept", "grid"]
Fill = Literal["frame", "clip"]


@dataclass(frozen=True)
class Config:
    """Settings of one method. Subclasses are the methods."""

    method: ClassVar[str]

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read settings that `to_file` wrote; on `Config` itself, of whichever method it names."""
        path = Path(path)
        try:
            values = json.loads(path.read_text())
            name = values.pop("method")
        except OSError as error:
            raise FileNotFoundError(f"{path}: cannot read this config file ({error})") from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{path}: not a config file; expected JSON with a 'method' and its settings, "
                f"as to_file writes"
            ) from error
        made = METHODS.get(name) if isinstance(name, str) else None
        if made is None or not issubclass(made, cls):
            allowed = [n for n, c in METHODS.items() if issubclass(c, cls)]
            raise ValueError(f"{path}: method {name!r} is not one of {', '.join(allowed)}")
        known = {field.name for field in fields(made)}
        if unknown := sorted(set(values) - known):
            raise ValueError(
                f"{path}: unknown setting {unknown[0]!r}; {name} has {', '.join(sorted(known))}"
            )
        try:
            return made(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def to_file(self, path: str | Path) -> None:
        """Write the settings as JSON."""
        Path(path).write_text(json.dumps({"method": self.method, **asdict(self)}, indent=2) + "\n")


@dataclass(frozen=True)
class SteppedConfig(Config):
    """Settings that every method with pruning steps shares."""

    r: int = 0
    schedule: NamedSchedule | tuple[int, ...] = "decreasing"
    blocks: tuple[int, ...] | None = None
    fill: Fill = field(default="frame", kw_only=True)

    def __post_init__(self) -> None:
        _check_count("r", self.r)
        check_option("fill", self.fill, get_args(Fill))
        if isinstance(self.schedule, (tuple, list)):
            self._check_explicit_schedule(tuple(self.schedule))
        elif self.schedule not in get_args(NamedSchedule):
            names = ", ".join(map(repr, get_args(NamedSchedule)))
            raise ValueError(
                f"schedule={self.schedule!r} is unknown; use one of {names}, or a tuple of drops "
                f"per step, e.g. (64, 32, 16)"
            )
        if self.blocks is not None:
            self._check_blocks(tuple(self.blocks))
        if self.steps is not None and self.blocks is not None and len(self.blocks) != self.steps:
            raise ValueError(
                f"blocks={self.blocks} names {len(self.blocks)} blocks, but schedule="
                f"{self.schedule} has {self.steps} drops; give one block per drop"
            )

    @property
    def steps(self) -> int | None:
        """Number of steps these settings ask for; None leaves it to the backbone."""
        if isinstance(self.schedule, tuple):
            return len(self.schedule)
        return len(self.blocks) if self.blocks is not None else None

    def _check_explicit_schedule(self, schedule: tuple[int, ...]) -> None:
        if not schedule:
            raise ValueError("schedule=() has no step; give at least one drop, e.g. (64, 32, 16)")
        for drop in schedule:
            _check_count("schedule", drop)
        if self.r not in (0, schedule[0]):
            raise ValueError(
                f"r={self.r} contradicts schedule={schedule}, whose first drop is {schedule[0]}; "
                f"leave r out when schedule lists the drops"
            )
        object.__setattr__(self, "schedule", schedule)
        object.__setattr__(self, "r", schedule[0])

    def _check_blocks(self, blocks: tuple[int, ...]) -> None:
        whole = all(isinstance(b, int) and not isinstance(b, bool) and b >= 1 for b in blocks)
        if not blocks or not whole or list(blocks) != sorted(set(blocks)):
            raise ValueError(
                f"blocks={blocks} must be rising block numbers counted from 1, e.g. (1, 5, 9)"
            )
        object.__setattr__(self, "blocks", blocks)


@dataclass(frozen=True)
class STAConfig(SteppedConfig):
    """Semantic-aware Temporal Accumulation.

    Attributes:
        r: Tokens dropped per frame at the first step. 0 leaves the model as it is.
        schedule: Drops of the steps: "decreasing" (r, r/2, r/4; on Swin r, 1.5r/4, 2r/16),
            "constant" (r, r, r), "increasing" (r, 2r, 4r), or a tuple of drops.
        blocks: Blocks to prune after, counted from 1. None spreads three steps as the paper does:
            1, 1 + L/3, 1 + 2L/3. On Swin: stages to prune after, each at its patch merging; None
            takes all that have one.
        fill: On Swin, what stands in for a dropped token: "frame" is the paper's, the nearest kept
            token of its frame, which it becomes when the stage ends. With "clip" the nearest in
            space and time lends its keys and values, and the place leaves the stage as its own
            token plus what the stage added to the other: the same cost, far less lost.
        order: Direction of each step's chain, e.g. "FBF". None alternates, starting forward.
        similarity: Features that measure similarity: "key", "query", "value" or "ffn".
        temperature: Of the affinity softmax; 1.0 is the paper's.
        score: "sta", or only its "temporal" or "semantic" part.
        semantic: What the semantic score weighs a token by: "norm" is the paper's L1 norm,
            "deviation" that of its difference to the mean of its frame, which loses less on all
            models and tasks that were measured here.
        first_frame: How the first frame of a chain is pruned: "tome", "grid" or "random".
        seed: Of the random choices of "grid" and "random".
        window_queries: On Swin, which places ask in window attention: "all" is the paper's
            accounting, "kept" gives the same result for less work: dropped places do not ask, and
            no place asks those that the shift of the windows hides from it.
        pool: On Swin, what the final average is over: the "kept" tokens of the last stage, or its
            whole "grid", where dropped places count as the kept ones that fill them.
        program: "paper", or "released" for the authors' published program: see `released`.
    """

    method: ClassVar[str] = "sta"

    order: str | None = None
    similarity: Similarity = "key"
    temperature: float = 1.0
    score: Score = "sta"
    semantic: Semantic = "deviation"
    first_frame: FirstFrame = "tome"
    seed: int = 0
    window_queries: WindowQueries = "kept"
    pool: Pool = "kept"
    program: Program = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_seed(self.seed)
        for name, allowed in (
            ("similarity", Similarity),
            ("score", Score),
            ("semantic", Semantic),
            ("first_frame", FirstFrame),
            ("window_queries", WindowQueries),
            ("pool", Pool),
            ("program", Program),
        ):
            check_option(name, getattr(self, name), get_args(allowed))
        if not isinstance(self.temperature, (int, float)) or not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature!r} must be a number above 0")
        if self.order is not None:
            self._check_order(self.order)
        if self.program == "released":
            object.__setattr__(self, "semantic", "norm")  # whatever is said: it knows no other
        if self.program == "released" and replace(self, program="paper") != STAConfig.paper(self.r):
            raise ValueError(
                "program='released' reproduces the authors' program, which has no other settings "
                "than r; use STAConfig.released(r)"
            )

    def _check_order(self, order: str) -> None:
        if not order or set(order) - {"F", "B"}:
            raise ValueError(f"order={order!r} must be made of 'F' and 'B', e.g. 'FBF'")
        if self.steps is not None and len(order) != self.steps:
            raise ValueError(
                f"order={order!r} has {len(order)} letters for {self.steps} steps; give one each"
            )

    @classmethod
    def paper(cls, r: int) -> STAConfig:
        """The paper's formula as it is published: the semantic score by the L1 norm (Eq. 4)."""
        return cls(r=r, semantic="norm")

    @classmethod
    def released(cls, r: int) -> STAConfig:
        """The authors' published program for VideoMAE, to the last digit.

        It drops r per group of frames: 8, 4, then 2 groups, so the same totals as r, r/2, r/4 per
        frame.
        """
        return cls(r=r, program="released")


@dataclass(frozen=True)
class RandomConfig(SteppedConfig):
    """Random dropping with STA's counts per frame and step: the baseline to beat.

    Attributes:
        r: Tokens dropped per frame at the first step.
        schedule: As STA's, and so are blocks and fill.
        seed: Of the choice.
    """

    method: ClassVar[str] = "random"

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_seed(self.seed)


@dataclass(frozen=True)
class ToMeConfig(Config):
    """Token merging: bipartite soft matching over all tokens of the clip, in every block.

    Attributes:
        r: Tokens merged away per block, in the whole clip.
        proportional: Let a merged token weigh in attention as the tokens it stands for.
    """

    method: ClassVar[str] = "tome"

    r: int = 0
    proportional: bool = False

    def __post_init__(self) -> None:
        _check_count("r", self.r)


@dataclass(frozen=True)
class FrameDifferenceConfig(Config):
    """Drop the tubelets whose pixels changed least since the frame before, once, at the input.

    Run-length tokenisation with a static shape. The first frame, which has none before it, is
    compared with the second. On Swin, which gathers its tokens into a new grid at every stage, each
    of STA's steps does so, with STA's counts, by the change of the pixels behind its tokens.

    Attributes:
        r: Tokens dropped per frame; on Swin at the first step.
        fill: On Swin, what stands in for a dropped token, as for STA.
    """

    method: ClassVar[str] = "frame-difference"

    r: int = 0
    fill: Fill = field(default="frame", kw_only=True)

    def __post_init__(self) -> None:
        _check_count("r", self.r)
        check_option("fill", self.fill, get_args(Fill))


@dataclass(frozen=True)
class DenseConfig(Config):
    """Keep every token, on the adapter's own fast path: the fair baseline where the stock model is
    slow for other reasons (Swin's window attention)."""

    method: ClassVar[str] = "dense"


METHODS: dict[str, type[Config]] = {
    made.method: made
    for made in (STAConfig, RandomConfig, ToMeConfig, FrameDifferenceConfig, DenseConfig)
}


def make_config(method: str, r: int, **settings: Any) -> Config:
    """A method's config by name, as the command line asks for it ("released" too)."""
    if method == "released":
        return STAConfig.released(r)
    check_option("method", method, (*METHODS, "released"))
    if method == "dense":
        return DenseConfig()
    return METHODS[method](r=r, **settings)  # type: ignore[call-arg]


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name}={value!r} must be a whole number of tokens, 0 or more")


def _check_seed(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"seed={value!r} must be a whole number")
