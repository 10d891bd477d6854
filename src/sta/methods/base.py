"""What a method is: settings, the steps it takes in a backbone, and how a step chooses.

A backbone offers a `Site` at each step; the method answers with a `Choice`. The shared machinery of
the backbones gathers or merges the tokens and records what was kept. Needs no torch to import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

from sta.core.options import check_option
from sta.version import __version__

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sta.core.tokens import Grid

Similarity = Literal["key", "query", "value", "ffn"]
Fill = Literal["frame", "clip"]
WindowQueries = Literal["all", "kept"]
Pool = Literal["kept", "grid"]
#: What a method may need of a backbone, beyond tokens and similarity features.
Need = Literal[
    "pixels", "embeddings", "attention", "positions", "clip", "merge", "frames", "windows"
]


class Step(NamedTuple):
    """One step of a method.

    Attributes:
        after: Block that it comes after, counted from 1; 0 is the patch embedding. On backbones
            with stages: the stage whose patch merging it comes after.
        drop: Tokens that it drops, per frame or as the method counts; 0 leaves all as they are.
        inside: Between the block's attention and its MLP, instead of at the block's end.
    """

    after: int
    drop: int
    inside: bool = False


@dataclass(frozen=True)
class Layout:
    """What a method knows of a backbone when its steps are planned.

    Attributes:
        family: The backbone's name, for messages.
        blocks: Numbers that a step can come after: blocks, or stages that end in a patch merging.
        grid: Places for tokens; None where it depends on the clip.
        staged: Whether every step chooses from a full grid of its own, as in Swin's stages; else a
            token that was dropped is gone for all later steps.
        refuses: What a method must not need here, and why.
    """

    family: str
    blocks: int
    grid: Grid | None
    staged: bool = False
    refuses: tuple[tuple[Need, str], ...] = ()


class Site(Protocol):
    """What a step may ask about the tokens that reached it.

    Attributes:
        step: Number of the step: 0, 1, ...
        steps: How many there are.
        drop: Tokens to drop.
        grid: Places that tokens can have.
        staged: Whether the step has a full grid of its own, as `Layout.staged`.
        tokens: (B, n, D), in the order in which the step before left them.
        sizes: How many original tokens each stands for, (B, n, 1); None if nothing was merged.
        learned: The module that the method `learned`, as it is in the model; None if it has none.
    """

    step: int
    steps: int
    drop: int
    grid: Grid
    staged: bool
    tokens: Tensor
    sizes: Tensor | None
    learned: nn.Module | None

    def frames(self, x: Tensor) -> Tensor:
        """Rows by frame, where every frame has as many: (B, n, D) -> (B, T, n / T, D)."""

    def features(self, similarity: Similarity) -> Tensor:
        """Features that measure similarity: keys, queries or values averaged over heads, or the
        block's output ("ffn"), (B, n, C)."""

    def pixels(self) -> tuple[Tensor, tuple[int, int, int]]:
        """The clip, (B, F, C, H, W), and the frames, height and width of one token's pixels."""

    def embeddings(self) -> Tensor:
        """Patch embeddings of the whole grid, before positions are added, (B, T * N, D)."""

    def queries_and_keys(self) -> tuple[Tensor, Tensor]:
        """Of the block's attention, with their positions, (B, heads, n, head dim); for steps that
        are `inside` a block."""

    def positions(self) -> Tensor:
        """Where on the grid each token belongs, (B, n)."""


class Choice(NamedTuple):
    """The tokens that a step keeps.

    Attributes:
        kept: Per frame, (B, T, K): indices into the tokens of the frame, ascending. Or per clip,
            (B, K): indices into the rows of `Site.tokens`, in the order in which they go on.
        into: Where tokens are merged: the number (0 .. K - 1) of the kept token that each received
            one goes into, (B, n); kept ones go into themselves. None drops the others.
        weights: What each received token counts in the mean of those that are merged, and in the
            size of the result, (B, n, 1); None takes its size.
        counts: Where clips keep different numbers: how many of the K each keeps, (B,). The rest
            repeat others and count as nothing. None if all do.
        shares: Where whole frames are kept, in training: what each received frame has in each that
            goes on, (B, K, T), so that gradients reach whoever chose. None takes the kept ones.
    """

    kept: Tensor
    into: Tensor | None = None
    weights: Tensor | None = None
    counts: Tensor | None = None
    shares: Tensor | None = None


@dataclass(frozen=True)
class Config:
    """Settings of one method; `choose` is how it chooses. Subclasses are the methods.

    Attributes:
        method: The method's name on the command line and in files.
        title: For people.
        colour: In pictures.
        r_counts: What its r counts.
        needs: What it needs of a backbone beyond tokens and similarity features.
        learns: Whether it has weights of its own, from `learned`, that are trained with the model.
        similarity: Features that it compares tokens by; None if it does not.
        embeds_patches: Whether the model may embed patches by a matrix product, which rounds
            differently from the stock convolution.
        eager_attention: Whether it is measured with transformers' eager attention, as it was made.
        tuned: Whether `sta tune` and `sta.fit` choose it beside STA, where it is closer to the
            model.
        weighs_attention: Whether a merged token weighs in attention as the tokens it stands for.
        merge: Whether tokens that are not kept are averaged into the most similar kept ones.
        budget: What has a fixed number of tokens: every "frame", or only the "clip"; "auto": none.
        follows_clip: Whether the number of tokens differs from clip to clip.
        fill, window_queries, pool: On Swin; see `STAConfig`.
    """

    method: ClassVar[str]
    title: ClassVar[str]
    colour: ClassVar[str] = "#8a8f98"
    r_counts: ClassVar[str] = "tokens dropped per frame"
    needs: ClassVar[frozenset[Need]] = frozenset()
    learns: ClassVar[bool] = False
    embeds_patches: ClassVar[bool] = True
    eager_attention: ClassVar[bool] = False
    tuned: ClassVar[bool] = False

    # Not annotated, so that they are no fields of the dataclass: methods that have them are.
    similarity = None  # type: Similarity | None
    weighs_attention = False
    merge = False
    budget = "frame"
    follows_clip = False
    fill = "frame"  # type: Fill
    window_queries = "kept"  # type: WindowQueries
    pool = "kept"  # type: Pool

    def plan(self, layout: Layout) -> Sequence[Step]:
        """The steps that it takes in a backbone.

        Raises:
            ValueError: The settings do not fit; the message says what would.
        """
        raise NotImplementedError

    def choose(self, site: Site) -> Choice:
        """The tokens that a step keeps."""
        raise NotImplementedError

    def values(self, site: Site) -> Tensor:
        """What its threshold is compared with, (B, T, N), where counts follow the clip.

        Infinite for tokens that always stay.
        """
        raise NotImplementedError

    @classmethod
    def learned(cls, width: int) -> nn.Module:
        """Its own weights, untrained, for tokens of this width; for methods that learn.

        Training sets the module's `progress` to the share of the steps that are done.
        """
        raise NotImplementedError

    def dropped(self, layout: Layout) -> int:
        """Tokens of a clip that are gone after all steps, where every frame loses the same."""
        assert layout.grid is not None
        return layout.grid.frames * sum(step.drop for step in self.plan(layout))

    @property
    def requires(self) -> frozenset[Need]:
        """What these settings need: `needs`, and what their options add to it."""
        # Clips that keep fewer than others of their batch are filled up by tokens without size.
        more: set[Need] = {"merge"} if self.merge or self.follows_clip else set()
        if self.fill != "frame":  # of a place that later windows look at
            more.add("windows")
        return self.needs | more | (set() if self.budget == "frame" else {"clip"})

    @property
    def merging(self) -> bool:
        """Whether tokens that are not kept are merged into others, and not dropped."""
        return self.merge or ("merge" in self.needs and not self.follows_clip)

    @property
    def drops(self) -> bool:
        """Whether it has an r that says how many tokens it drops."""
        return has_r(type(self)) and not self.follows_clip

    @property
    def name(self) -> str:
        """What its rows are called in tables: the method, and whether its counts are "auto"."""
        return f"{self.method}{AUTO if self.budget == 'auto' else ''}"

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read settings that `to_file` wrote; on `Config` itself, of whichever method it names."""
        path = Path(path)
        try:
            values = json.loads(path.read_text())
            name = values.pop("method")
        except OSError as error:
            reason = error.strerror or error
            raise FileNotFoundError(f"{path}: cannot read this config file: {reason}") from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{path}: not a config file; expected JSON with a 'method' and its settings, "
                f"as to_file writes"
            ) from error
        return cls.from_values({"method": name, **values}, path)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], source: str | Path) -> Self:
        """Settings by name, with their method; a source that they come from is named in errors."""
        path, values = source, dict(values)
        name = values.pop("method", None)
        written_by = values.pop("sta", None)  # files of versions before 0.1 do not say
        if values.pop("program", "paper") == "released":  # as versions before 0.1 wrote it
            name, values = "released", {"r": values.get("r", 0)}
        made = METHODS.get(name) if isinstance(name, str) else None
        if made is None or not issubclass(made, cls):
            allowed = [n for n, c in METHODS.items() if issubclass(c, cls)]
            raise ValueError(f"{path}: method {name!r} is not one of {', '.join(allowed)}")
        known = {field.name for field in fields(made)}
        if unknown := sorted(set(values) - known):
            other = f" (written by sta {written_by}, this is {__version__})"
            raise ValueError(
                f"{path}: unknown setting {unknown[0]!r}; {name} has {', '.join(sorted(known))}"
                f"{other if written_by not in (None, __version__) else ''}"
            )
        try:
            return made(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def to_file(self, path: str | Path) -> None:
        """Write the settings as JSON, with the version of this package."""
        values = {"sta": __version__, **self.to_values()}
        Path(path).write_text(json.dumps(values, indent=2) + "\n")

    def to_values(self) -> dict[str, Any]:
        """Settings by name, with their method, as `from_values` takes them."""
        return {"method": self.method, **asdict(self)}


@dataclass(frozen=True)
class MergingConfig(Config):
    """Settings of methods that can merge instead of dropping.

    Attributes:
        merge: Average a token that is not kept into the most similar kept one, each weighing as
            many as it stands for; the model's final average weighs by that number, too.
        proportional: Let a merged token weigh in attention, too, as the tokens it stands for.
    """

    merge: bool = field(default=False, kw_only=True)
    proportional: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.proportional and not self.merge:
            raise ValueError("proportional=True weighs merged tokens in attention; set merge=True")

    @property
    def weighs_attention(self) -> bool:  # type: ignore[override]
        return self.proportional


AUTO = ", auto"
METHODS: dict[str, type[Config]] = {}
#: Settings of a method that have a name of their own, made from r.
PRESETS: dict[str, Callable[[int], Config]] = {}
C = TypeVar("C", bound=type[Config])


def register(config: C) -> C:
    """Let everything know one more method: a decorator for config classes.

    Raises:
        ValueError: Another method has that name.
        TypeError: The class does not say how it chooses.
    """
    known = METHODS.get(config.method)
    if known is not None and (known.__module__, known.__name__) != (
        config.__module__,
        config.__name__,
    ):
        raise ValueError(
            f"method={config.method!r} of {config.__name__} is taken by {known.__name__}; "
            f"choose another name"
        )
    has_r = any(field.name == "r" for field in fields(config))
    if has_r and config.choose is Config.choose:
        raise TypeError(f"{config.__name__} has an r, but no choose(site) that says which to keep")
    METHODS[config.method] = config
    return config


def has_r(config: type[Config]) -> bool:
    """Whether a method has an r: without one it drops nothing."""
    return any(field.name == "r" for field in fields(config))


def method_names() -> tuple[str, ...]:
    """What settings can be asked for by."""
    return (*METHODS, *PRESETS)


def make_config(method: str, r: int, **settings: Any) -> Config:
    """A method's config by name, or a preset's, as the command line asks for it."""
    check_option("method", method, method_names())
    if method in PRESETS:
        return replace(PRESETS[method](r), **settings)
    made = METHODS[method]
    return made(r=r, **settings) if has_r(made) else made(**settings)  # type: ignore[call-arg]


def title_of(config: Config | None) -> str:
    """A method and its r, for people; None is the model as it is."""
    if config is None:
        return "Unpruned"
    return f"{config.title}, r = {r_of(config)}" if config.drops else config.title


def r_of(config: Config | None) -> int:
    """A config's r; 0 where it has none."""
    return int(getattr(config, "r", 0))


def check_count(name: str, value: object) -> None:
    """Refuse what is no number of tokens."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name}={value!r} must be a whole number of tokens, 0 or more")


def check_seed(value: object) -> None:
    """Refuse what is no seed."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"seed={value!r} must be a whole number")
