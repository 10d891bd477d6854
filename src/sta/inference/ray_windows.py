"""Windows on Ray: each actor decodes and scores whole videos, as the local engine does.

A long video is not spread over actors: its frames would have to be decoded, or sent, twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from sta.inference.ray_engine import MAX_BLOCKS, check_address, ray_module, start_ray
from sta.inference.samples import Scored
from sta.video.lists import Entry
from sta.video.windows import WindowSpec

if TYPE_CHECKING:
    from sta.inference.windows import WindowRun

Record = dict[str, Any]
#: Windows that travel together.
CHUNK = 32
#: Videos that an actor takes at a time, so that short ones share batches.
VIDEOS = 4


def score_windows_on_ray(entries: Iterable[Entry], run: WindowRun) -> Iterator[Scored]:
    """`WindowRun.score` on a Ray cluster; videos come whole, in any order, each once.

    Args:
        entries: The videos.
        run: How they are decoded and scored; its model is sent to the actors.
    """
    ray = ray_module()
    with ExitStack() as stack:
        if not ray.is_initialized():
            if run.address is not None:
                check_address(run.address)
            start_ray(ray, run.address, stack)
        done: set[str] = set()
        arrived: dict[str, dict[int, Scored]] = {}
        total: dict[str, int] = {}
        for record in _pipeline(ray, entries, run).iter_rows():
            path = str(record["path"])
            if path in done:
                continue
            arrived.setdefault(path, {})[int(record["number"])] = _to_scored(record)
            if record["last"]:
                total[path] = int(record["number"]) + 1
            if len(arrived[path]) == total.get(path):
                done.add(path)
                windows = arrived.pop(path)
                yield from (windows[number] for number in sorted(windows))


def _pipeline(ray: Any, entries: Iterable[Entry], run: WindowRun) -> Any:
    resources = ray.cluster_resources()
    cores, gpus = int(resources.get("CPU", 1)), int(resources.get("GPU", 0))
    on_gpu = run.device.startswith("cuda")
    if on_gpu and not gpus:
        raise ValueError('device="cuda": the Ray cluster has no GPU; use device="cpu"')
    items = [
        {"path": e.path, "source": e.source, "label": -1 if e.label is None else e.label}
        for e in entries
    ]
    data = ray.data.from_items(items, override_num_blocks=min(len(items), MAX_BLOCKS))
    return data.map_batches(
        WindowActor,
        fn_constructor_kwargs={
            "model": ray.put(run.model.parts()),
            "device": "cuda" if on_gpu else "cpu",
            "spec": run.spec,
            "batch_size": run.batch_size,
            "timeout": run.timeout,
        },
        batch_size=VIDEOS,
        compute=ray.data.ActorPoolStrategy(
            size=run.actors or (gpus if on_gpu else max(1, cores // 2))
        ),
        num_cpus=1.0 if cores > 1 else 0.5,
        num_gpus=1 if on_gpu else 0,
    )


class WindowActor:
    """A replica of the model with a decoding process."""

    def __init__(
        self, model: Any, device: str, spec: WindowSpec, batch_size: int, timeout: float
    ) -> None:
        """Fetch the model that the driver sent and move it to this actor's device."""
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
            chunk.append(_to_record(scored, number))
            if len(chunk) == CHUNK:
                yield _columns(chunk)
                chunk = []
        if chunk:
            yield _columns(chunk)


def _columns(records: list[Record]) -> dict[str, Any]:
    return {name: [record[name] for record in records] for name in records[0]}


def _to_record(scored: Scored, number: int) -> Record:
    scores = np.empty(0) if scored.scores is None else scored.scores
    return {
        "path": scored.path,
        "number": number,
        "last": scored.last,
        "label": -1 if scored.label is None else scored.label,
        "error": scored.error or "",
        "error_kind": scored.error_kind or "",
        "start": math.nan if scored.start is None else scored.start,
        "end": math.nan if scored.end is None else scored.end,
        "scores": scores.tobytes(),
        "type": scores.dtype.str,
        "shape": ",".join(map(str, scores.shape)),
        "views": scored.views,
        "seconds": (np.empty(0) if scored.seconds is None else scored.seconds).tobytes(),
    }


def _to_scored(record: Record) -> Scored:
    scores = None
    if record["views"] and not record["error"]:
        shape = [int(size) for size in record["shape"].split(",")]
        scores = np.frombuffer(record["scores"], dtype=record["type"]).reshape(shape)
    label = int(record["label"])
    return Scored(
        str(record["path"]),
        scores,
        None if label < 0 else label,
        record["error"] or None,
        int(record["views"]),
        np.frombuffer(record["seconds"]) if record["seconds"] else None,
        record["error_kind"] or None,
        None if math.isnan(record["start"]) else float(record["start"]),
        None if math.isnan(record["end"]) else float(record["end"]),
        bool(record["last"]),
    )
