"""``sta models``: the backbones that ``sta.load`` knows by name."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sta.backbones.zoo.spec import ZooModel
    from sta.video.views import ViewSpec


FAMILIES = {
    "vit": "ViT (VideoMAE)",
    "swin": "VideoSwin",
    "vjepa2": "V-JEPA 2",
    "vivit": "ViViT",
}


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="Everything about one backbone, e.g. vit-b-k400; or a part of names."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the backbones of the zoo: their weights, clips, accuracy and GFLOPs.

    Accuracies and GFLOPs are the paper's, by r, the tokens dropped per frame at the first step.
    torchvision measured its copies of the weights anew, in another way; both are shown. V-JEPA 2
    and ViViT are newer: their accuracies are their publishers', their GFLOPs our count.
    """
    from rich.console import Console

    from sta.backbones.zoo import embedded
    from sta.backbones.zoo.entries import ALL

    matching = _matching(name)
    chosen = [model for model in ALL if model.name in matching]
    shipped = [own for own in embedded.names() if own in matching]
    if as_json:
        facts = {own: embedded.facts(own) for own in shipped}
        typer.echo(json.dumps({**facts, **{m.name: _facts(m) for m in chosen}}, indent=2))
        return
    if len(matching) == 1:
        typer.echo("\n".join(_lines(chosen[0])) if chosen else embedded.card(shipped[0]))
        return
    console = Console()
    for own in shipped:
        console.print(f"{own}: comes with the package; `sta models {own}` shows its card")
    for family, title in FAMILIES.items():
        if of_family := [model for model in chosen if model.family == family]:
            console.print(_table(title, of_family))
    console.print("Weights:")
    for model in chosen:
        console.print(f"  {model.name:<17} {model.source}", highlight=False)
    console.print("top-1 and GFLOPs: the paper's; of V-JEPA 2 and ViViT, publishers' and ours.")
    console.print("`sta models NAME` tells everything about one, and how to load it.")


def _matching(asked: str | None) -> list[str]:
    """Names of the zoo: the one asked for, else those that start with it, else that contain it."""
    import difflib

    from sta.backbones.zoo.entries import find, known
    from sta.backbones.zoo.fetch import names

    everything = names()
    if asked is None or asked in everything:
        return everything if asked is None else [asked]
    if known(asked):
        return [find(asked).name]  # which was shortened
    plain = {name: _plain(name) for name in everything}
    part = _plain(asked)
    for fits in (str.startswith, str.__contains__):
        if part and (found := [name for name in everything if fits(plain[name], part)]):
            return found
    near = difflib.get_close_matches(asked.lower(), everything, n=5, cutoff=0.5)
    hint = f"near it are {', '.join(near)}" if near else f"it has {', '.join(everything)}"
    raise ValueError(f"{asked!r} is not in the zoo, nor a part of a name there; {hint}")


def _plain(name: str) -> str:
    """V-JEPA 2 is spelt in many ways."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _table(title: str, chosen: list[ZooModel]) -> RenderableType:
    from sta.results import table

    steps = list(dict.fromkeys(r for model in chosen for r in model.gflops))
    rows = []
    for model in chosen:
        views = model.clip.views
        stride = "spread" if views.sampling == "uniform" else str(views.stride)
        clip = (f"{views.frames}x{views.size}²", stride, f"{views.temporal}x{views.spatial}")
        rows.append((model.name, *clip, "top-1 %", *(str(model.top1.get(r, "")) for r in steps)))
        if model.remeasured is not None:
            rows.append(("", "", "", "", "torchvision", f"{model.remeasured:.1f}"))
        gflops = (f"{model.gflops[r]:.0f}" if r in model.gflops else "" for r in steps)
        rows.append(("", "", "", "", "GFLOPs", *gflops))
    heads = ("name", "clip", "stride", "views", "", *(f"r={r}" for r in steps))
    return table(heads, rows, title=title, text=("clip", "stride", "views", ""))


def _lines(model: ZooModel) -> list[str]:
    views = model.clip.views
    of = " of the paper" if model.official else ""
    lines = [
        f"{model.name}: {model.title}{of}, on {model.data_set}",
        f"  weights   {model.source}, {model.source.url}",
    ]
    if model.official is not None:
        lines.append(f"  official  {model.official.name}, {model.official.url}")
    lines += [
        f"  clip      {views.frames} frames, {_pace(views)}, "
        f"{views.size} x {views.size} pixels, as {'x'.join(map(str, model.clip.shape()))} "
        f"(batch, {', '.join(model.clip.layout)})",
        f"  pixels    mean {model.clip.mean}, std {model.clip.std}",
        f"  views     {views.temporal} clips x {views.spatial} crops",
    ]
    for r, gflops in model.gflops.items():
        top1 = f"{model.top1[r]} % top-1, " if r in model.top1 else ""
        source = " (paper)" if model.official else ""
        lines.append(f"  r={r:<8} {top1}{gflops:.0f} GFLOPs a view{source}")
    if model.remeasured is not None:
        lines.append(f"            {model.remeasured} % top-1 at r=0, as torchvision measured it")
    file = ", or sta.load(path) with the official file's path" if model.official else ""
    return [
        *lines,
        f"  load      sta.load({model.name!r}){file};",
        f"            sta.load({model.name!r}, weights=None) for random weights",
    ]


def _facts(model: ZooModel) -> dict[str, Any]:
    return {
        **asdict(model),
        "source": {"name": str(model.source), "url": model.source.url},
        "input_shape": model.clip.shape(),
    }


def _pace(views: ViewSpec) -> str:
    if views.sampling == "uniform":
        return "evenly spread"
    return "every 2nd" if views.stride == 2 else f"every {views.stride}th"
