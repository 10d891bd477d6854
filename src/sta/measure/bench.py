"""Measuring contenders against each other: time, memory, GFLOPs, and what the machine allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sta
from sta.backbones.zoo.video_model import VideoModel
from sta.measure import products
from sta.measure.contenders import Contender, Method, Source, equip, one_run, pixels, ready
from sta.measure.memory import peak_megabytes
from sta.measure.products import Product
from sta.measure.timing import Timing, interleave, speedup

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """A benchmark of one model.

    Attributes:
        source: The model.
        opened: The same, loaded.
        contenders: Who takes part; each one's `baseline` must be among them.
        clips: At least as many as the largest batch, (B, T, H, W, 3) uint8.
        rounds: How often each contender is timed.
        warmup: Rounds that do not count.
        memory: Whether to measure peak memory, each contender in a process of its own.
        gemm: Whether to measure the matrix products alone.
        interleave: What times the contenders.
    """

    source: Source
    opened: VideoModel
    contenders: Sequence[Contender]
    clips: NDArray[np.uint8]
    rounds: int = 9
    warmup: int = 2
    memory: bool = True
    gemm: bool = True
    interleave: Callable[..., dict[Any, Timing]] = interleave
    _counted: dict[Method, float] = field(default_factory=dict, init=False, repr=False)

    def rows(self, batch_size: int, tell: Callable[[str], None] = lambda _: None) -> list[Row]:
        """A row per contender.

        Args:
            batch_size: Clips per forward.
            tell: Is told what is being done.
        """
        clip = pixels(self.opened, self.clips[:batch_size], self.source.device)
        found = self._products(clip) if self.gemm else {}
        runs: dict[Any, Callable[[], object]] = {}
        for contender in self.contenders:
            tell(f"preparing {contender.method.name} in {contender.runtime}")
            run = ready(self.opened, contender, clip, self.source.threads)
            runs[contender] = partial(run, clip)
        runs.update(self._alone(found))
        tell(f"timing {len(self.contenders)} contenders in turn, batch {batch_size}")
        timings = self.interleave(
            runs,
            rounds=self.rounds,
            warmup=self.warmup,
            device=torch.device(self.source.device),
        )
        limits = {
            contender: products.limit(counts, {p: timings[contender.precision, p] for p in counts})
            for contender, counts in found.items()
        }
        rows = []
        for contender in self.contenders:
            tell(f"counting {contender.method.name}")
            memory = self._memory(contender, batch_size, runs[contender])
            told = {"model": self.source.model, "gflops": self._gflops(contender)}
            taken = _times(contender, batch_size, timings, limits.get(contender))
            rows.append({**told, **_about(contender), **taken, "memory_mb": memory})
        return rows

    def _products(self, clip: Tensor) -> dict[Contender, Counter[Product]]:
        """The matrix products of each contender's forward, where torch can run them alone."""
        by_method = {
            method: products.record(partial(equip(self.opened.model, method), clip))
            for method in dict.fromkeys(c.method for c in self.contenders)
        }
        return {c: by_method[c.method] for c in self.contenders if c.dtype is not None}

    def _alone(
        self, found: Mapping[Contender, Counter[Product]]
    ) -> dict[tuple[str, Product], Callable[[], object]]:
        needed: dict[str, tuple[torch.dtype, list[Product]]] = {}
        for contender, counts in found.items():
            if contender.dtype is not None:
                _, listed = needed.setdefault(contender.precision, (contender.dtype, []))
                listed += counts
        return {
            (precision, product): run
            for precision, (dtype, listed) in needed.items()
            for product, run in products.runs(
                listed, dtype=dtype, device=self.source.device
            ).items()
        }

    def _gflops(self, contender: Contender) -> float:
        method = contender.method
        if method not in self._counted:
            model = equip(self.opened.model, method)
            self._counted[method] = sta.gflops(model, self.opened.clip.shape())
        return self._counted[method]

    def _memory(
        self, contender: Contender, batch_size: int, run: Callable[[], object]
    ) -> float | None:
        if not self.memory:
            return None
        if not self.source.device.startswith("cuda"):
            return peak_megabytes(one_run, self.source, contender, self.clips[:batch_size])
        torch.cuda.reset_peak_memory_stats(self.source.device)
        before = torch.cuda.memory_allocated(self.source.device)
        with torch.inference_mode():
            run()
        torch.cuda.synchronize(self.source.device)
        return (torch.cuda.max_memory_allocated(self.source.device) - before) / 2**20


def _about(contender: Contender) -> Row:
    method = contender.method
    return {
        "name": method.name,
        "method": method.method,
        "r": method.r,
        "settings": None if method.config is None else asdict(method.config),
        "runtime": contender.runtime,
        "precision": contender.precision,
    }


def _times(
    contender: Contender, batch: int, timings: Mapping[Any, Timing], limit: float | None
) -> Row:
    timing = timings[contender]
    return {
        "batch_size": batch,
        "seconds": timing.median,
        "spread": timing.spread,
        "p50_ms": 1000 * timing.median,
        "p95_ms": 1000 * timing.quantile(0.95),
        "clips_per_s": batch / timing.median,
        "speedup": speedup(timings, contender, contender.baseline),
        "speedup_over_torch": _over_torch(contender, timings),
        "gemm_seconds": limit,
        "gemm_share": None if limit is None else limit / timing.median,
    }


def _over_torch(contender: Contender, timings: Mapping[Any, Timing]) -> float | None:
    """How much faster than the stock model in torch at float32, where that takes part."""
    plain = Contender(contender.baseline.method)
    if plain not in timings:
        return None
    return speedup(timings, contender, plain)
