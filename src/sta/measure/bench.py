"""`sta.bench`: methods and runtimes against each other, in time, memory, GFLOPs and their limit."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import RenderableType
from torch import Tensor, nn

import sta
from sta.backbones.zoo.video_model import VideoModel
from sta.measure import products
from sta.measure.contenders import (
    Contender,
    Method,
    Source,
    choose_methods,
    equip,
    one_run,
    pairs,
    ready,
)
from sta.measure.memory import keep_memory, peak_megabytes
from sta.measure.peak import nominal_gflops
from sta.measure.products import Operation
from sta.measure.timing import Timing, interleave, speedup
from sta.methods import Config, title_of
from sta.progress import ProgressArg, reporting
from sta.results import Result, table
from sta.runtime.devices import choose_device
from sta.runtime.exported import ExportedModel
from sta.runtime.probe import make_safe
from sta.video.clips import DIGITS, Videos, load_clips
from sta.video.views import ViewSpec


@dataclass(frozen=True)
class BenchRow:
    """One contender at one batch size.

    Attributes:
        model: The model's name.
        name: The contender's method, as tables show it.
        method: The method's name.
        r: Its r.
        settings: All its settings; None is the stock model.
        runtime: What ran it.
        precision: What it computed in.
        batch_size: Clips per forward.
        gflops: Of one clip, in the paper's convention.
        seconds: Median of a forward.
        spread: Distance of the quartiles, as a share of the median.
        p50_ms: The median in milliseconds; at batch 1 the latency.
        p95_ms: What 95 % of the forwards stayed under.
        clips_per_s: Clips per second.
        speedup: Over the stock model in the same runtime and precision.
        speedup_over_torch: Over the stock model in torch at float32, where it takes part.
        gemm_seconds: Of the forward's matrix products alone.
        gemm_share: The same as a share of `seconds`.
        peak_share: `gflops` per second, as a share of the processor's nominal peak.
        memory_mb: What the forward adds at its peak.
    """

    model: str
    name: str
    method: str
    r: int
    settings: dict[str, Any] | None
    runtime: str
    precision: str
    batch_size: int
    gflops: float
    seconds: float
    spread: float
    p50_ms: float
    p95_ms: float
    clips_per_s: float
    speedup: float
    speedup_over_torch: float | None
    gemm_seconds: float | None
    gemm_share: float | None
    peak_share: float | None
    memory_mb: float | None


@dataclass(frozen=True)
class BenchResult(Result):
    """Measured contenders of one model.

    Attributes:
        rows: One per contender and batch size.
        about: What the figures depend on beside the model: machine, versions, threads.
    """

    rows: tuple[BenchRow, ...]
    about: dict[str, Any]

    def records(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.rows]

    def tables(self) -> Iterator[RenderableType]:
        """A table per batch size, at most 80 columns wide."""
        for batch_size in dict.fromkeys(row.batch_size for row in self.rows):
            yield _table([row for row in self.rows if row.batch_size == batch_size], self.about)


#: Head, field and form of the columns that are there where they were measured.
_OPTIONAL = (
    ("vs torch", "speedup_over_torch", "{:.2f}x"),
    ("GEMM", "gemm_share", "{:.0%}"),
    ("peak", "peak_share", "{:.0%}"),
    ("MB", "memory_mb", "{:,.0f}"),
)


def _table(rows: Sequence[BenchRow], about: Mapping[str, Any]) -> RenderableType:
    several = len({(row.runtime, row.precision) for row in rows}) > 1
    heads = ["method", "GFLOPs", "ms", "spread", "clips/s", "speed-up"]
    measured = [  # what was not measured has no column
        (head, name, shape)
        for head, name, shape in _OPTIONAL
        if any(getattr(row, name) is not None for row in rows)
        and (several or name != "speedup_over_torch")
    ]
    cells: list[Sequence[str] | str] = []
    group = None
    for row in rows:
        if several and group != (row.runtime, row.precision):
            group = (row.runtime, row.precision)
            cells.append(" ".join(group))
        cells.append(
            (
                row.name,
                _number(row.gflops),
                _number(row.p50_ms),
                f"{row.spread:.1%}",
                _number(row.clips_per_s),
                f"{row.speedup:.2f}x",
                *(_maybe(getattr(row, name), shape) for _, name, shape in measured),
            )
        )
    return table(
        [*heads, *(head for head, _, _ in measured)],
        cells,
        title=f"{rows[0].model}, batch size {rows[0].batch_size}, {about['threads']} threads",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _maybe(value: float | None, shape: str) -> str:
    return "-" if value is None else shape.format(value)


def bench(
    model: str | nn.Module | VideoModel = "vit-s-k400",
    *,
    methods: str | Sequence[str] | None = None,
    r: int | Sequence[int] | None = None,
    config: str | Path | Config | None = None,
    match_gflops: bool = False,
    batch_sizes: int | Sequence[int] = (1,),
    runtimes: str | Sequence[str] = ("torch",),
    precisions: str | Sequence[str] = ("float32",),
    videos: Videos | None = None,
    rounds: int = 9,
    warmup: int = 2,
    memory: bool = True,
    gemm: bool = True,
    threads: int | None = None,
    device: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    progress: ProgressArg = True,
) -> BenchResult:
    """Time methods and runtimes in turn, and how much of the machine's speed each one reaches.

    All contenders of a batch size take turns, after a warm-up, so that a slow spell of the machine
    hits all of them; medians count.

    Args:
        model: What `sta.load` takes, or a model without a method applied.
        methods: By name; the stock model always takes part. Without it: STA, or `config` alone.
        r: Tokens dropped per frame at the first step, one or several; None drops about a third.
        config: A method's settings, or a file with them, to be measured as well.
        match_gflops: Give every method but STA the r whose GFLOPs come closest to STA's.
        batch_sizes: Clips per forward, one or several.
        runtimes: Of `sta.runtime.RUNTIMES`.
        precisions: Of `sta.runtime.PRECISIONS`, where the runtime has them.
        videos: Videos or clips to measure with, instead of drawn digits.
        rounds: How often each contender is timed.
        warmup: Rounds that do not count.
        memory: Measure peak memory, each contender in a process of its own.
        gemm: Measure the matrix products alone as well.
        threads: Of the CPU; None leaves them as they are.
        device: "cpu", "cuda", "cuda:1" ...; "auto" is where a given model is, or a GPU.
        overrides: Fields of the backbone's config, for `sta.load`.
        random_weights: Build the model without loading weights: to measure speed only.
        progress: True for a bar, False for none, or a function that is called with a `Progress`.

    Returns:
        A row per contender and batch size.

    Raises:
        ValueError: A name is unknown, a method does not fit the model, or no video can be read.
        ImportError: A runtime is not installed; the message has the line that installs it.
    """
    where = choose_device(device, model)
    chosen = pairs(_listed(runtimes), _listed(precisions))
    if where == "cpu":
        for pair in chosen:  # before anything is computed, while a limit can take effect
            make_safe(*pair)
    keep_memory()
    source = Source(model, overrides or {}, random_weights, where, threads)
    with reporting(progress, "benchmark") as report:
        report(f"loading {source.name}")
        opened = source.open()
        if isinstance(opened.model, ExportedModel):
            contenders = _of_file(opened.model, methods or r or config, chosen)
        else:
            contenders = _contenders(opened, methods, r, config, match_gflops, chosen)
        sizes = [batch_sizes] if isinstance(batch_sizes, int) else list(batch_sizes)
        benchmark = Benchmark(
            source,
            opened,
            contenders,
            bench_clips(videos, opened.clip.views, max(sizes)),
            rounds=rounds,
            warmup=warmup,
            memory=memory,
            gemm=gemm,
        )
        rows = [row for size in sizes for row in benchmark.rows(size, report)]
    return BenchResult(tuple(rows), about(where, rounds, videos))


def _contenders(
    opened: VideoModel,
    methods: str | Sequence[str] | None,
    r: int | Sequence[int] | None,
    config: str | Path | Config | None,
    match_gflops: bool,
    chosen: Sequence[tuple[str, str]],
) -> list[Contender]:
    """Every method in every runtime and precision."""
    found = choose_methods(
        opened,
        _listed(methods or ("stock" if config is not None else "sta")),
        [r] if isinstance(r, int) else list(r or [opened.default_r]),
        file=config if isinstance(config, str | Path) else None,
        match=match_gflops,
    )
    if isinstance(config, Config):
        found.append(Method(f"{config.method}, as given", config))
        sta.apply(equip(opened.model, found[0]), config)
    return [Contender(method, *pair) for pair in chosen for method in found]


def _of_file(
    file: ExportedModel, asked: object, chosen: Sequence[tuple[str, str]]
) -> list[Contender]:
    """An exported file alone, in its own runtime and precision."""
    if asked or list(chosen) != [("torch", "float32")]:
        raise ValueError(
            f"{file.path}: has its method, runtime and precision in it: leave method, r, "
            f"config, runtime and precision out"
        )
    config = file.facts.config
    title = "as exported" if config is None else title_of(config)
    return [Contender(Method(title, config, True), file.runtime, file.facts.precision)]


def bench_clips(videos: Videos | None, spec: ViewSpec, count: int) -> NDArray[np.uint8]:
    """`count` clips: of the first videos that are readable, else drawn; repeated if too few."""
    source = DIGITS if videos is None else videos
    clips, _ = load_clips(source, replace(spec, temporal=count, spatial=1), count)
    return clips[np.arange(count) % len(clips)]


def about(device: str, rounds: int, videos: Videos | None) -> dict[str, Any]:
    """What measured figures depend on, beside the model."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    if videos is None:
        clips = "digits drawn at the model's size"
    else:
        clips = "given as an array" if isinstance(videos, np.ndarray) else str(videos)
    return {
        "sta": sta.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "device": gpu or "cpu",
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "clips": clips,
    }


def _listed(values: str | Sequence[str]) -> list[str]:
    return [values] if isinstance(values, str) else list(values)


@dataclass(frozen=True)
class Benchmark:
    """The contenders of one model, ready to be measured."""

    source: Source  # the model
    opened: VideoModel  # the same, loaded
    contenders: Sequence[Contender]  # who takes part; each one's `baseline` must be among them
    clips: NDArray[np.uint8]  # at least as many as the largest batch, (B, T, H, W, 3) uint8
    rounds: int = 9  # how often each contender is timed
    warmup: int = 2  # rounds that do not count
    memory: bool = True  # whether to measure peak memory, each contender in a process of its own
    gemm: bool = True  # whether to measure the matrix products alone
    interleave: Callable[..., dict[Any, Timing]] = interleave  # what times the contenders
    _counted: dict[Method, float] = field(default_factory=dict, init=False, repr=False)

    def rows(
        self, batch_size: int, report: Callable[[str], None] = lambda _: None
    ) -> list[BenchRow]:
        label = f"{self.source.name}, batch {batch_size}"
        clip = self.opened.pixels(self.clips[:batch_size], self.source.device)
        found = self._products(clip) if self.gemm else {}
        runs: dict[Any, Callable[[], object]] = {}
        for contender in self.contenders:
            report(f"{label}: preparing {contender.method.name} in {contender.runtime}")
            run = ready(self.opened, contender, clip, self.source.threads)
            runs[contender] = partial(run, clip)
        runs.update(self._alone(found))
        report(f"{label}: timing {len(self.contenders)} contenders in turn")
        timings = self.interleave(
            runs,
            rounds=self.rounds,
            warmup=self.warmup,
            device=torch.device(self.source.device),
        )
        alone = {key: timing for key, timing in timings.items() if isinstance(key, tuple)}
        limits = {
            contender: products.limit(
                counts,
                {
                    (operation, library): timing
                    for (precision, operation, library), timing in alone.items()
                    if precision == contender.precision and operation in counts
                },
            )
            for contender, counts in found.items()
        }
        rows = []
        for contender in self.contenders:
            report(f"{label}: counting {contender.method.name}")
            method = contender.method
            rows.append(
                BenchRow(
                    model=self.source.name,
                    name=method.name,
                    method=method.method,
                    r=method.r,
                    settings=None if method.config is None else asdict(method.config),
                    runtime=contender.runtime,
                    precision=contender.precision,
                    batch_size=batch_size,
                    gflops=self._gflops(method),
                    **_times(contender, batch_size, timings, limits.get(contender)),
                    peak_share=self._peak_share(contender, batch_size, timings[contender]),
                    memory_mb=self._memory(contender, batch_size, runs[contender]),
                )
            )
        return rows

    def _products(self, clip: Tensor) -> dict[Contender, Counter[Operation]]:
        """The matrix products of each contender's forward, where they can be seen."""
        by_method = {
            method: products.record(partial(equip(self.opened.model, method), clip))
            for method in dict.fromkeys(c.method for c in self.contenders)
        }
        return {c: by_method[c.method] for c in self.contenders if by_method[c.method]}

    def _alone(
        self, found: Mapping[Contender, Counter[Operation]]
    ) -> dict[tuple[str, Operation, str], Callable[[], object]]:
        needed: dict[str, list[Operation]] = {}
        for contender, counts in found.items():
            needed.setdefault(contender.precision, []).extend(counts)
        return {
            (precision, operation, library): run
            for precision, listed in needed.items()
            for (operation, library), run in products.runs(
                listed, precision, device=self.source.device, threads=self.source.threads
            ).items()
        }

    def _gflops(self, method: Method) -> float:
        if method not in self._counted:
            model = equip(self.opened.model, method)
            self._counted[method] = sta.gflops(model, self.opened.clip.shape())
        return self._counted[method]

    def _peak_share(self, contender: Contender, batch_size: int, timing: Timing) -> float | None:
        if self.source.device != "cpu":
            return None
        nominal = nominal_gflops(contender.precision, torch.get_num_threads())
        if nominal is None:
            return None
        return self._gflops(contender.method) * batch_size / timing.median / nominal

    def _memory(
        self, contender: Contender, batch_size: int, run: Callable[[], object]
    ) -> float | None:
        if not self.memory:
            return None
        if not self.source.device.startswith("cuda"):
            with self.source.for_child() as source:
                return peak_megabytes(one_run, source, contender, self.clips[:batch_size])
        torch.cuda.reset_peak_memory_stats(self.source.device)
        before = torch.cuda.memory_allocated(self.source.device)
        with torch.inference_mode():
            run()
        torch.cuda.synchronize(self.source.device)
        return (torch.cuda.max_memory_allocated(self.source.device) - before) / 2**20


def _times(
    contender: Contender, batch_size: int, timings: Mapping[Any, Timing], limit: float | None
) -> dict[str, Any]:
    timing = timings[contender]
    stock = Contender(contender.baseline.method)  # in torch at float32
    return {
        "seconds": timing.median,
        "spread": timing.spread,
        "p50_ms": 1000 * timing.median,
        "p95_ms": 1000 * timing.quantile(0.95),
        "clips_per_s": batch_size / timing.median,
        "speedup": speedup(timings, contender, contender.baseline),
        "speedup_over_torch": speedup(timings, contender, stock) if stock in timings else None,
        "gemm_seconds": limit,
        "gemm_share": None if limit is None else limit / timing.median,
    }
