"""Write the card of each model in `weights`, from what was measured of it.

python benchmarks/real/cards.py
"""

from __future__ import annotations

import json
from pathlib import Path

import sta
from sta.backbones.zoo.video_model import VideoModel

HERE = Path(__file__).resolve().parent
WEIGHTS = HERE / "weights"
RESULTS = HERE.parents[1] / "docs/results/compare"
DATA = {
    "lsa64": (
        "LSA64, Argentinian sign language, 64 signs",
        "signers 001 to 006",
        "signers 007 and 008",
        "LSA64 is by F. Ronchetti et al., CC BY-NC-SA 4.0; so are these weights: not for\n"
        "commercial use, to be shared alike.",
    ),
    "gestures": (
        "five hand gestures before a webcam",
        "all days but one",
        "7 September 2018",
        "The terms of the clips are unclear: use these weights for research only.",
    ),
    "arid": (
        "ARID 1.1, ten actions in the dark",
        "all groups but 1, 4, 9 and 13",
        "groups 1, 4, 9 and 13",
        "ARID states no terms: use these weights for research only.",
    ),
}


def percent(row: dict, name: str = "top1") -> str:
    low, high = (100 * row[f"{name}_{end}"] for end in ("low", "high"))
    return f"{100 * row[name]:.1f} % ({low:.1f} to {high:.1f})"


def card(name: str) -> str:
    """The text of a model's card."""
    what, trained_on, held_out, terms = next(v for k, v in DATA.items() if k in name)
    data = next(k for k in DATA if k in name)
    opened = VideoModel.open(WEIGHTS / name)
    views, model = opened.clip.views, opened.model
    weights = sum(p.numel() for p in model.parameters())
    moving = name.endswith("-camera")
    share = json.loads((WEIGHTS / name / "training.json").read_text())["camera"]
    measured = json.loads((RESULTS / f"{name}.json").read_text())
    rows, precision = measured["rows"], measured.get("precision", "float32")
    camera = "with a camera that stands still"
    if share:
        camera = f"{100 * share:.0f} % of the clips panned, zoomed and shaken"
    lines = [
        f"# {name}",
        "",
        f"`{type(model).__name__}`, {weights / 1e6:.1f} million weights, stored in float16; "
        f"{views.frames} frames of {views.size} x {views.size} pixels, "
        f"{sta.gflops(model, opened.clip.shape()):.2f} GFLOPs.",
        f"Trained dense on {what}: {trained_on}, {camera}. Tokens were never dropped in training.",
        "",
        f"Top-1 on {rows[0]['clips']} clips that it was not trained on ({held_out}"
        f"{', under a moving camera' if moving else ''}), in {precision}, 95 % intervals:",
        "",
        "| | r | GFLOPs | accuracy |",
        "|---|--:|--:|--:|",
    ]
    for row in rows:
        if row["method"] in ("unpruned", "ward", "sta"):
            lines.append(f"| {row['method']} | {row['r']} | {row['gflops']:.2f} | {percent(row)} |")
    controls = RESULTS / f"{name}-controls.json"
    if controls.exists():
        both = {row["control"]: percent(row) for row in json.loads(controls.read_text())}
        lines += [
            "",
            f"Controls, unpruned: {both['single']} with the middle frame alone, "
            f"{both['shuffled']} with the frames in any order.",
        ]
    source = f"lists/{data}-val.txt --root FOLDER"
    lines += ["", "```"]
    if moving:
        lines += [
            f"sta data cache {source} --out val --size {max(128, views.size)} --frames 32",
            "python benchmarks/real/variants.py val --as moving --out val-moving",
        ]
        source = "val-moving"
    drops = " ".join(str(row["r"]) for row in rows if row["method"] in ("unpruned", "sta"))
    as_measured = "" if precision == "float32" else f" --precision {precision}"
    lines += [
        f"sta eval {source} --model benchmarks/real/weights/{name} --r {drops}{as_measured}",
        "```",
        "",
        f"{terms} See [the licences](../LICENSE.md).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    for folder in sorted(path.parent for path in WEIGHTS.glob("*/config.json")):
        if (RESULTS / f"{folder.name}.json").exists():
            (folder / "README.md").write_text(card(folder.name))
            print(folder.name)


if __name__ == "__main__":
    main()
