"""`--runtime auto`: the fastest runtime for a model on this machine, found in the run itself.

A run starts in PyTorch. Where it is long enough to pay for it, another runtime is prepared and
takes turns with PyTorch over some of the run's own batches, whose results count like all others;
the faster one goes on. What was measured is remembered in a file: next time nothing is tried.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sta.core.options import check_option
from sta.measure.peak import processor
from sta.runtime import ALLOWED, ANY_DEVICE, PRECISIONS, RUNTIMES, available, check_choice
from sta.runtime.batches import Runs

AUTO = "auto"
#: What a user may ask for.
CHOICES = (AUTO, *RUNTIMES)
#: The most that trying other runtimes may take, as a share of the run.
SHARE = 0.05
#: Batches that each runtime of a trial is timed over, after one to warm up.
TURNS = 3
#: Seconds that getting a model ready is expected to take per method, where it was never measured.
PREPARE = {"torch": 0.0, "openvino": 6.0, "onnxruntime": 7.0, "compile": 60.0}
#: How much longer than in the model a clip may be taken to spend in the run, reading included.
_READING = 1.5
#: Models that are remembered.
_REMEMBERED = 500
_PACKAGES = ("torch", "openvino", "onnxruntime", "sta-video")


def able(precision: str, device: str, pruned: bool = False) -> list[str]:
    """Runtimes that can compute in a precision on a device, and are installed; torch first.

    Where tokens are chosen (`pruned`), that is to be done in float32: OpenVINO's float16 and
    bfloat16 round everything.
    """
    missing = available()
    return [
        name
        for name in PREPARE
        if precision in ALLOWED[name]
        and missing[name] is None
        and (device.partition(":")[0] == "cpu" or name in ANY_DEVICE)
        and not (pruned and name == "openvino" and precision in ("float16", "bfloat16"))
    ]


def check_runtime(runtime: str, precision: str, device: str) -> str:
    """What a run starts with; refuses what is unknown, not installed, or does not fit together."""
    check_option("runtime", runtime, CHOICES)
    check_option("precision", precision, PRECISIONS)
    if runtime == AUTO:
        found = able(precision, device)
        runtime = found[0] if found else "openvino"
    check_choice(runtime, precision, device)
    return runtime


class Speed(NamedTuple):
    """How fast a runtime was."""

    seconds: float  # per clip, all methods together
    prepare: float  # until it was ready


def cache_file() -> Path:
    """Where speeds are remembered: ``sta/runtimes.json`` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sta" / "runtimes.json"


def remembered(key: str) -> dict[str, Speed]:
    """Speeds that were measured before, by runtime; a file that cannot be read has none."""
    try:
        known = _read()[key]["runtimes"]
        return {name: Speed(float(s), float(p)) for name, (s, p) in known.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def remember(key: str, about: Mapping[str, Any], speeds: Mapping[str, Speed]) -> None:
    """Keep speeds for later runs; where the file cannot be written, they are forgotten."""
    known = _read()
    known.pop(key, None)
    known[key] = {"about": dict(about), "runtimes": {n: list(s) for n, s in speeds.items()}}
    path = cache_file()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(dict(list(known.items())[-_REMEMBERED:]), file, indent=1)
        Path(file.name).replace(path)  # whole or not at all: runs may end at the same time


def preparation(runtime: str, about: Mapping[str, Any]) -> float:
    """Seconds until a model is ready, per method, as they were on this machine before."""
    found = []
    for entry in _read().values():
        with suppress(KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
            known = entry["about"]
            if all(known[part] == about[part] for part in ("device", "threads", "versions")):
                found.append(float(entry["runtimes"][runtime][1]) / len(known["methods"]))
    return median(found) if found else PREPARE[runtime]


def _read() -> dict[str, Any]:
    try:
        content = json.loads(cache_file().read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


class AutoRuns:
    """A model under several methods, on whichever runtime finishes the run first.

    `runs` makes `Runs` of a runtime. `about` is what speed depends on beside the clips' shape and
    the machine: model and methods. Where it is not known how many clips there will be, nothing is
    tried. `pruned` says whether any of the methods chooses tokens.
    """

    def __init__(
        self,
        runs: Callable[[str], Runs],
        methods: int,
        precision: str,
        about: Mapping[str, Any],
        clips: int | None,
        pruned: bool = False,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.runs, self.methods, self.precision = runs, methods, precision
        self.about, self.left, self.pruned = about, clips, pruned
        self.report = report or partial(print, file=sys.stderr)
        self._made: dict[str, Runs] = {}
        self._times: dict[str, list[float]] = {}
        self._prepare: dict[str, float] = {}
        self._untried: list[str] | None = None  # None: before the first batch
        self._trial: str | None = None
        self._since = 0  # batches that the best had taken when the trial began
        self._best = "torch"
        self._spent = 0.0
        self._overrun = 1.0  # how much longer than expected getting ready took
        self._clock: tuple[float, int] | None = None  # when the first batch was done; clips since
        self._reading: float | None = None  # a clip's time in the run over that in the model
        self._key = ""

    @property
    def runtime(self) -> str:
        """What the run goes on with, as far as is known."""
        return self._best

    def __call__(
        self, pixels: Tensor, *, kept: bool = False
    ) -> tuple[list[Tensor], list[float], list[list[Tensor]]]:
        if self._untried is None:
            self._begin(pixels)
        name = self._turn(pixels)
        if name not in self._made:
            self._made[name] = self.runs(name)
        results = self._made[name](pixels, kept=kept)
        if self._untried:
            self._times.setdefault(name, []).append(sum(results[1]) / len(pixels))
        if self.left is not None:
            self.left -= len(pixels)
        start, clips = self._clock or (time.perf_counter(), -len(pixels))
        self._clock = start, clips + len(pixels)
        return results

    def _begin(self, pixels: Tensor) -> None:
        """What to start with, and what is worth trying."""
        names = able(self.precision, pixels.device.type, self.pruned)
        self._best, self._untried = names[0], []
        if len(names) == 1 or self.left is None:
            return
        device = pixels.device
        gpu = torch.cuda.get_device_name(device) if pixels.is_cuda else device.type
        self.about = {
            **self.about,
            "shape": list(pixels.shape),
            "precision": self.precision,
            "device": processor() if device.type == "cpu" else gpu,
            "threads": torch.get_num_threads(),
            "versions": _versions(),
        }
        self._key = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode()).hexdigest()[:16]
        known = remembered(self._key)
        if names[0] not in known:
            self._untried = names[1:]
            return
        known = {name: speed for name, speed in known.items() if name in names}
        clips = self.left
        self._best = min(known, key=lambda name: known[name].prepare + clips * known[name].seconds)
        if self._best != names[0]:
            gain = known[names[0]].seconds / known[self._best].seconds
            self.report(f"runtime: {self._best}, {gain:.2f}x as fast as {names[0]} here before")

    def _turn(self, pixels: Tensor) -> str:
        if not self._untried:
            return self._best
        times = self._times.get(self._best, [])
        if len(times) < 2:  # the first is for warming up
            return self._best
        if self._trial is None and not self._start_trial(pixels, times):
            return self._best
        assert self._trial is not None
        seen = self._times.get(self._trial, [])
        hopeless = len(seen) > 1 and min(seen[1:]) > 1.5 * median(times[1:])
        if len(seen) <= TURNS and not hopeless:
            return self._trial if len(seen) <= len(times) - self._since else self._best
        self._end_trial()
        return self._turn(pixels)

    def _start_trial(self, pixels: Tensor, times: list[float]) -> bool:
        """Prepare the next runtime if the run is long enough to pay for it."""
        assert self._untried
        assert self.left is not None
        if self._reading is None:  # before anything but the run itself took time
            self._reading = self._with_reading(median(times[1:]))
        budget = SHARE * self.left * self._reading * median(times[1:]) - self._spent
        expected = {n: preparation(n, self.about) * self.methods for n in self._untried}
        name = next((n for n in expected if expected[n] * self._overrun <= budget), None)
        if name is None:
            self._finish()
            return False
        start = time.perf_counter()
        try:
            runs = self.runs(name)
            runs.make(pixels)
        except Exception as error:  # whatever a compiler may say: there are other runtimes
            self.report(f"runtime {name} is left out: {str(error).splitlines()[0]}")
            self._untried.remove(name)
            return False
        finally:
            self._prepare[name] = time.perf_counter() - start
            self._spent += self._prepare[name]
            self._overrun = max(self._overrun, self._prepare[name] / max(expected[name], 1e-9))
        self._made[name], self._trial, self._since = runs, name, len(times)
        return True

    def _with_reading(self, seconds: float) -> float:
        """How much longer a clip takes in the run than these seconds in the model."""
        assert self._clock is not None
        start, clips = self._clock
        whole = (time.perf_counter() - start) / clips
        return min(max(1.0, whole / max(seconds, 1e-9)), _READING)

    def _end_trial(self) -> None:
        assert self._untried is not None
        assert self._trial is not None
        name, self._trial = self._trial, None
        self._untried.remove(name)
        if self._seconds(name) < self._seconds(self._best):
            self._made.pop(self._best, None)
            self._best = name
        else:
            self._made.pop(name, None)
        if not self._untried:
            self._finish()

    def _seconds(self, name: str) -> float:
        return median(self._times[name][1:])

    def _finish(self) -> None:
        """Remember what was measured, where anything was."""
        self._untried = []
        measured = {n: self._seconds(n) for n in self._times if len(self._times[n]) > 1}
        if len(measured) < 2:
            return
        speeds = {n: Speed(s, self._prepare.get(n, 0.0)) for n, s in measured.items()}
        remember(self._key, self.about, speeds)
        said = ", ".join(f"{n} {1000 * s:.3g} ms" for n, s in measured.items())
        self.report(f"runtime: {self._best} ({said} per clip; trying took {self._spent:.0f} s)")
