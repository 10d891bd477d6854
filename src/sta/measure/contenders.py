"""Who takes part in a benchmark: a model under a method, in a runtime, at a precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import PickleError
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import sta
from sta.backbones.copies import copy_on, shared_copy
from sta.backbones.zoo.video_model import VideoModel, model_name
from sta.core.options import check_option
from sta.measure.matching import matched, methods_at
from sta.methods import Config, method_names, r_of
from sta.runtime import ALLOWED, check_choice, prepare
from sta.runtime.exported import open_model

STOCK = "stock"
METHOD_NAMES = (STOCK, *method_names())


@dataclass(frozen=True)
class Method:
    """A way to run a model."""

    name: str  # shown in tables
    config: Config | None = None  # the method's settings; None is the stock model
    exported: bool = False  # whether it is an exported file, which has the method in it

    @property
    def method(self) -> str:
        if self.config is None:
            return STOCK
        return self.config.method

    @property
    def r(self) -> int:
        """Its r; 0 where it has none."""
        return r_of(self.config)


@dataclass(frozen=True)
class Contender:
    """One row of a benchmark, but for the batch size."""

    method: Method
    runtime: str = "torch"
    precision: str = "float32"

    @property
    def baseline(self) -> Contender:
        """The stock model in the same runtime, at the same precision; a file's is itself."""
        if self.method.exported:
            return self
        return Contender(Method(STOCK), self.runtime, self.precision)


@dataclass(frozen=True)
class Source:
    """Where the model comes from and where it runs; all that a child process must know."""

    model: str | nn.Module | VideoModel  # what `sta.load` takes; or a model
    overrides: Mapping[str, Any] = field(default_factory=dict)  # passed on to `sta.load`
    random_weights: bool = False  # build the model without loading weights
    device: str = "cpu"  # where it runs
    threads: int | None = None  # CPU threads; None leaves them as they are
    file: str | None = None  # a model that was saved for a child process, instead of `model`
    precision: str | None = None  # what an exported file computes in; None is its own

    @property
    def name(self) -> str:
        return model_name(self.model)

    def open(self) -> VideoModel:
        """The model on its device; one that was given is left as it is."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        model = self.model
        if self.file is not None:
            model = torch.load(self.file, weights_only=False)  # our own, of a moment ago
        opened = open_model(
            model,
            overrides=self.overrides,
            random_weights=self.random_weights,
            precision=self.precision,
            threads=self.threads,
        )
        if isinstance(model, str):
            opened.model.to(self.device).eval()
            return opened
        return replace(opened, model=copy_on(opened.model, self.device).eval())

    @contextmanager
    def for_child(self) -> Iterator[Source]:
        """The same for another process: a model that was given is saved for it to load."""
        if isinstance(self.model, str):
            yield self
            return
        with TemporaryDirectory() as folder:
            file = f"{folder}/model.pt"
            try:
                torch.save(self.model, file)
            except (AttributeError, PickleError) as error:
                raise ValueError(
                    f"memory=True runs the model in another process, but it cannot be pickled "
                    f"({error}); use memory=False"
                ) from error
            yield replace(self, model=self.name, file=file)


def choose_methods(
    opened: VideoModel,
    names: Sequence[str],
    drops: Sequence[int],
    *,
    file: str | Path | None = None,
    match: bool = False,
) -> list[Method]:
    """Every method at every r, the stock model first: it is what the others are compared with.

    `file` has settings that are measured as well. `match` gives each method but STA the r at which
    its GFLOPs come closest to STA's at r. Unknown names and methods that do not fit the model are
    refused.
    """
    for name in names:
        check_option("method", name, METHOD_NAMES)
    wanted = [name for name in names if name != STOCK]
    found: dict[tuple[str, int], Config | None] = {}
    for r in drops:  # those of one r stand together
        found |= matched(opened, wanted, [r]) if match else methods_at(wanted, [r])
    chosen = [Method(STOCK)]
    for (name, r), config in found.items():
        if config is not None and name in names:
            title = f"{name} r={r}" if config.drops else name
            chosen.append(Method(title, config))
    if file is not None:
        chosen.append(Method(Path(file).name, Config.from_file(file)))
    for method in chosen[1:]:  # what does not fit is refused before anything is measured
        sta.apply(shared_copy(opened.model), method.config)  # type: ignore[arg-type]
    return list(dict.fromkeys(chosen))


def pairs(runtimes: Sequence[str], precisions: Sequence[str]) -> list[tuple[str, str]]:
    """The runtimes with the precisions that they can compute in; none may be left alone."""
    for runtime in runtimes:
        possible = [p for p in precisions if p in ALLOWED.get(runtime, ())]
        check_choice(runtime, possible[0] if possible else precisions[0])
    for precision in precisions:
        able = [runtime for runtime in runtimes if precision in ALLOWED[runtime]]
        check_choice(able[0] if able else runtimes[0], precision)
    return [(r, p) for r in runtimes for p in precisions if p in ALLOWED[r]]


def equip(model: nn.Module, method: Method) -> Any:
    """A copy of the stock model, with the same weights, under a method."""
    made: Any = shared_copy(model)
    if method.config is not None and not method.exported:
        if method.config.eager_attention:
            made.set_attn_implementation("eager")
        sta.apply(made, method.config)
    return made


def ready(
    opened: VideoModel, contender: Contender, clip: Tensor, threads: int | None = None
) -> Callable[[Tensor], Tensor]:
    """The contender as a function from pixels to logits."""
    if contender.method.exported:
        return prepare(opened.model, clip)
    return prepare(
        equip(opened.model, contender.method),
        clip,
        contender.runtime,
        precision=contender.precision,
        calibration=(clip,) if contender.precision == "int8" else (),
        threads=threads,
    )


def one_run(source: Source, contender: Contender, clips: Any) -> Callable[[], object]:
    """A contender's forward, ready to be measured in a process of its own."""
    opened = source.open()
    clip = opened.pixels(clips, source.device)
    run = ready(opened, contender, clip, source.threads)

    def forward() -> object:
        with torch.inference_mode():
            return run(clip)

    return forward
