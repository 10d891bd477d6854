"""Measure all models with `sta.compare`, then write the tables and the picture of docs/results.md.

    python benchmarks/compare.py [FOLDER] [--models vit-digits ...] [--estimate]

The embedded models run on digits, those of benchmarks/weights on digits under a shaking camera;
those of benchmarks/real/weights on the held-out clips of FOLDER,
which `real/splits.py` describes, models called NAME-camera under a moving camera. Per model, into
docs/results/compare: `MODEL.json`, all methods at the same GFLOPs, which are -35, -50 and -65 % for
digits, those of the paper's r and -65 % for real video; `MODEL-time.json`, at the same measured
times; `MODEL-controls.json`, real models unpruned on single and shuffled frames;
`MODEL-redundancy.json`, trajectory sum S and GradNorm; and with --only ablations
docs/results/MODEL-ablations.json. "fitted" is what `sta.fit` chooses by clips of the training set.
A run that was stopped goes on with out/compare.

--estimate times one batch of each model and says how many minutes its part will take here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks/real"))

import numpy as np
import results
import torch
import variants
from splits import HELD_OUT, write_lists

import sta
from sta.backbones.copies import meta_copy
from sta.backbones.zoo import embedded
from sta.backbones.zoo.video_model import VideoModel
from sta.measure.peak import processor
from sta.tuning.compare import SAVED
from sta.tuning.entrants import comparable_methods
from sta.video.clips import drawn_clips, load_clips
from sta.video.digits import DigitActions

WEIGHTS = ROOT / "benchmarks/real/weights"
GENERATED = ROOT / "benchmarks/weights"  # trained by jitter.py
WORK = ROOT / "out/compare"
OUT = ROOT / "docs/results"
PARTS = ("compare", "controls", "redundancy", "ablations")
#: Tokens that the paper drops at its first step, as shares of a frame.
PAPER = {"vit": (32 / 196, 48 / 196, 64 / 196), "swin": (192 / 784, 256 / 784, 320 / 784)}
DIGITS = 1024  # clips
TRAINING_CLIPS = 48  # that thresholds are set by; the first ones choose what is fitted
FIT_CLIPS = 32
OURS = "ward"  # the method that all others are compared with, beside random dropping


class Subject(NamedTuple):
    """A model and its data: what `sta.load` takes, a set of real clips, how its camera moves."""

    name: str
    model: str
    data: str
    camera: str


def subjects(options: argparse.Namespace) -> list[Subject]:
    """All models whose data is there, or those that are asked for."""
    found = [Subject(name, name, "digits", "still") for name in embedded.names()]
    for path in sorted(GENERATED.glob("*/config.json")):
        found.append(Subject(path.parent.name, str(path.parent), "digits-jitter", "still"))
    for path in sorted(WEIGHTS.glob("*/config.json")):
        name = path.parent.name
        data = next(data for data in HELD_OUT if data in name)
        if options.folder is not None:
            camera = "moving" if name.endswith("-camera") else "still"
            found.append(Subject(name, str(path.parent), data, camera))
    names = options.models or [one.name for one in found]
    if unknown := set(names) - {one.name for one in found}:
        raise SystemExit(f"{', '.join(sorted(unknown))}: not here; give FOLDER for real models")
    return [one for one in found if one.name in names]


def clips_of(subject: Subject, folder: Path, variant: str) -> tuple[str, str | None]:
    """What `sta eval` takes of the held-out clips, and its root."""
    if subject.data not in HELD_OUT:
        return subject.data, None
    write_lists(folder, WORK / "lists")
    listed = WORK / f"lists/{subject.data}-val.txt"
    if variant == "still":
        return str(listed), str(folder)
    return str(changed(listed, folder, variant, cached_side(subject))), None


def cached_side(subject: Subject) -> int:
    """Side of the cached frames of which a model's variants are made: no less than it takes."""
    return max(128, VideoModel.open(subject.model).clip.views.size)


def training_clips(subject: Subject, folder: Path) -> np.ndarray:
    """A few dozen clips of the training set, under the model's camera, (n, T, H, W, 3) uint8."""
    views = VideoModel.open(subject.model).clip.views
    if subject.data not in HELD_OUT:
        jitter = subject.data == "digits-jitter"
        return DigitActions("train", TRAINING_CLIPS, jitter).batch(range(TRAINING_CLIPS))[0]
    write_lists(folder, WORK / "lists")
    lines = (WORK / f"lists/{subject.data}-train.txt").read_text().splitlines()
    listed = WORK / f"lists/{subject.data}-few.txt"
    some = np.random.default_rng(0).permutation(len(lines))[:TRAINING_CLIPS]
    listed.write_text("\n".join(lines[number] for number in sorted(some)) + "\n")
    source, root = str(listed), str(folder)
    if subject.camera != "still":
        source = str(changed(listed, folder, subject.camera, cached_side(subject)))
        root = None
    return load_clips(source, views, TRAINING_CLIPS, root=root, seed=0)[0]


def changed(listed: Path, folder: Path, variant: str, side: int, take: int = 0) -> Path:
    """A cache of a list's clips as a variant of benchmarks/real/variants.py; made once."""
    cache = WORK / f"{listed.stem}-{side}"
    if not (cache / "index.json").exists():
        words = ["data", "cache", listed, "--root", folder, "--out", cache]
        words += ["--size", side, "--frames", 32]
        subprocess.run([sys.executable, "-m", "sta", *map(str, words)], check=True)
    made = WORK / f"{cache.name}-{variant}{take or ''}"
    if not made.exists():
        variants.make(cache, made, variant, take)
    return made


def fitted(subject: Subject, options: argparse.Namespace) -> sta.Config:
    """What `sta.fit` chooses by clips of the training set; kept in a file."""
    file = WORK / f"{subject.name}-fitted.json"
    if not file.exists():
        clips = training_clips(subject, options.folder)[:FIT_CLIPS]
        found = sta.fit(clips, subject.model)
        print(found)
        file.parent.mkdir(parents=True, exist_ok=True)
        found.config.to_file(file)
    return sta.Config.from_file(file)


def configs(subject: Subject, options: argparse.Namespace) -> dict[str, sta.Config]:
    """Settings beside the methods' defaults."""
    if VideoModel.open(subject.model).family == "swin":
        more: dict[str, sta.Config] = {"sta, clip": sta.STAConfig(fill="clip")}
        more["random, clip"] = sta.RandomConfig(fill="clip", schedule="even")
    else:
        more = {"sta, merged": sta.STAConfig(merge=True, proportional=True)}
    return more | ({} if options.no_fit else {"fitted": fitted(subject, options)})


def budgets(subject: Subject, options: argparse.Namespace) -> list[float]:
    """Shares of the GFLOPs to save: as asked, or on real video what the paper's r save."""
    if options.saved or subject.data not in HELD_OUT:
        return options.saved or list(SAVED)
    opened = VideoModel.open(subject.model)
    skeleton, shape = meta_copy(opened.model), opened.clip.shape()
    unpruned, tokens = sta.gflops(skeleton, shape), opened.frame_tokens[0]
    kept = [
        sta.gflops(sta.apply(skeleton, sta.STAConfig(r=round(share * tokens))), shape) / unpruned
        for share in PAPER[opened.family]
    ]
    return [*(round(1 - share, 4) for share in kept), SAVED[-1]]


def compare(subject: Subject, options: argparse.Namespace) -> None:
    source, root = clips_of(subject, options.folder, subject.camera)
    more = {} if options.methods else configs(subject, options)
    methods, shares = options.methods or comparable_methods(), budgets(subject, options)
    limit = options.clips or (DIGITS if root is None and "digits" in source else None)
    for match in options.match:
        name = subject.name + ("-time" if match == "time" else "")
        result = sta.compare(
            source,
            subject.model,
            methods=methods,
            configs=more,
            rival=OURS if OURS in methods else None,
            saved=shares,
            match=match,
            root=root,
            clips=limit,
            calibrate=training_clips(subject, options.folder),
            out=WORK / (name if not options.add else "-".join([name, *map(str, shares), *methods])),
            batch_size=options.batch_size,
            rounds=options.rounds,
            precision=options.precision,
        )
        content = result.to_dict()
        data = f"{subject.data}, {subject.camera} camera" if subject.data in HELD_OUT else source
        for row in content["rows"]:  # no place of this machine
            row |= {"model": subject.name, "data": data}
        content["left_out"] = [
            line.replace(subject.model, subject.name) for line in content["left_out"]
        ]
        if match == "time":
            content["processor"] = f"{processor()}, {torch.get_num_threads()} threads"
        if options.add:
            add_earlier(content, OUT / f"compare/{name}.json")
        write(f"compare/{name}", content)
        if match == "gflops" and subject.name in embedded.names():  # `sta ui` draws it
            results.write_curve(subject.name, content["rows"])
        print(result)


def add_earlier(content: dict[str, Any], file: Path) -> None:
    """Add rows of an earlier run, of what was not measured now, on the same clips."""
    if not file.exists():
        return
    earlier = json.loads(file.read_text())
    unpruned, before = content["rows"][0], earlier["rows"][0]
    for part in ("data", "clips", "top1"):
        if unpruned[part] != before[part]:
            raise SystemExit(f"{file}: {part} was {before[part]}, is {unpruned[part]}: not added")
    for part in ("processor", "precision"):
        if content.get(part) != earlier.get(part):
            raise SystemExit(f"{file}: {part} was {earlier.get(part)}: not added")
    measured = {(row["method"], row["saved"]) for row in content["rows"]}
    content["rows"] += [r for r in earlier["rows"] if (r["method"], r["saved"]) not in measured]
    order = list(dict.fromkeys(row["method"] for row in earlier["rows"] + content["rows"]))
    content["rows"].sort(key=lambda row: (order.index(row["method"]), row["saved"] or 0))
    content["left_out"] = list(dict.fromkeys(content["left_out"] + earlier["left_out"]))


def controls(subject: Subject, options: argparse.Namespace) -> None:
    if subject.data not in HELD_OUT:
        return
    rows = []
    for variant in ("single", "shuffled"):
        source, root = clips_of(subject, options.folder, variant)
        found = sta.evaluate(
            source,
            subject.model,
            root=root,
            clips=options.clips,
            batch_size=options.batch_size,
        )
        rows.append({"control": variant, **found.records()[0]})
        print(subject.name, variant, f"{rows[-1]['top1']:.1%} of {rows[-1]['clips']}")
    write(f"compare/{subject.name}-controls", rows)


def redundancy(subject: Subject, options: argparse.Namespace) -> None:
    """S and GradNorm of STA and random dropping, at the paper's largest r."""
    if subject.data not in HELD_OUT or subject.camera != "still":
        return
    source, root = clips_of(subject, options.folder, subject.camera)
    opened = VideoModel.open(subject.model)
    found = sta.analyze(
        source,
        opened,
        root=root,
        r=round(PAPER[opened.family][-1] * opened.frame_tokens[0]),
        gradnorm=True,
        clips=options.clips,
    )
    write(f"compare/{subject.name}-redundancy", found.to_dict())
    print(found)


def ablations(subject: Subject, options: argparse.Namespace) -> None:
    source, root = clips_of(subject, options.folder, subject.camera)
    kept = WORK / f"{subject.name}-ablations.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    result = sta.ablate(
        options.studies or (),
        model=subject.model,
        data=source,
        root=root,
        r=options.ablate_r or VideoModel.open(subject.model).default_r,
        clips=options.clips or 512,
        batch_size=options.batch_size,
        precision=options.precision,
        out=kept,
        resume=kept.exists(),
    )
    about = {"model": subject.name, "data": subject.data}  # no place of this machine
    write(f"{subject.name}-ablations", {**result.report, **about})
    print(result)


def write(name: str, content: Any) -> None:
    path = OUT / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def estimate(subject: Subject, options: argparse.Namespace) -> None:
    """Print the minutes of `compare`: a batch of the unpruned model, times what will be run."""
    opened = VideoModel.open(subject.model)
    pixels = opened.pixels(drawn_clips(range(options.batch_size), opened.clip.views))
    with torch.no_grad():
        opened.model(pixels)
        start = time.perf_counter()
        opened.model(pixels)
    each = (time.perf_counter() - start) / options.batch_size
    source, root = clips_of(subject, options.folder, "still")
    count = options.clips or (
        DIGITS if root is None else len(Path(source).read_text().splitlines())
    )
    # Two more seeds of random dropping, and two more settings.
    entrants = len(options.methods or comparable_methods()) + 2 + 2
    work = 1 + entrants * sum(1 - saved for saved in budgets(subject, options))
    minutes = len(options.match) * each * count * work / 60
    print(f"{subject.name}: {count} clips, about {minutes:.0f} minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="real clips and their lists")
    parser.add_argument("--models", nargs="+", help="all that can be run without")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS[:-1])
    parser.add_argument("--methods", nargs="+", help="these alone; all that a model takes without")
    parser.add_argument("--saved", type=float, nargs="+", help="shares of the GFLOPs")
    parser.add_argument(
        "--match", nargs="+", choices=("gflops", "time"), default=["gflops", "time"]
    )
    parser.add_argument("--no-fit", action="store_true", help='without "fitted"')
    parser.add_argument("--ablate-r", type=int, help="a third of a frame's tokens without")
    parser.add_argument("--studies", nargs="+", help="ablations; all without")
    parser.add_argument(
        "--add", action="store_true", help="to what is in docs/results, instead of replacing it"
    )
    parser.add_argument("--clips", type=int, help="the first ones; all real, 1,024 of digits")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5, help="of timing; 0: none")
    parser.add_argument("--precision", default="float32", help="bfloat16 where it is fast")
    parser.add_argument("--estimate", action="store_true", help="only say how long it takes")
    options = parser.parse_args()
    if not options.rounds and "time" in options.match:
        options.match = ["gflops"]
    for subject in subjects(options):
        if options.estimate:
            estimate(subject, options)
            continue
        for part in options.only:
            globals()[part](subject, options)
    if not options.estimate:
        results.write_all(OUT.parent)


if __name__ == "__main__":
    main()
