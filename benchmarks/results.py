"""Write the tables and the picture of the docs, from what was measured; measures nothing.

    python benchmarks/results.py

What benchmarks/compare.py, speed.py, stts.py, training.py and real/training.py wrote into
docs/results goes between the pages' markers, <!-- table:NAME --> and <!-- end -->, and is printed,
too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sta.backbones.zoo import embedded

sys.path.insert(0, str(Path(__file__).resolve().parent))
from speed_tables import markdown, speed_tables

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = Sequence[dict[str, Any]]


def write_curve(model: str, rows: Rows) -> None:
    """Keep the methods' rows with the weights of an embedded model: `sta ui` draws them."""
    named = [{**row, "method": row["method"].partition(", mean")[0]} for row in seeds_in_one(rows)]
    path = embedded.FOLDER / f"{model}.curve.json"
    path.write_text(json.dumps(named, indent=1) + "\n")


# Tables


def percent(row: dict[str, Any], name: str, sign: str = "") -> str:
    if row.get(name) is None:
        return ""
    text = f"{100 * row[name]:{sign}.1f}"
    if f"{name}_low" in row and (name in ("top1", "difference") or name.startswith("to_")):
        low, high = (100 * row[f"{name}_{end}"] for end in ("low", "high"))
        text += f" ({low:{sign}.1f} to {high:{sign}.1f})"
    return text


def ablations_table(report: dict[str, Any]) -> str:
    r, clips, unpruned = report["default"]["r"], report["clips"], report["unpruned"]
    parts = [
        f"r={r}, {clips:,} clips; the unpruned model has {percent(unpruned, 'top1')} at "
        f"{unpruned['gflops']:.3f} GFLOPs."
    ]
    if (precision := report.get("precision", "float32")) != "float32":
        parts[0] += f" In {precision}."
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


def choices_table(report: dict[str, Any]) -> str:
    """What each choice changes to the default, points; bold beyond the interval."""
    body = []
    for study in report["studies"]:
        rows = [row for row in study["rows"] if row.get("difference") is not None]
        if not rows or study["name"] == "views":
            continue
        cells = []
        for row in rows:
            less = f"{100 * row['difference']:+.1f}"
            sure = row["difference_low"] > 0 or row["difference_high"] < 0
            cells.append(f"{row['variant']} {f'**{less}**' if sure else less}")
        default = next(row["variant"] for row in study["rows"] if row["default"])
        body.append([study["title"], default, "; ".join(cells)])
    return markdown(("choice", "default", "others, points to it"), body)


def compare_table(result: dict[str, Any]) -> str:
    """What `sta compare` measured of one model; the seeds of random dropping in one row."""
    rows = seeds_in_one(result["rows"])
    heads = ("method", "r", "GFLOPs", "time", "accuracy, %", "to unpruned, points")
    rivals = [name for name in ("to_random", "to_ward") if any(name in row for row in rows)]
    body = []
    for row in rows:
        time = "" if row["speedup"] is None else f"{1 / row['speedup']:.2f}"
        cells = [row["method"], str(row["r"]), f"{row['gflops']:.2f}", time, percent(row, "top1")]
        cells += [percent(row, name, "+") for name in ("difference", *rivals)]
        body.append([*cells, percent(row, "agreement"), f"{row['kl']:.4f}"])
    about = f"{rows[0]['clips']:,} clips of {rows[0]['data']}, at the same {result['match']}."
    if "processor" in result:
        about += f" {result['processor']}, {result['precision']}."
    heads = (*heads, *(f"{name.replace('_', ' ')}, points" for name in rivals))
    heads = (*heads, "agreement, %", "KL")
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


def redundancy_table(results: dict[str, dict[str, Any]]) -> str:
    """S and the share of the gradient on kept tokens, of each model's methods."""

    def between(row: dict[str, Any], name: str, percent: bool = False) -> str:
        values = [row[part] * (100 if percent else 1) for part in (name, "low", "high")]
        digits = 1 if percent else 3
        value, low, high = (f"{value:.{digits}f}" for value in values)
        return f"{value} ({low} to {high})"

    body = []
    for model, result in results.items():
        for row in result["S"]:
            steps = [one for one in result["gradnorm"] if one["method"] == row["method"]]
            cells = [model, row["method"], str(row["clips"]), between(row, "S"), "", ""]
            if steps:
                cells[4:] = [
                    f"{100 * steps[-1]['tokens']:.1f}",
                    between(steps[-1], "gradient", True),
                ]
            body.append(cells)
    heads = ("model", "method", "clips", "S", "tokens kept, %", "gradient on them, %")
    return markdown(heads, body)


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


#: In the short table, at half the GFLOPs; random dropping is the last column.
SHORT = ("ward", "sta", "sta, merged", "paper", "tome", "vid-tldr", "frame-difference")
#: What the paper compares, and the method that loses least.
PAPER = ("sta", "paper", "released", "tome", "frame-difference", "ward")
#: What saves more or less than its budget by this is said to.
OFF = 0.03
#: In the summary, where they were measured.
SUMMARY = (
    "ward",
    "fitted",
    "sta",
    "sta, merged",
    "sta, clip",
    "paper",
    "released",
    "tome",
    "vid-tldr",
    "k-centre",
    "frame-difference",
    "patch-change",
    "rlt",
    "auto",
    "random, clip",
)


def summary_table(
    results: Sequence[dict[str, Any]],
    names: Sequence[str] = SUMMARY,
    *,
    value: str = "difference",
) -> str:
    """Each model unpruned, and a value of each method at each budget: what it changes, how far
    it is above random dropping ("to_random"), or how it diverges ("kl").

    Where a method misses a budget, what it saves stands beside it.
    """

    def cell(row: dict[str, Any], unpruned: dict[str, Any]) -> str:
        text = f"{row['kl']:.2g}" if value == "kl" else percent(row, value, "+")
        reached = share_saved(row, unpruned, results[0]["match"])
        return text if abs(reached - row["saved"]) < OFF else f"{text} at -{100 * reached:.0f} %"

    body = []
    columns = [name for name in (*names, "random") if f"to_{name}" != value]
    for result in results:
        rows = seeds_in_one(result["rows"])
        for saved in sorted({row["saved"] for row in rows if row["saved"]}):
            level = {
                row["method"].partition(", mean")[0]: row for row in rows if row["saved"] == saved
            }
            cells = [f"{rows[0]['model']}, {rows[0]['clips']:,}", f"{100 * rows[0]['top1']:.1f}"]
            cells.append(f"-{100 * saved:.0f} %")
            for name in columns:
                cells.append(cell(level[name], rows[0]) if name in level else "")
            body.append(cells)
    heads = ["model, clips", "unpruned, %", results[0]["match"].replace("gflops", "GFLOPs")]
    heads += columns
    used = [n for n in range(len(heads)) if any(cells[n] for cells in body)]
    return markdown([heads[n] for n in used], [[cells[n] for n in used] for cells in body])


def share_saved(row: dict[str, Any], unpruned: dict[str, Any], match: str) -> float:
    """The share of the unpruned model's GFLOPs, or time, that a row saves."""
    if match == "time":
        return 1 - 1 / row["speedup"]
    return 1 - row["gflops"] / unpruned["gflops"]


def fit_table(rows: Rows) -> str:
    """What `sta.fit` chooses by each data set's clips."""
    body = []
    for row in rows:
        lost = f"{row['kl_on_own']:.2g}"
        body.append([row["model"], row["clips_of"], str(row["clips"]), row["chosen"], lost])
    heads = ("model", "clips of", "clips", "chosen", "KL of it on the model's own data")
    return markdown(heads, body)


def stts_table(result: dict[str, Any]) -> str:
    """STTS beside STA and random dropping on the same backbone."""
    heads = ("weights", "method", "r", "GFLOPs", "accuracy, %", "to STTS, points")
    body = []
    for row in seeds_in_one(result["rows"]):
        if row["model"] != "as it was" and row["method"].startswith("random"):
            continue
        cells = [row["model"], row["method"], str(row["r"]), f"{row['gflops']:.3f}"]
        less = "" if row["method"] == "stts" else percent(row, "to_stts", "+")
        body.append([str(row["stts_r"]), *cells, percent(row, "top1"), less])
    about = f"{result['model']}, {result['rows'][0]['clips']:,} clips, STTS trained on "
    about += f"{result['training_clips']:,}."
    return f"{about}\n\n{markdown(('frames that STTS drops', *heads), body)}"


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


def ward_table(result: dict[str, Any]) -> str:
    """Divergence of Ward merging without each of its parts."""
    found = {(r["variant"], r["model"], r["saved"]): r for r in result["rows"]}
    columns = list(dict.fromkeys(key[1:] for key in found))
    heads = ["", *(f"{model}, -{100 * saved:.0f} %" for model, saved in columns)]
    body = [
        [variant, *(f"{found[variant, *column]['kl']:.2g}" for column in columns)]
        for variant in dict.fromkeys(key[0] for key in found)
    ]
    return markdown(heads, body)


def takes_table(result: dict[str, Any]) -> str:
    """Methods on several takes of each clip, with intervals of clips."""
    heads = ("model, clips x takes", "method", "r", "accuracy, %", "to unpruned, points")
    body = []
    for row in result["rows"]:
        cells = [f"{row['model']}, {row['clips']} x {row['takes']}", row["method"], str(row["r"])]
        cells += [percent(row, "top1"), percent(row, "difference", "+")]
        body.append([*cells, percent(row, "to_random", "+")])
    return markdown((*heads, "to random, points"), body)


TABLES = {
    "takes": takes_table,
    "ward": ward_table,
    "real-training": real_training_table,
    "ablations": ablations_table,
    "training": training_table,
    "fit": fit_table,
}


def read_comparisons(folder: Path) -> dict[str, Any]:
    """What is in docs/results/compare, by name."""
    files = sorted((folder / "compare").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in files}


def tables(folder: Path) -> dict[str, str]:
    """Every table whose measurement is there, by the name in its marker."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        kind = next((kind for kind in TABLES if kind in path.stem), None)
        if kind is not None:
            found[path.stem] = TABLES[kind](json.loads(path.read_text()))
    if (real := folder / "vit-lsa64-ablations.json").exists():
        found["choices"] = choices_table(json.loads(real.read_text()))
    found |= speed_tables(folder / "speed")
    parts: list[str] = []
    by_match: dict[str, list[dict[str, Any]]] = {"gflops": [], "time": []}
    redundancy: dict[str, dict[str, Any]] = {}
    for name, content in read_comparisons(folder).items():
        if name.startswith("stts"):
            found[name] = stts_table(content)
        elif name.endswith("-redundancy"):
            redundancy[name.removesuffix("-redundancy")] = content
        elif name.endswith("-controls"):
            parts.append(
                f"### {name.replace('-controls', ', controls')}\n{controls_table(content)}"
            )
        else:
            parts.append(
                f"### {name.replace('-time', ', the same time')}\n{compare_table(content)}"
            )
            by_match[content["match"]].append(content)
    if parts:
        found["compare"] = "\n\n".join(parts) + "\n"
    for match, name in (("gflops", "summary"), ("time", "summary-time")):
        if by_match[match]:
            found[name] = summary_table(by_match[match])
            found[f"{name}-kl"] = summary_table(by_match[match], value="kl")
    half, half_time = (
        sorted((at_half(one) for one in by_match[match]), key=real_first)
        for match in ("gflops", "time")
    )
    if half:
        found["half"] = summary_table(half, SHORT)
        found["half-to-random"] = summary_table(half, SHORT, value="to_random")
        if paired := [one for one in half if any("to_ward" in row for row in one["rows"])]:
            found["half-to-ward"] = summary_table(paired, value="to_ward")
        found["half-kl"] = summary_table(half, SHORT, value="kl")
    if half_time:
        found["half-time"] = summary_table(half_time, SHORT)
    if redundancy:
        found["redundancy"] = redundancy_table(redundancy)
    # In short, of models that tell most clips right: `vit-arid` hardly does better than chance.
    useful = [one for one in half if one["rows"][0]["top1"] > 0.5]
    budgets = [one for one in sorted(by_match["gflops"], key=real_first) if is_real(one)]
    if budgets:
        found["real-budgets"] = summary_table(budgets, PAPER)
        found["real-budgets-to-random"] = summary_table(budgets, PAPER, value="to_random")
    if real := [one for one in useful if is_real(one)]:
        found["real-short"] = summary_table(real, ("ward", "sta, merged", "sta", "paper", "tome"))
    return found


def is_real(result: dict[str, Any]) -> bool:
    """Whether clips were filmed."""
    return "digits" not in result["rows"][0]["data"]


def at_half(result: dict[str, Any]) -> dict[str, Any]:
    """The budget closest to half of the GFLOPs alone."""
    budgets = [row["saved"] for row in result["rows"] if row["saved"]]
    half = min(budgets, key=lambda saved: abs(saved - 0.5))
    return {**result, "rows": [row for row in result["rows"] if row["saved"] in (None, half)]}


def real_first(result: dict[str, Any]) -> tuple[bool, bool, str]:
    """Order of models: real video before generated, the paper's first backbone before the other."""
    row = result["rows"][0]
    return not is_real(result), row["model"].startswith("swin"), row["model"]


#: Models in the picture on top of the results: still and moving cameras, both kinds of backbone.
DRAWN = ("vit-lsa64", "vit-lsa64-camera", "swin-lsa64", "vit-digits-jitter")


def draw(folder: Path) -> None:
    """The methods of the short table at the same GFLOPs; all models and methods are in tables."""
    from sta.tuning.plots import draw_comparison as draw_rows

    read = read_comparisons(folder)
    names = ("unpruned", *SHORT, "random")
    rows = [
        row
        for model in DRAWN
        for row in read.get(model, {}).get("rows", ())
        if row["method"].partition(", seed")[0] in names
    ]
    if rows:
        draw_rows(rows, folder / "compare.png")


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


def write_all(docs: Path) -> dict[str, str]:
    """Fill the pages and draw; the tables."""
    folder = docs / "results"
    found = tables(folder)
    draw(folder)
    pages = [docs.parent / "README.md", docs / "results.md", docs / "performance.md"]
    pages += [folder / f"{name}.md" for name in ("real-video", "generated-video", "tables")]
    for name in write_pages([page for page in pages if page.exists()], found):
        print(f"no page has the marker <!-- table:{name} -->", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of results.md")
    for name, table in write_all(parser.parse_args().docs.resolve()).items():
        print(f"## {name}\n\n{table}\n")


if __name__ == "__main__":
    main()
