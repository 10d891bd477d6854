"""Measure the embedded models; write the tables and pictures of docs/results.md and its tables.md.

    python benchmarks/results.py [--models vit-digits swin-digits] [--clips 1024]
    python benchmarks/results.py --tables       # write the tables again, measure nothing

Per model: methods over r at matched GFLOPs, and all ablations. A run that was stopped goes on from
the rows in out/results (with other settings: remove them first). Tables go between the pages'
markers, <!-- table:NAME --> and <!-- end -->, and are printed, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sta
from sta.backbones.zoo import embedded
from sta.explain.style import ACCENT, BEFORE, INK, LINE
from sta.inference.evaluate import evaluation
from sta.inference.setup import Setup
from sta.measure.matching import matched

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "out/results"
MARKED = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = Sequence[dict[str, Any]]


def rows_file(model: str, what: str, clips: int) -> Path:
    """Where the rows of an unfinished run are kept: of these very weights."""
    digest = hashlib.sha256((embedded.FOLDER / f"{model}.safetensors").read_bytes()).hexdigest()
    return ROWS / f"{model}-{what}-{clips}-{digest[:12]}.jsonl"


def curve_file(model: str) -> Path:
    """Where the methods' rows are kept: with the weights, since `sta ui` draws them."""
    return embedded.FOLDER / f"{model}.curve.json"


def forget(kept: Path) -> None:
    """What was measured is in its table: the next run starts anew."""
    for path in kept.parent.glob(f"{kept.name}*"):
        path.unlink()


def measure_methods(
    model: str, drops: Sequence[int], clips: int, temperature: float, batch: int
) -> list[dict[str, Any]]:
    """Methods at matched GFLOPs, on the same clips; STA also with settings beyond the paper's."""
    setup = Setup.make(model, methods=())
    names = ["random", "tome", "frame-difference"]
    windows = setup.opened.family == "swin"
    if windows:
        names.remove("tome")  # merged tokens have no place in its windows
    setup.methods = matched(setup.opened, names, (0, *drops))
    beyond: dict[str, dict[str, Any]] = {
        f"sta, temperature {temperature:g}": {"temperature": temperature},
        "sta, norm": {"semantic": "norm"},
        f"sta, norm, temperature {temperature:g}": {"semantic": "norm", "temperature": temperature},
    }
    for name, settings in beyond.items():
        for r in drops:
            setup.methods[name, r] = sta.STAConfig(r=r, **settings)
    if windows:  # the same choices, with another token in the place of what is dropped
        for (name, r), config in list(setup.methods.items()):
            fills = isinstance(config, sta.RandomConfig | sta.FrameDifferenceConfig)
            if fills or getattr(config, "semantic", "") == "deviation":
                setup.methods[f"{name}, clip", r] = replace(config, fill="clip")
    job = evaluation("digits", setup, setup.run(batch_size=batch), limit=clips)
    kept = rows_file(model, "methods", clips)
    result = job.collect(out=str(kept), resume=True)
    forget(kept)
    return result.table


def measure_ablations(model: str, out: Path, r: int, clips: int, batch: int) -> None:
    name = f"{model}-ablations"
    words = ["ablate", "all", "--model", model, "--r", r, "--clips", clips, "--batch-size", batch]
    words += ["--json", out / f"{name}.json", "--plot", out / f"{name}.png"]
    kept = rows_file(model, "ablations", clips)
    words += ["--out", kept, "--resume"]
    subprocess.run([sys.executable, "-m", "sta", *map(str, words)], check=True, cwd=ROOT)
    forget(kept)


def draw_methods(rows: Rows, title: str, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    colours = iter((ACCENT, "#e08e45", "#5aa469", "#b0568f", "#c0392b", BEFORE, "#7a5230"))
    unpruned = next(row for row in rows if row["r"] == 0)
    used: dict[str, str] = {}  # by method, whatever fills its dropped places
    for method in dict.fromkeys(row["method"] for row in rows if row["r"]):
        points = [unpruned, *(row for row in rows if row["method"] == method and row["r"])]
        points.sort(key=lambda row: row["gflops"])
        x, y = ([row[name] for row in points] for name in ("gflops", "top1"))
        reach = [
            [100 * abs(row["top1"] - row[f"top1_{end}"]) for row in points]
            for end in ("low", "high")
        ]
        percent = [100 * value for value in y]
        base = method.removesuffix(", clip")
        used[base] = used.get(base) or next(colours)
        axes.errorbar(
            x,
            percent,
            reach,
            marker="o",
            ms=4,
            lw=1.2,
            ls="-" if method == base else "--",
            capsize=2,
            color=used[base],
            label=method,
        )
    axes.set_xlabel("GFLOPs a clip", color=INK)
    axes.set_ylabel("accuracy in %", color=INK)
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, lw=0.6)
    axes.legend(frameon=False, fontsize=7, loc="lower right")
    figure.savefig(path)


# Tables


def percent(row: dict[str, Any], name: str, sign: str = "") -> str:
    if row.get(name) is None:
        return ""
    text = f"{100 * row[name]:{sign}.1f}"
    if name in ("top1", "difference"):
        low, high = (100 * row[f"{name}_{end}"] for end in ("low", "high"))
        text += f" ({low:{sign}.1f} to {high:{sign}.1f})"
    return text


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *("--:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def methods_table(rows: Rows) -> str:
    heads = ("method", "r", "GFLOPs", "accuracy, %", "to unpruned, points", "agreement, %")
    body = []
    for row in rows:
        name = "unpruned" if row["r"] == 0 else row["method"]
        less = "" if row["r"] == 0 else percent(row, "difference", "+")
        cells = [name, str(row["r"]), f"{row['gflops']:.3f}", percent(row, "top1"), less]
        cells += [percent(row, part) for part in ("agreement", "motion", "colour")]
        body.append(cells)
    clips = rows[0]["clips"]
    return f"{clips:,} clips.\n\n" + markdown((*heads, "motion, %", "colour, %"), body)


def ablations_table(report: dict[str, Any]) -> str:
    r, clips, unpruned = report["default"]["r"], report["clips"], report["unpruned"]
    parts = [
        f"r={r}, {clips:,} clips; the unpruned model has {percent(unpruned, 'top1')} at "
        f"{unpruned['gflops']:.3f} GFLOPs."
    ]
    if any(row["default"] for study in report["studies"] for row in study["rows"]):
        parts[0] += " **Bold** is the default."
    shares = [name for name in ("agreement", "motion", "colour") if unpruned.get(name) is not None]
    for study in report["studies"]:
        reference = "unpruned" if study["name"] == "views" else "the default"
        heads = ["GFLOPs", "accuracy, %", f"to {reference}, points"]
        if study["left_out"] is not None:
            parts.append(f"{study['title']}: left out, {study['left_out']}.")
            continue
        body = []
        for row in study["rows"]:
            name = f"**{row['variant']}**" if row["default"] else row["variant"]
            if row["refused"] is not None:
                body.append([name, "", f"not possible: {row['refused']}", "", *[""] * len(shares)])
                continue
            less = "" if row["default"] else percent(row, "difference", "+")
            cells = [name, f"{row['gflops']:.3f}", percent(row, "top1"), less]
            body.append(cells + [percent(row, part) for part in shares])
        heads += [f"{name}, %" for name in shares]
        parts.append(markdown((study["title"], *heads), body))
    return "\n\n".join(parts)


def compare_table(result: dict[str, Any]) -> str:
    """What `sta compare` measured of one model; the seeds of random dropping in one row."""
    rows = seeds_in_one(result["rows"])
    heads = ("method", "r", "GFLOPs", "time", "accuracy, %", "to unpruned, points")
    body = []
    for row in rows:
        time = "" if row["speedup"] is None else f"{1 / row['speedup']:.2f}"
        cells = [row["method"], str(row["r"]), f"{row['gflops']:.2f}", time, percent(row, "top1")]
        cells += [percent(row, "difference", "+"), percent(row, "to_random", "+")]
        body.append([*cells, percent(row, "agreement"), f"{row['kl']:.4f}"])
    about = f"{rows[0]['clips']:,} clips of {rows[0]['data']}."
    heads = (*heads, "to random, points", "agreement, %", "KL")
    return f"{about}\n\n{markdown(heads, body)}"


def seeds_in_one(rows: Rows) -> list[dict[str, Any]]:
    """The rows, with the mean of the seeds of random dropping at each budget."""
    found: list[dict[str, Any]] = []
    drawn: dict[float, list[dict[str, Any]]] = {}
    for row in rows:
        if not row["method"].startswith("random, seed"):
            found.append(row)
            continue
        if row["saved"] not in drawn:
            drawn[row["saved"]] = []
            found.append({"saved": row["saved"], "method": "random"})
        drawn[row["saved"]].append(row)
    for number, row in enumerate(found):
        if row["method"] == "random":
            seeds = drawn[row["saved"]]
            mean = {
                name: sum(one[name] for one in seeds) / len(seeds)
                for name, value in seeds[0].items()
                if isinstance(value, float) and name != "saved"
            }
            found[number] = {**seeds[0], **mean, "method": f"random, mean of {len(seeds)} seeds"}
    return found


def controls_table(rows: Rows) -> str:
    body = [[f"{row['control']} frames", percent(row, "top1")] for row in rows]
    return markdown(("unpruned model on", "accuracy, %"), body)


def real_training_table(result: dict[str, Any]) -> str:
    """Training with STA beside dense training, on real video."""
    names = {
        "dense": "dense",
        "sta": f"STA, r={result['r']}",
        "sta, tested dense": f"STA, r={result['r']}, tested dense",
    }
    body = []
    for name, title in names.items():
        row = result["accuracy"][name]
        seconds = result["seconds_a_step"].get(name)
        low, high = (100 * value for value in row["interval"])
        cells = [title, "" if seconds is None else f"{seconds:.2f}"]
        cells.append(f"{100 * row['top1']:.1f} ({low:.1f} to {high:.1f})")
        less = ""
        if "difference" in row:
            low, high = (100 * value for value in row["difference_interval"])
            less = f"{100 * row['difference']:+.1f} ({low:+.1f} to {high:+.1f})"
        body.append([*cells, less])
    low, high = result["ratio_quartiles"]
    about = (
        f"{result['clips']:,} clips of {result['data']}, {result['batch_size']} at a time, steps "
        f"in turn: {result['ratio']:.2f} of the dense time a step (quartiles {low:.2f} to "
        f"{high:.2f}). {result['test_clips']} test clips."
    )
    heads = ("training", "seconds a step", "accuracy, %", "to dense, points")
    return f"{about}\n\n{markdown(heads, body)}"


#: In the summary of real video.
REAL_METHODS = ("sta, merged", "sta", "paper", "released", "tome", "frame-difference")


def real_table(
    results: dict[str, dict[str, Any]], names: Sequence[str] = REAL_METHODS, budgets: int = 2
) -> str:
    """Each model of real video: unpruned, and what each method changes at the last budgets."""
    heads = ["model, clips", "unpruned, %", "GFLOPs"]
    body = []
    for model, result in results.items():
        rows = seeds_in_one(result["rows"])
        for saved in sorted({row["saved"] for row in rows[1:]})[-budgets:]:
            level = {row["method"]: row for row in rows if row["saved"] == saved}
            level["random"] = next(row for name, row in level.items() if name[:7] == "random,")
            cells = [f"{model}, {rows[0]['clips']}", f"{100 * rows[0]['top1']:.1f}"]
            cells.append(f"-{100 * saved:.0f} %")
            for name in (*names, "random"):
                row = level.get(name)
                cells.append("" if row is None else percent(row, "difference", "+"))
            body.append(cells)
    return markdown([*heads, *names, "random"], body)


def training_table(result: dict[str, Any]) -> str:
    names = {"dense": "dense", "sta": f"STA, r={result['r']}"}
    times = ("epoch_seconds", "epoch_seconds_with_clips")
    rows = [[title, *(f"{result[t][name]:.0f}" for t in times)] for name, title in names.items()]
    rows.append(["ratio", *(f"{result[name]:.2f}" for name in ("ratio", "ratio_with_clips"))])
    about = (
        f"An epoch of {result['epoch_clips']:,} clips by the median of {result['steps']} steps of "
        f"{result['batch']} clips, {result['threads']} threads."
    )
    text = f"{about}\n\n{markdown(['training', 'seconds an epoch', 'with its clips'], rows)}"
    if "accuracy" not in result:
        return text
    rows = []
    for name, measured in result["accuracy"].items():
        trained, _, how = name.partition(", ")
        title = f"{names[trained]}, {how}" if how else names[trained]
        shares = [[100 * v for v in measured[part]] for part in ("joint", "motion", "colour")]
        cells = [f"{value:.1f} ({low:.1f} to {high:.1f})" for value, low, high in shares]
        rows.append([title, f"{result['hours'][trained]:.2f}", *cells])
    heads = ["training", "hours", "accuracy, %", "motion, %", "colour, %"]
    start = "from the embedded weights with a new head" if result["pretrained"] else "from scratch"
    about = f"After {result['clips']:,} clips {start}; {result['test_clips']:,} test clips."
    return f"{text}\n\n{about}\n\n{markdown(heads, rows)}"


def summary_table(curves: dict[str, Rows]) -> str:
    """Each model unpruned and at one r of STA; other methods at the GFLOPs closest to that."""
    body = []
    for model, rows in curves.items():
        cost = next(
            row["gflops"] for row in rows if (row["method"], row["r"]) == ("sta", SUMMARY[model])
        )
        chosen = [row for row in rows if row["r"] == 0]
        for method in ("sta", "random", "tome", "frame-difference", "sta, norm", "sta, clip"):
            own = [row for row in rows if row["method"] == method and row["r"]]
            chosen += sorted(own, key=lambda row: abs(row["gflops"] - cost))[:1]
        for row in chosen:
            name = "unpruned" if row["r"] == 0 else row["method"]
            less = "" if row["r"] == 0 else percent(row, "difference", "+")
            cells = [name, str(row["r"]), f"{row['gflops']:.3f}", percent(row, "top1"), less]
            body.append([model, *cells])
    heads = ("model", "method", "r", "GFLOPs", "accuracy, %", "to unpruned, points")
    clips = next(iter(curves.values()))[0]["clips"]
    return f"{clips:,} clips, 95 % intervals.\n\n" + markdown(heads, body)


#: STA's r in the table of both models.
SUMMARY = {"vit-digits": 24, "swin-digits": 22}
TABLES = {"methods": methods_table, "ablations": ablations_table, "training": training_table}
REAL = {
    "-controls": controls_table,
    "-ablations": ablations_table,
    "training": real_training_table,
    "": compare_table,
}


def tables(folder: Path) -> dict[str, str]:
    """Every table whose measurement is there, by the name in its marker."""
    files = {path.stem: path for path in sorted(folder.glob("*.json"))}
    files |= {f"{name}-methods": curve_file(name) for name in embedded.names()}
    found = {}
    for name, path in files.items():
        kind = next((kind for kind in TABLES if kind in name), None)
        if kind is not None and path.exists():
            found[name] = TABLES[kind](json.loads(path.read_text()))
    real = {}
    for path in sorted((folder / "real").glob("*.json")):
        content = json.loads(path.read_text())
        kind = next(kind for kind in REAL if path.stem.endswith(kind))
        found[f"real-{path.stem}"] = REAL[kind](content)
        if not kind:
            real[path.stem] = content
    if real:
        found["real"] = real_table(real)
        found["real-short"] = real_table(real, ("sta, merged", "sta", "tome"), budgets=1)
    curves = {name: curve_file(name) for name in SUMMARY}
    if all(path.exists() for path in curves.values()):
        found["summary"] = summary_table(
            {name: json.loads(path.read_text()) for name, path in curves.items()}
        )
    return found


def draw_real(folder: Path) -> None:
    """All models of real video in one picture."""
    from sta.tuning.compare_plot import draw

    files = sorted((folder / "real").glob("*.json"))
    read = [json.loads(path.read_text()) for path in files]
    compared = [result for result in read if isinstance(result, dict) and "rows" in result]
    rows = [row for result in compared for row in result["rows"]]
    if rows:
        draw(rows, folder / "real.png")


def write_pages(pages: Sequence[Path], found: dict[str, str]) -> list[str]:
    """Put the tables between their markers; names of those that no page has a marker for."""

    def fill(match: re.Match[str]) -> str:
        table = found.get(match["name"])
        return match[0] if table is None else f"{match[1]}{table}\n{match[3]}"

    marked: set[str] = set()
    for page in pages:
        text = page.read_text()
        page.write_text(MARKED.sub(fill, text))
        marked |= {match["name"] for match in MARKED.finditer(text)}
    return sorted(set(found) - marked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=embedded.names(), choices=embedded.names())
    parser.add_argument("--clips", type=int, default=1024)
    parser.add_argument("--r", type=int, nargs="+", default=[8, 16, 24, 32], help="of the methods")
    parser.add_argument("--ablate-r", type=int, default=24)
    parser.add_argument("--temperature", type=float, default=0.1, help="of the sharper STA")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of results.md")
    options = parser.parse_args()
    out = (options.docs / "results").resolve()
    pages = [options.docs.parent / "README.md", options.docs / "results.md", out / "tables.md"]
    for folder in (out, ROWS):
        folder.mkdir(parents=True, exist_ok=True)
    for model in () if options.tables else options.models:
        rows = measure_methods(
            model, options.r, options.clips, options.temperature, options.batch_size
        )
        curve_file(model).write_text(json.dumps(rows, indent=1) + "\n")
        draw_methods(rows, f"{model}, {options.clips:,} clips", out / f"{model}-methods.png")
        measure_ablations(model, out, options.ablate_r, options.clips, options.batch_size)
    found = tables(out)
    draw_real(out)
    for name in write_pages(pages, found):
        print(f"no page has the marker <!-- table:{name} -->", file=sys.stderr)
    for name, table in found.items():
        print(f"## {name}\n\n{table}\n")


if __name__ == "__main__":
    main()
