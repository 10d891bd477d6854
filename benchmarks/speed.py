"""Every figure of docs/performance.md that depends on precision, runtime and whole runs, in one go.

    python benchmarks/speed.py FOLDER [--only startup pipeline alone auto ...] [--again]
    python benchmarks/speed.py FOLDER --try        # minutes, with tiny models: does it all run?

`FOLDER` holds real clips and their lists, as benchmarks/real/splits.py takes them. Results go to
docs/results/speed, a JSON file each, and from there into the page by benchmarks/results.py; what is
there is not measured again, so that a run that was stopped goes on. Run it on cores that nothing
else uses: about half an hour on two of them.

- startup: seconds of `sta predict` on one file from start to end, beside its imports alone.
- pipeline: `sta predict` beside transformers' pipeline, ViT-S and ViT-B, in every precision.
- alone: `sta predict` beside the model alone, in every precision.
- auto: `--runtime auto` beside each runtime on 40, 400 and 4,000 clips, without and with what it
  remembers. ViT-S takes 40; the rest is for a small model, else it would take hours. On 4,000 it
  runs beside PyTorch and OpenVINO, which ONNX Runtime is slower than on 400, once each.
- precision: accuracy of each precision, unpruned and with STA, paired with float32's.
- file: an exported int8 file on the held-out list, paired with float32's.
- input: a step before the first block beside the default: GFLOPs, time, accuracy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from sta.inference.threads import wait_passively
from sta.measure.memory import keep_memory

wait_passively()  # as the command does, before torch
keep_memory()

import torch

import sta
from sta.backbones import find
from sta.backbones.copies import shared_copy
from sta.backbones.zoo.video_model import VideoModel
from sta.inference.rows import read_rows
from sta.inference.setup import Setup
from sta.measure.peak import processor
from sta.measure.stats import paired_difference, wilson
from sta.measure.timing import interleave, speedup
from sta.runtime import available
from sta.video.lists import Entry, find_videos

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "real"))
from splits import write_lists

OUT, WORK = ROOT / "docs/results/speed", ROOT / "out/speed"
WEIGHTS = HERE / "real/weights"
PARTS = ("startup", "pipeline", "alone", "auto", "precision", "file", "input")
#: Precisions, and what runs them: OpenVINO's bfloat16 also chooses tokens in it, torch's does not.
PRECISIONS = {"float32": "torch", "bfloat16": "torch", "int8": "openvino"}
REAL = {"vit-lsa64": "lsa64", "vit-gestures": "gestures"}
EMBEDDED = ("vit-digits", "swin-digits")
TINY = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
Measure = Callable[[], dict[str, Any]]


class Plan:
    """What is measured, and how much of it.

    Args:
        options: Of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder: Path = options.folder
        self.trying: bool = options.trying
        self.clips = 8 if self.trying else options.clips
        self.rounds = 1 if self.trying else options.rounds
        self.out = WORK / "tried" if self.trying else OUT
        self.work = WORK / ("tried" if self.trying else "kept")

    def model(self, name: str) -> Path:
        """A folder of a ViT at 224 with random weights, which time does not depend on."""
        folder = self.work / name
        if not (folder / "config.json").exists():
            opened = VideoModel.open(
                f"{name}-k400", random_weights=True, overrides=TINY if self.trying else None
            )
            opened.save(folder)
        return folder

    def held_out(self, model: str) -> dict[str, Any]:
        """What `sta.evaluate` takes for a model: clips that it was not trained on."""
        if model in EMBEDDED:
            return {"source": "digits", "model": model, "clips": self.clips}
        write_lists(self.folder, self.work / "lists")
        return {
            "source": self.work / f"lists/{REAL[model]}-val.txt",
            "model": WEIGHTS / model,
            "root": self.folder,
            "clips": self.clips,
        }

    def entries(self, name: str, count: int) -> list[Entry]:
        """So many videos, over and over, under different names."""
        found = itertools.cycle(find_videos([str(self.folder / name)]))
        return [
            Entry(f"{number} {entry.path}", entry.source)
            for number, entry in enumerate(itertools.islice(found, count))
        ]

    def parts(self) -> dict[str, dict[str, Measure]]:
        """Everything by part and file."""
        auto = [("vit-s", 40), ("vit-lsa64", 40), ("vit-lsa64", 400), ("vit-lsa64", 4000)]
        models = (*EMBEDDED, *REAL)
        return {
            "startup": {"predict": self.startup},
            "pipeline": {n: lambda n=n: self.pipeline(n) for n in ("vit-s", "vit-b")},
            "alone": {p: lambda p=p: self.alone(p) for p in PRECISIONS},
            "auto": {f"{n}-{c}": lambda n=n, c=c: self.auto(n, c) for n, c in auto},
            "precision": {n: lambda n=n: self.precision(n) for n in models},
            "file": {n: lambda n=n: self.file(n) for n in REAL},
            "input": {n: lambda n=n: self.input(n) for n in ("vit-s", "vit-digits", *REAL)},
        }

    def startup(self) -> dict[str, Any]:
        """Wall time of whole commands, each in a process of its own, in turn."""
        video = find_videos([str(self.folder / "lsa64")])[0].source
        python, torch_alone = sys.executable, "import torch, transformers"
        predict = [python, "-m", "sta", "predict", video, "--model"]
        commands = {
            "import sta": [python, "-c", "import sta"],
            "sta --help": [python, "-m", "sta", "--help"],
            "imports of torch and transformers alone": [python, "-c", torch_alone],
            "sta predict, vit-digits": [*predict, "vit-digits", "--r", "24"],
            "sta predict, a folder of ViT-S": [*predict, str(self.model("vit-s")), "--r", "64"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(self.rounds + 1):  # the first one fills the system's cache
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                if number:
                    seconds[name].append(time.perf_counter() - start)
        return {"seconds": seconds}

    def pipeline(self, name: str) -> dict[str, Any]:
        large = name == "vit-b"
        return self._script(
            "pipeline.py",
            self.model(name),
            self.folder / "lsa64",
            *("--rounds", max(1, self.rounds - 2 * large)),
            *("--videos-per-round", 2 if self.trying else 8 if large else 16),
            *("--contenders", *[f"{p}:{runtime}" for p, runtime in PRECISIONS.items()]),
            *("float32:openvino", "bfloat16:openvino"),
        )

    def alone(self, precision: str) -> dict[str, Any]:
        words = ("--model", self.model("vit-s"), "--runtime", PRECISIONS[precision])
        words += ("--precision", precision, "--rounds", self.rounds)
        return self._script("end_to_end.py", self.folder / "lsa64", *words)

    def auto(self, name: str, count: int) -> dict[str, Any]:
        count = min(count, 40) if self.trying else count
        folder = self.model(name) if name == "vit-s" else WEIGHTS / name
        entries = self.entries("lsa64", count)
        long = count > 400
        skipped = ("compile", "onnxruntime") if long else ("compile",)
        installed = [n for n, missing in available().items() if missing is None]
        installed = [n for n in installed if n not in skipped]
        own = ["auto"] if long else ["auto", "auto, remembered"]
        rounds = 1 if count > 40 or name == "vit-s" else min(3, self.rounds)
        seconds: dict[str, list[float]] = {}
        for number in range(rounds):
            with (
                tempfile.TemporaryDirectory() as cache,  # nothing is remembered, then all of it
                mock.patch.dict(os.environ, XDG_CACHE_HOME=cache),
            ):
                for runtime in [*installed, *own] if number % 2 == 0 else [*own, *installed]:
                    took = _whole_run(folder, runtime.partition(",")[0], entries)
                    seconds.setdefault(runtime, []).append(took)
        medians = {runtime: statistics.median(times) for runtime, times in seconds.items()}
        best = min(medians[runtime] for runtime in installed)
        return {
            "clips": count,
            "seconds": seconds,
            "over_torch": {n: t / medians["torch"] for n, t in medians.items()},
            "over_best": {n: t / best for n, t in medians.items()},
        }

    def precision(self, name: str) -> dict[str, Any]:
        given = self.held_out(name)
        r = VideoModel.open(given["model"]).default_r
        found = {
            p: self._rows(f"{name}-{p}", **given, r=[0, r], precision=p, runtime=runtime)
            for p, runtime in PRECISIONS.items()
        }
        own = found["float32"]
        rows = [
            {"precision": p, "r": drop}
            | _paired(right[drop], {"unpruned": own[0], "same r": own[drop]})
            for p, right in found.items()
            for drop in (0, r)
        ]
        return {"rows": rows}

    def file(self, name: str) -> dict[str, Any]:
        given = self.held_out(name)
        r = VideoModel.open(given["model"]).default_r
        path = self.work / f"{name}-int8.xml"
        seen = Path(str(given["source"]).replace("-val", "-train")).read_text().splitlines()
        step = max(1, len(seen) // 32)
        paths = [str(self.folder / line.rsplit(" ", 1)[0]) for line in seen]
        videos, checked = paths[::step], paths[1::step][:8]
        written = sta.export(
            str(given["model"]),
            path,
            format="openvino",
            precision="int8",
            r=r,
            calibrate=videos,
            check=checked,
            overwrite=True,
            progress=False,
        )
        if not written.ok:
            raise SystemExit(f"{path}: {'; '.join(written.differences)}")
        own = self._rows(f"{name}-float32", **given, r=[0, r], precision="float32", runtime="torch")
        (right,) = self._rows(f"{name}-file", **{**given, "model": path}).values()
        rows = [_paired(right, {"unpruned": own[0], "same r": own[r]})]
        export = written.records()[0] | {"path": path.name}  # no place of this machine
        return {"r": r, "export": export, "rows": rows}

    def input(self, name: str) -> dict[str, Any]:
        """The first step before the first block, the others where they are."""
        folder = self.model(name) if name == "vit-s" else self.held_out(name)["model"]
        opened = VideoModel.open(folder)
        usual = sta.STAConfig(r=opened.default_r)
        after = [step.after for step in usual.plan(find(opened.model).layout)]
        configs = {"default": usual, "before": replace(usual, blocks=(0, *after[1:]))}
        pixels = torch.randn(opened.clip.shape(1))
        models = {"unpruned": opened.model} | {
            title: sta.apply(shared_copy(opened.model), config) for title, config in configs.items()
        }
        with torch.inference_mode():
            timings = interleave(
                {title: lambda m=m: m(pixels) for title, m in models.items()},
                rounds=3 * self.rounds,
                warmup=2,
            )
        rows = []
        for title, model in models.items():
            row = {"name": title, "gflops": sta.gflops(model, tuple(pixels.shape))}
            row |= {"ms": 1000 * timings[title].median, "spread": timings[title].spread}
            row |= {"speedup": speedup(timings, title, "unpruned")}
            rows.append(row | {"settings": title in configs and vars(configs[title])})
        if name != "vit-s":  # its weights are random
            for row, title in zip(rows[1:], configs, strict=True):
                given = self.held_out(name) | {"config": configs[title], "r": 0}
                right = self._rows(f"{name}-{title}", **given)
                row |= _paired(right[configs[title].r], {"unpruned": right[0]})
        return {"rows": rows}

    def _rows(self, name: str, **given: Any) -> dict[int, dict[str, bool]]:
        """Which videos were right, by r; rows of an earlier run are gone on with."""
        out = self.work / "rows" / f"{name}.jsonl"
        out.parent.mkdir(parents=True, exist_ok=True)
        sta.evaluate(out=out, resume=True, progress=False, **given)
        found: dict[int, dict[str, bool]] = {}
        for row in read_rows(str(out)):
            if row["error"] is None:
                found.setdefault(row["r"], {})[row["path"]] = row["classes"][0] == row["label"]
        return found

    def _script(self, name: str, *words: object) -> dict[str, Any]:
        file = self.work / "script.json"
        command = [sys.executable, HERE / name, *words, "--json", file]
        subprocess.run([str(word) for word in command], check=True)
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def _whole_run(folder: Path, runtime: str, entries: Sequence[Entry]) -> float:
    """Seconds of a run from the loaded model to the last score; a third of the tokens dropped."""
    setup = Setup.make(folder, r=[VideoModel.open(folder).default_r], runtime=runtime, views="1x1")
    run = setup.run(batch_size=8)
    start = time.perf_counter()
    setup.prepare(run.classifier, entries, len(entries))
    for video in run.score(entries):
        assert video.error is None, f"{video.path}: {video.error}"
    return time.perf_counter() - start


def _paired(right: Mapping[str, bool], others: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
    """Accuracy, and its difference to others' on the same videos, with 95 % intervals."""
    hits = sum(right.values())
    low, high = wilson(hits, len(right))
    row: dict[str, Any] = {"clips": len(right), "top1": hits / len(right)}
    row |= {"top1_low": low, "top1_high": high}
    for name, other in others.items():
        assert right.keys() == other.keys()
        gained = sum(right[path] and not other[path] for path in right)
        lost = sum(other[path] and not right[path] for path in right)
        low, high = paired_difference(gained, lost, len(right))
        row[f"to {name}"] = {"points": (gained - lost) / len(right), "low": low, "high": high}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--clips", type=int, default=512, help="per accuracy")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--again", action="store_true", help="also what is there")
    parser.add_argument("--try", action="store_true", dest="trying", help="tiny: does it run?")
    options = parser.parse_args()
    plan = Plan(options)
    about = {"processor": processor(), "threads": torch.get_num_threads()}
    about |= {"torch": torch.__version__, "sta": sta.__version__}
    for part, measures in plan.parts().items():
        for name, measure in measures.items() if part in options.only else ():
            file = plan.out / f"{part}-{name}.json"
            if file.exists() and not options.again:
                print(f"{file.name} is there")
                continue
            start = time.perf_counter()
            found = measure()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"about": about, **found}, indent=1, default=str) + "\n")
            print(f"{file.name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
