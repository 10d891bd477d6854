"""Windows on Ray: each actor decodes and scores whole videos, as the local engine does.

A long video is not spread over actors: its frames would have to be decoded, or sent, twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sta.inference.ray_engine import (
    Record,
    actors_for,
    columns,
    connected,
    listed,
    ray_module,
    to_record,
    to_scored,
)
from sta.inference.samples import Scored
from sta.video.lists import Entry
from sta.video.windows import WindowSpec

if TYPE_CHECKING:
    from sta.inference.windows import WindowRun

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
        for record in _pipeline(ray, entries, run).iter_rows():
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


def _pipeline(ray: Any, entries: Iterable[Entry], run: WindowRun) -> Any:
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
            chunk.append(to_record(scored, number))
            if len(chunk) == CHUNK:
                yield columns(chunk)
                chunk = []
        if chunk:
            yield columns(chunk)
