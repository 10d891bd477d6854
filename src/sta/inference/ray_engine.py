"""The Ray engine: the same stages as a streaming Ray Data pipeline, on one machine or a cluster.

Entries -> decoding tasks (CPU) -> model actors (GPU or CPU) -> rows, back at the driver, which
keeps the same journal as the local engine. A task or actor whose worker dies is run again.

Windows: each actor decodes and scores whole videos, as the local engine does. A long video is not
spread over actors: its frames would have to be decoded, or sent, twice.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sta.inference.scoring import Scored, score_samples
from sta.runtime.extras import require
from sta.video.lists import Entry
from sta.video.prefetch import Sample, decode_entry
from sta.video.safe import SafeDecoder
from sta.video.views import ViewSpec
from sta.video.windows import WindowSpec

if TYPE_CHECKING:
    from sta.inference.run import Run
    from sta.inference.windows import WindowRun

Record = dict[str, Any]
#: Blocks that a list is cut into: small enough to spread and to repeat cheaply.
MAX_BLOCKS = 2000
#: Memory that Ray sets aside for a decoding task.
DECODER_BYTES = 256 * 2**20
#: How long a cluster may take to answer.
CONNECT_SECONDS = 20.0


def score_on_ray(run: Run, entries: Iterable[Entry]) -> Iterator[Scored]:
    """Decode and score on a Ray cluster; yields videos as they are done, each once.

    The classifier is sent to the actors, which move it to their device. The address is of the
    cluster, ``"auto"`` for the one this machine belongs to; None starts one here. By default there
    are as many decoding tasks as free cores, and a model replica per GPU, or per two cores.
    """
    with connected(run.address) as ray:
        pipeline = _pipeline(ray, run, entries)
        seen: set[str] = set()
        for record in pipeline.iter_rows():
            if record["path"] not in seen:
                seen.add(record["path"])
                yield to_scored(record)


def _pipeline(ray: Any, run: Run, entries: Iterable[Entry]) -> Any:
    classifier, spec = run.classifier, run.spec
    actors = actors_for(ray, classifier.device, run.actors)
    if classifier.clips is not None:
        classifier.clips //= actors.count
    decoded = listed(ray, entries).map(
        decode_record,
        fn_kwargs={"spec": spec, "timeout": run.timeout},
        compute=ray.data.TaskPoolStrategy(size=run.workers),
        num_cpus=actors.cores,
        # Said here and not below, it also keeps Ray from fusing the two stages into one actor,
        # where the model would wait for each video.
        memory=DECODER_BYTES,
    )
    return decoded.map_batches(
        ModelActor,
        fn_constructor_kwargs={
            "model": ray.put(classifier.parts()),
            "device": actors.device,
            "batch_size": run.batch_size,
        },
        batch_size=math.ceil(run.batch_size / spec.views),
        compute=ray.data.ActorPoolStrategy(size=actors.count),
        num_cpus=0 if actors.gpus else actors.cores,
        num_gpus=actors.gpus,
    )


@dataclass(frozen=True)
class Actors:
    """Model replicas in a cluster: how many, and what each takes."""

    count: int
    cores: float
    gpus: int

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"


def actors_for(ray: Any, device: str, count: int | None) -> Actors:
    """As many as asked for; else one per GPU, or per two cores."""
    resources = ray.cluster_resources()
    cores, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    on_gpu = device.startswith("cuda")
    if on_gpu and not gpus:
        raise ValueError('device="cuda": the Ray cluster has no GPU; use device="cpu"')
    share = 1.0 if cores > 1 else 0.5  # on a single core the stages must share it
    return Actors(count or (gpus if on_gpu else max(1, cores // 2)), share, int(on_gpu))


def listed(ray: Any, entries: Iterable[Entry]) -> Any:
    """The videos as a data set of Ray's."""
    items = [{"path": e.path, "source": e.source, "label": _number(e.label)} for e in entries]
    return ray.data.from_items(items, override_num_blocks=min(len(items), MAX_BLOCKS))


# The stages. Records hold plain values and bytes, so that Ray keeps them as Arrow columns.


def decode_record(record: Record, *, spec: ViewSpec, timeout: float) -> Record:
    """One listed video to its clips; `decode_entry` in a Ray worker."""
    entry = Entry(record["path"], record["source"], _label(record["label"]))
    sample = decode_entry(_decoder(spec, timeout), entry)
    clips = b"" if sample.clips is None else sample.clips.tobytes()
    shape = [] if sample.clips is None else list(sample.clips.shape)
    return {
        "path": sample.path,
        "label": _number(sample.label),
        "error": sample.error or "",
        "error_kind": sample.error_kind or "",
        "clips": clips,
        "shape": np.array(shape + [0] * (5 - len(shape)), dtype=np.int64),
    }


@lru_cache(maxsize=1)
def _decoder(spec: ViewSpec, timeout: float) -> SafeDecoder:
    """One decoding process per Ray worker, kept between its tasks."""
    return SafeDecoder(spec, timeout)


class ModelActor:
    """A replica of the model; `score_samples` in a Ray actor."""

    def __init__(self, model: Any, device: str, batch_size: int) -> None:
        kind, arguments = ray_module().get(model)
        self.classifier = kind(**arguments, device=device)
        self.batch_size = batch_size

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        samples = (_to_sample(batch, row) for row in range(len(batch["path"])))
        scored = score_samples(samples, self.classifier, self.batch_size)
        return columns([to_record(one) for one in scored])


def _to_sample(batch: Mapping[str, Any], row: int) -> Sample:
    error = str(batch["error"][row]) or None
    clips = None
    if error is None:
        raw = np.frombuffer(batch["clips"][row], dtype=np.uint8)
        clips = raw.reshape(batch["shape"][row])
    kind = str(batch["error_kind"][row]) or None
    return Sample(str(batch["path"][row]), clips, _label(batch["label"][row]), error, kind)


def to_record(scored: Scored, number: int = 0) -> Record:
    """A video's scores, or those of its window of this number, in plain values and bytes."""
    scores = np.empty(0) if scored.scores is None else scored.scores
    return {
        "path": scored.path,
        "number": number,
        "last": scored.last,
        "label": _number(scored.label),
        "error": scored.error or "",
        "error_kind": scored.error_kind or "",
        "start": math.nan if scored.start is None else scored.start,
        "end": math.nan if scored.end is None else scored.end,
        "scores": scores.tobytes(),
        "type": scores.dtype.str,
        "shape": "" if scored.scores is None else ",".join(map(str, scores.shape)),
        "views": scored.views,
        "seconds": (np.empty(0) if scored.seconds is None else scored.seconds).tobytes(),
    }


def to_scored(record: Record) -> Scored:
    """What `to_record` was given."""
    scores = None
    if record["shape"]:
        shape = [int(size) for size in record["shape"].split(",")]
        scores = np.frombuffer(record["scores"], dtype=record["type"]).reshape(shape)
    return Scored(
        str(record["path"]),
        scores,
        _label(record["label"]),
        record["error"] or None,
        int(record["views"]),
        np.frombuffer(record["seconds"]) if record["seconds"] else None,
        record["error_kind"] or None,
        None if math.isnan(record["start"]) else float(record["start"]),
        None if math.isnan(record["end"]) else float(record["end"]),
        bool(record["last"]),
    )


def columns(records: list[Record]) -> dict[str, Any]:
    """Records as a batch of Ray's."""
    return {name: [record[name] for record in records] for name in records[0]}


def _label(number: int) -> int | None:
    return None if number < 0 else int(number)


def _number(label: int | None) -> int:
    return -1 if label is None else label


# Ray itself


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, joined to a cluster, or to one that is started here; as it is, if it is running."""
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    if address is not None:
        check_address(address)
    with _native_messages_hidden():
        _start(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def _start(ray: Any, address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    if address is None:
        options["include_dashboard"] = False
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, str(error)) from None


def check_address(address: str) -> None:
    """Refuse an address that no Ray cluster answers at, within `CONNECT_SECONDS`.

    `ray.init` itself tries for minutes.
    """
    where = [] if address == "auto" else ["--address", address]
    try:
        if "://" in address:  # Ray's client protocol, which the health check does not speak
            host, _, port = address.partition("://")[2].rpartition(":")
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
            return
        done = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "health-check", *where],
            capture_output=True,
            timeout=CONNECT_SECONDS,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        raise _no_cluster(address, "no answer") from None
    if done.returncode:
        raise _no_cluster(address, "no answer")


@contextmanager
def _native_messages_hidden() -> Iterator[None]:
    """Keep what Ray's C++ parts write to standard error off the terminal; its log files have it.

    They write to file descriptor 2, past Python: that one leads nowhere meanwhile, and Python
    writes to a copy of it.
    """
    python, terminal = sys.stderr, os.dup(2)
    copy = open(os.dup(terminal), "w", buffering=1)  # noqa: PTH123, SIM115, a descriptor
    try:
        if python.fileno() == 2:
            sys.stderr = copy
    except (OSError, ValueError):
        pass  # something else stands in for it, such as a notebook's
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        if sys.stderr is copy:
            sys.stderr = python
        copy.close()


def _no_cluster(address: str | None, why: str) -> ConnectionError:
    return ConnectionError(
        f"address {address}: no Ray cluster answers there ({why.splitlines()[0]}); start one "
        f"with ray start --head, or leave the address out"
    )


def ray_module() -> Any:
    """Ray, quiet; an error that names the extra where it is not installed."""
    require("ray.data", "the Ray engine", "ray")
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


#: Windows that travel together.
CHUNK = 32
#: Videos that an actor takes at a time, so that short ones share batches.
VIDEOS = 4


def score_windows_on_ray(entries: Iterable[Entry], run: WindowRun) -> Iterator[Scored]:
    """`WindowRun.score` on a Ray cluster; videos come whole, in any order, each once."""
    with connected(run.address) as ray:
        done: set[str] = set()
        arrived: dict[str, dict[int, Scored]] = {}
        total: dict[str, int] = {}
        for record in _window_pipeline(ray, entries, run).iter_rows():
            path = str(record["path"])
            if path in done:
                continue
            arrived.setdefault(path, {})[int(record["number"])] = to_scored(record)
            if record["last"]:
                total[path] = int(record["number"]) + 1
            if len(arrived[path]) == total.get(path):
                done.add(path)
                windows = arrived.pop(path)
                yield from (windows[number] for number in sorted(windows))


def _window_pipeline(ray: Any, entries: Iterable[Entry], run: WindowRun) -> Any:
    actors = actors_for(ray, run.device, run.actors)
    return listed(ray, entries).map_batches(
        WindowActor,
        fn_constructor_kwargs={
            "model": ray.put(run.model.parts()),
            "device": actors.device,
            "spec": run.spec,
            "batch_size": run.batch_size,
            "timeout": run.timeout,
        },
        batch_size=VIDEOS,
        compute=ray.data.ActorPoolStrategy(size=actors.count),
        num_cpus=actors.cores,
        num_gpus=actors.gpus,
    )


class WindowActor:
    """A replica of the model with a decoding process."""

    def __init__(
        self, model: Any, device: str, spec: WindowSpec, batch_size: int, timeout: float
    ) -> None:
        from sta.inference.windows import WindowRun

        kind, arguments = ray_module().get(model)
        made = kind(**arguments, device=device)
        self.run = WindowRun(made, spec, device, batch_size=batch_size, timeout=timeout, workers=1)

    def __call__(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Score a few videos; a chunk of windows at a time."""
        entries = [
            Entry(str(path), str(source), None if label < 0 else int(label))
            for path, source, label in zip(
                batch["path"], batch["source"], batch["label"], strict=True
            )
        ]
        numbers: dict[str, int] = {}
        chunk: list[Record] = []
        for scored in self.run.score(entries):
            number = numbers.get(scored.path, 0)
            numbers[scored.path] = number + 1
            chunk.append(to_record(scored, number))
            if len(chunk) == CHUNK:
                yield columns(chunk)
                chunk = []
        if chunk:
            yield columns(chunk)
