"""The Ray engine on a local cluster of two nodes: the same rows, and deaths lose nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from typer.testing import CliRunner

import sta
from inference_runs import environment, make_videos, save_model
from sta.backbones.zoo.spec import ClipSpec
from sta.cli import app
from sta.inference.clip_model import Classifier
from sta.inference.rows import read_rows
from sta.video import ViewSpec
from sta.video.lists import find_labelled

pytest.importorskip("ray", reason='the Ray engine needs pip install "sta-video[ray]"')


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["OMP_NUM_THREADS"] = "1"
    before = os.environ.get("PYTHONPATH")
    places = [str(Path(sta.__file__).parents[1]), str(Path(__file__).parent), *sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 120 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    assert len(ray.nodes()) == 2
    yield ray
    ray.shutdown()
    cluster.shutdown()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


def run(*words: object) -> int:
    return CliRunner().invoke(app, [str(word) for word in words]).exit_code


def test_both_engines_have_the_same_rows(tmp_path, cluster):
    folder = make_videos(tmp_path / "v", 7)
    (folder / "bad.mp4").write_text("no video")
    with (folder / "list.txt").open("a") as file:
        file.write("bad.mp4 0\nnone.mp4 1\n")
        file.write(f"file://{folder}/003.mp4 2\n")  # as any other file system's address
    model = save_model(tmp_path / "model")
    common = ("eval", folder / "list.txt", "--model", model, "--r", 0, 4, "--views", "2x3")
    local, remote = tmp_path / "local.parquet", tmp_path / "ray.parquet"
    assert run(*common, "--out", local) == 1
    assert run(*common, "--out", remote, "--engine", "ray") == 1
    expected, found = (
        {(row["path"], row["r"]): row for row in read_rows(str(file))} for file in (local, remote)
    )
    assert expected.keys() == found.keys()
    assert len(found) == 20
    for key, row in expected.items():
        other = found[key]
        for name in ("label", "error", "classes", "views"):
            assert row[name] == other[name], key
        for one, two in zip(row["predictions"], other["predictions"], strict=True):
            assert one["label"] == two["label"]
            assert one["score"] == pytest.approx(two["score"], abs=2e-6)


def test_both_engines_have_the_same_windows(tmp_path, cluster):
    folder = make_videos(tmp_path / "v", 5)
    (folder / "bad.mp4").write_text("no video")
    model = save_model(tmp_path / "model")
    options = {"every": 0.2, "progress": False}

    def features(engine: str) -> dict[tuple[str, float | None], np.ndarray | None]:
        rows = sta.features(folder, model, r=4, engine=engine, batch_size=3, **options)
        return {(row["path"], row["start"]): row["vector"] for row in rows}

    local, remote = features("local"), features("ray")
    assert list(local) == list(remote)
    assert any(start is None for _, start in remote)  # the bad one
    for key, vector in local.items():
        if vector is not None:
            np.testing.assert_allclose(vector, remote[key], atol=1e-5)
    rows = [
        [
            (row["path"], row["start"], [one["label"] for one in row["predictions"]])
            for row in sta.predict(folder, model, engine=engine, **options)
        ]
        for engine in ("local", "ray")
    ]
    assert rows[0] == rows[1]


def test_an_address_is_tried_for_half_a_minute_at_most(cluster):
    from sta.inference.ray_engine import check_address

    check_address(cluster.get_runtime_context().gcs_address)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        port = silent.getsockname()[1]
        for address in ("127.0.0.1:1", f"127.0.0.1:{port}", "ray://127.0.0.1:1", "nonsense"):
            start = time.monotonic()
            with pytest.raises(ConnectionError, match=f"address {address}: no Ray cluster"):
                check_address(address)
            assert time.monotonic() - start < 30


class Slow(torch.nn.Module):
    """Takes its time, so that it can be killed in the middle."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        time.sleep(0.4 * len(pixels))
        return pixels.mean(dim=(1, 3, 4))


def kill_workers(name: str) -> int:
    """Kill the Ray workers that are busy with a stage."""
    found = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(part.startswith("ray::") and name in part for part in process.info["cmdline"] or ())
    ]
    for process in found:
        process.kill()
    return len(found)


def test_the_death_of_workers_loses_and_repeats_nothing(tmp_path, cluster):
    from sta.inference.ray_engine import score_on_ray
    from sta.inference.run import Run

    folder = make_videos(tmp_path / "v", 16)
    entries = find_labelled(str(folder / "list.txt"))
    spec = ViewSpec(frames=4, stride=2, size=32)
    classifier = Classifier(Slow(), ClipSpec(spec, "TCHW"))
    results = score_on_ray(Run(classifier, spec, batch_size=1, workers=1, actors=1), entries)
    paths, killed = [], 0
    for number, scored in enumerate(results):
        assert scored.error is None
        assert np.isfinite(scored.scores).all()
        paths.append(scored.path)
        if number == 2:
            killed = kill_workers("ModelActor")
    assert killed
    assert sorted(paths) == sorted(entry.path for entry in entries)


def test_only_python_writes_to_the_terminal_while_ray_runs():
    code = """
import os, sys
from sta.inference.ray_engine import _native_messages_hidden
with _native_messages_hidden():
    os.write(2, b"of C++\\n")
    print("progress", file=sys.stderr)
print("after", file=sys.stderr)
os.write(2, b"of C++ again\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == ["progress", "after", "of C++ again"]


def test_exported_files_and_lower_precision_run_on_actors(tmp_path, cluster):
    folder = make_videos(tmp_path / "v", 3)
    model, file = save_model(tmp_path / "model"), tmp_path / "m.pt2"
    sta.export(model, file, format="pt2", r=4, progress=False)
    runs = ((file, {}), (model, {"r": 4, "precision": "bfloat16", "runtime": "torch"}))
    for given, options in runs:
        local, remote = (
            {
                row["path"]: row["logits"]
                for row in sta.predict(
                    folder, given, engine=engine, logits=True, progress=False, **options
                )
            }
            for engine in ("local", "ray")
        )
        assert local.keys() == remote.keys()
        for path, logits in local.items():
            np.testing.assert_allclose(logits, remote[path], atol=2e-2 if options else 1e-4)
