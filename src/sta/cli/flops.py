"""`sta flops`: the paper's GFLOPs tables beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sta.backbones.zoo.spec import ZooModel


def flops(
    model: Annotated[
        list[str] | None,
        typer.Argument(help="Names of the zoo, e.g. vit-b-k400. Default: all of the paper's."),
    ] = None,
    r: Annotated[
        list[int] | None, typer.Option(help="Tokens dropped per frame. Default: the paper's.")
    ] = None,
    published: Annotated[
        bool,
        typer.Option(
            "--published", help="The models that the paper compares with (tables 4 and 5), instead."
        ),
    ] = False,
) -> None:
    """Count GFLOPs of the zoo's backbones, stock and pruned, beside the paper's own figures.

    One GFLOP is a billion multiply-accumulates, as in the paper. Nothing is downloaded or computed:
    the count runs on the meta device. For Video Swin the paper counts the queries of all tokens in
    window attention; the last column has those of kept tokens only, which is less.

    With --published: GFLOPs of one view and accuracies of other models, our count for those
    whose classes transformers and torchvision have, and STA's rows; below the gap, what leaves
    tokens out.
    """
    from rich.console import Console

    from sta.backbones.zoo.entries import PAPER, find
    from sta.cli.models import FAMILIES

    console = Console()
    if published:
        if model or r:
            raise ValueError("--published prints the paper's tables: leave the models and --r out")
        console.print(_comparison("k400", "Kinetics-400: GFLOPs of one view"))
        console.print(_comparison("ssv2", "Something-Something V2: GFLOPs of one view"))
        return
    models = [find(name) for name in model] if model else list(PAPER)
    for family, title in FAMILIES.items():
        chosen = [m for m in models if m.family == family]
        if chosen:
            console.print(_table(title, chosen, r))


def _table(title: str, models: list[ZooModel], rs: list[int] | None) -> RenderableType:
    from sta.results import table

    swin = models[0].family == "swin"
    heads = ["model", "r", "paper", "sta", "difference", "saved"]
    rows: list[list[str] | None] = []
    for model in models:
        counted = _count(model, rs or sorted(model.gflops))
        dense = counted[0][1]
        for number, (r, ours, kept) in enumerate(counted):
            paper = model.gflops.get(r) if model.official else None
            row = [
                model.name if number == 0 else "",
                str(r),
                "" if paper is None else f"{paper:.0f}",
                f"{ours:.2f}",
                "" if paper is None else f"{ours - paper:+.2f}",
                f"{1 - ours / dense:.0%}",
            ]
            rows.append([*row, *([f"{kept:.2f}"] if swin else [])])
        rows.append(None)
    heads += ["kept queries"] if swin else []
    return table(heads, rows, title=f"{title}: GFLOPs of one view")


def _count(model: ZooModel, rs: list[int]) -> list[tuple[int, float, float]]:
    """r, GFLOPs in the paper's accounting, and with kept queries only; the dense model first."""
    import torch

    import sta

    with torch.device("meta"):
        network = sta.load(model.name, weights=None)
    shape = model.clip.shape()
    out = []
    for r in dict.fromkeys([0, *rs]):
        both = [
            sta.gflops(sta.apply(network, sta.STAConfig(r=r, window_queries=queries)), shape)
            for queries in (("all", "kept") if model.family == "swin" and r else ("all",))
        ]
        out.append((r, both[0], both[-1]))
    return out


def _comparison(data_set: str, title: str) -> RenderableType:
    """The paper's comparison on one data set, with our count beside the published figures."""
    from sta.measure.published import ROWS
    from sta.results import table

    chosen = [row for row in ROWS if row.data_set == data_set]
    rows: list[list[str] | None] = []
    for number, row in enumerate(chosen):
        if number and row.drops != chosen[number - 1].drops:
            rows.append(None)
        ours = row.count()
        rows.append(
            [
                row.name,
                f"{row.gflops:.0f}",
                "" if ours is None else f"{ours:.0f}",
                "x".join(map(str, row.views)),
                f"{row.top1:.1f}",
                row.counted_as,
            ]
        )
    heads = ["model", "published", "sta", "views", "top-1 %", "counted as"]
    return table(heads, rows, title=title)
