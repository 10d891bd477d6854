"""Methods: the registry, the page that says how to write one, and references for each choice."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import sta
from backbones import BACKBONES, SCORED, output
from inference_runs import environment
from outside import LargestConfig
from sta.backbones import find
from sta.core.k_centre import k_centres, position_patches
from sta.core.merge import ward_cost, ward_regions, ward_step
from sta.core.options import Budget
from sta.core.saliency import attention_sharpness, foreground_weight
from sta.core.tokens import Grid
from sta.methods import METHODS, Choice, Layout, SteppedConfig, make_config, register, title_of

ROOT = Path(__file__).parent.parent
VIDEOMAE = next(b for b in BACKBONES if b.name == "videomae")


def test_the_pages_code_is_the_methods() -> None:
    page = (ROOT / "docs/adding-a-method.md").read_text()
    folder = ROOT / "src/sta/methods"
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    shown = [
        block
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if not block.startswith("from")
    ]
    assert len(shown) == 2
    for block in shown:
        assert block in source


def test_every_method_is_listed_in_the_docs_and_runs_through_the_suite() -> None:
    page = (ROOT / "docs/methods.md").read_text()
    own = {name for name, config in METHODS.items() if config.__module__.startswith("sta.")}
    assert {name for name in own if f"`{name}`" not in page} == set()
    configs = [config for backbone in (*BACKBONES, SCORED) for config in backbone.configs]
    assert own - {"dense"} <= {config.method for config in configs}  # all backbones run dense


def test_methods_are_short_and_nothing_else_knows_their_names() -> None:
    for config in METHODS.values():
        source = inspect.getsource(inspect.getmodule(config))
        assert len(source.splitlines()) <= 150, config
    for name in ("patch-change", "PatchChangeConfig"):
        known = [p for p in (ROOT / "src/sta").rglob("*.py") if name in p.read_text()]
        assert [path.name for path in known] == ["patch_change.py"]


def test_configs_by_name() -> None:
    assert make_config("sta", 4) == sta.STAConfig(r=4)
    assert make_config("dense", 4) == sta.DenseConfig()
    assert make_config("patch-change", 4, groups=2) == sta.PatchChangeConfig(r=4, groups=2)
    with pytest.raises(ValueError, match="'magic' is unknown; use one of 'sta', 'ward'"):
        make_config("magic", 4)
    assert title_of(sta.STAConfig(r=4)) == "STA, r = 4"
    assert make_config("paper", 4) == sta.STAConfig.paper(4)
    assert make_config("paper", 4, order="BFB") == replace(sta.STAConfig.paper(4), order="BFB")
    with pytest.raises(AttributeError, match="MagicConfig"):
        sta.MagicConfig  # noqa: B018


@torch.no_grad()
@pytest.mark.parametrize(
    ("budget", "groups"), [("frame", [(0, 1), (2, 3)]), ("clip", [(0, 1, 2, 3)])]
)
def test_patch_change_keeps_what_moved_most_in_each_group(
    budget: Budget, groups: list[tuple[int, ...]]
) -> None:
    model, clip = VIDEOMAE.make(), VIDEOMAE.clip()  # 4 frames of 16 tokens
    r = 5
    sta.apply(model, sta.PatchChangeConfig(r=r, groups=2, budget=budget))
    model(clip)
    (kept,) = sta.kept(model)
    sta.remove(model)
    projection = model.videomae.embeddings.patch_embeddings.projection
    x = projection(clip.transpose(1, 2)).flatten(2).transpose(1, 2).reshape(2, 4, 16, -1)
    for b in range(2):
        expected = []
        for group in groups:
            change = {}
            for t in group:
                before, now = (t - 1, t) if t else (0, 1)
                for n in range(16):
                    change[t * 16 + n] = (x[b, now, n] - x[b, before, n]).square().sum().sqrt()
            best = sorted(change, key=lambda place: -change[place])[: len(group) * (16 - r)]
            expected += best
        assert kept[b].tolist() == sorted(expected)


@torch.no_grad()
def test_a_step_at_the_input_compares_embeddings() -> None:
    """STA may prune before the first block, where similarity is that of the embeddings."""
    model, clip = VIDEOMAE.make(), VIDEOMAE.clip()
    config = sta.STAConfig(schedule=(6, 2), blocks=(0, 3))
    sta.apply(model, config)
    model(clip)
    first, second = sta.kept(model)
    assert first.shape == (2, 4, 10)
    assert second.shape == (2, 4, 8)
    embedded = sta.remove(model).videomae.embeddings(clip, None).reshape(2, 4, 16, -1)
    expected = sta.prune_step(embedded, embedded, 6, semantic="deviation", grid=(4, 4))
    assert torch.equal(first, expected)
    assert sta.gflops(sta.apply(model, config), (1, *VIDEOMAE.shape)) < sta.gflops(
        sta.apply(model, sta.STAConfig(schedule=(6, 2), blocks=(1, 3))), (1, *VIDEOMAE.shape)
    )


def test_a_method_from_outside_is_evaluated(tmp_path: Path) -> None:
    """`sta eval` by a program that registers a method first."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport outside\nfrom sta.cli import main\n"
        "sys.argv = ['sta', 'eval', 'digits', '--clips', '4', '--method', 'largest', 'sta',"
        " '--r', '0', '16', '--json', sys.argv[1]]\nmain()\n"
    )
    table = tmp_path / "table.json"
    env = environment()
    env["PYTHONPATH"] += f":{Path(__file__).parent}"
    subprocess.run([sys.executable, str(program), str(table)], check=True, env=env)
    rows = json.loads(table.read_text())
    rows = rows["rows"] if isinstance(rows, dict) else rows
    assert [(row["method"], row["r"]) for row in rows] == [
        ("largest", 0),
        ("largest", 16),
        ("sta", 16),
    ]
    assert rows[1]["gflops"] < rows[0]["gflops"]
    assert METHODS["largest"] is LargestConfig


@torch.no_grad()
@pytest.mark.parametrize("name", ["videomae", "vjepa2", "vivit"])
def test_a_block_with_a_step_inside_is_the_stock_block(name: str) -> None:
    """Blocks are copied from transformers: a release that changes their order shows here."""
    backbone = next(b for b in BACKBONES if b.name == name)
    clip = backbone.clip()
    expected = output(backbone.make(), clip)
    model = sta.apply(backbone.make(), sta.ToMeConfig(r=2))
    for step in find(model).steps:
        step.drop = 0
    torch.testing.assert_close(output(model, clip), expected, rtol=0, atol=1e-5)


def test_k_centres_are_the_farthest_points_one_by_one() -> None:
    points = torch.randn(2, 13, 3, generator=torch.Generator().manual_seed(0))
    taken = k_centres(points, 7, seed=1)
    assert torch.equal(taken[0, :1], taken[1, :1])
    for b in range(2):
        expected = [int(taken[b, 0])]
        while len(expected) < 7:
            left = [i for i in range(13) if i not in expected]
            nearest = {
                i: min(float((points[b, i] - points[b, j]).norm()) for j in expected) for i in left
            }
            expected.append(max(left, key=nearest.__getitem__))
        assert taken[b].tolist() == expected


def test_points_are_pixels_and_weighted_places() -> None:
    pixels = torch.arange(4 * 3 * 4 * 6).float().reshape(1, 4, 3, 4, 6)
    points = position_patches(pixels, (2, 2, 3), grid=Grid(2, 2, 2), time=10.0, space=0.5)
    assert points.shape == (1, 8, 2 * 3 * 2 * 3 + 3)
    last = pixels[0, 2:, :, 2:, 3:].flatten()
    assert torch.equal(points[0, 7, :-3], last)
    assert points[0, 7, -3:].tolist() == [10.0, 0.5, 0.5]
    assert points[0, 4, -3:].tolist() == [10.0, 0.0, 0.0]


def test_sharpness_is_the_negative_entropy_of_the_mean_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 2, 5, 4, generator=generator) for _ in range(2))
    sharpness = attention_sharpness(query, key)
    for i in range(5):
        attention = torch.zeros(5)
        for head in range(2):
            logits = torch.stack([query[0, head, i] @ key[0, head, j] / 2 for j in range(5)])
            attention += logits.exp() / logits.exp().sum() / 2
        torch.testing.assert_close(sharpness[0, i], (attention * attention.log()).sum())
    weight = foreground_weight(torch.tensor([[0.0, 1.0, 2.0, 5.0]]))  # scaled: 0, .2, .4, 1
    torch.testing.assert_close(weight, torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    assert foreground_weight(torch.ones(1, 4)).eq(0).all()


@torch.no_grad()
def test_vid_tldr_drops_background_and_fades_the_rest() -> None:
    """One step by hand: what a source counts in its target's mean and size."""
    model, clip = VIDEOMAE.make(), VIDEOMAE.clip(batch=1)
    sta.apply(model, sta.VidTLDRConfig(r=12))
    seen = []
    steps = find(model).steps
    steps[0].observe = lambda site: seen.append((site, *site.queries_and_keys()))
    model(clip)
    site, query, key = seen[0]
    choice = steps[0].config.choose(site)
    assert choice.kept.shape == (1, 52)
    weight = foreground_weight(attention_sharpness(query, key))[0]
    kept = set(choice.kept[0].tolist())
    for token in range(64):
        expected = 1.0 if token in kept else float(weight[token])
        assert float(choice.weights[0, token, 0]) == pytest.approx(expected)
    assert [k.shape[1] for k in sta.kept(model)] == [52, 48, 46]


@pytest.mark.parametrize("merged", [False, True])
def test_ward_merges_the_cheapest_pairs(merged: bool) -> None:
    """Pair by pair: the rise of the squared error, times the deviation of the one that goes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 11, 5, generator=generator)
    sizes = torch.randint(1, 6, (2, 11, 1), generator=generator).float() if merged else None
    kept, into = ward_step(x, sizes, 4)
    for b in range(2):
        unit = [(row - row.mean()) / (row - row.mean()).norm() for row in x[b]]
        size = [1.0] * 11 if sizes is None else sizes[b, :, 0].tolist()
        best = {}
        for i in range(0, 11, 2):
            pairs = {}
            for j in range(1, 11, 2):
                mean = (size[i] * unit[i] + size[j] * unit[j]) / (size[i] + size[j])
                error = sum(size[k] * (unit[k] - mean).square().sum() for k in (i, j))
                pairs[j] = float(error)
            target = min(pairs, key=pairs.__getitem__)
            best[i] = (pairs[target] * float((x[b, i] - x[b].mean(0)).abs().sum()), target)
        gone = sorted(best, key=lambda i: best[i][0])[:4]
        assert kept[b].tolist() == [i for i in range(11) if i not in gone]
        for i in range(11):
            assert kept[b, into[b, i]] == (best[i][1] if i in gone else i)


def ward_regions_by_hand(x: torch.Tensor, grid: Grid, keep: int) -> list[set[int]]:
    """Regions of one clip, (T * H * W, D), merged step by step with sets of places."""
    _, height, width = grid
    place = {
        number: (number // (height * width), number // width % height, number % width)
        for number in range(len(x))
    }

    def touch(one: set[int], other: set[int]) -> bool:
        gaps = [
            [abs(u - v) for u, v in zip(place[p], place[q], strict=True)]
            for p in one
            for q in other
        ]
        return any(sum(gap) == 1 for gap in gaps)

    regions = [{number} for number in range(len(x))]
    side = [sum(place[number]) % 2 for number in range(len(x))]
    while len(regions) > keep:
        means = [x[sorted(region)].mean(0) for region in regions]

        best: list[tuple[float, int, int]] = []
        for a in range(len(regions)):
            costs = []
            for b in range(len(regions)):
                if (
                    side[a] == 0
                    and side[b] == 1
                    and (abs(a - b) == 1 or touch(regions[a], regions[b]))
                ):
                    one, other = len(regions[a]), len(regions[b])
                    gap = float((means[a] - means[b]).square().sum())
                    costs.append((gap * one * other / (one + other), b))
            if costs:
                cost, b = min(costs)
                best.append((cost, a, b))
        gone = min(len(regions) - keep, max(1, len(regions) // 4))
        for _, a, b in sorted(best)[:gone]:
            regions[b] = regions[b] | regions[a]
            regions[a] = set()
        regions = [region for region in regions if region]
        side = [number % 2 for number in range(len(regions))]
    return regions


@pytest.mark.parametrize("keep", [23, 17, 9, 2, 1])
@pytest.mark.parametrize("grid", [Grid(2, 3, 4), Grid(3, 4, 2), Grid(24, 1, 1)])
def test_ward_regions_are_those_merged_by_hand(grid: Grid, keep: int) -> None:
    x = torch.randn(2, 24, 5, generator=torch.Generator().manual_seed(1))
    kept, into = ward_regions(x, grid, keep)
    assert kept.shape == (2, keep)
    for b in range(2):
        found = [set((into[b] == number).nonzero().flatten().tolist()) for number in range(keep)]
        assert found == ward_regions_by_hand(x[b], grid, keep)
        assert all(place in region for place, region in zip(kept[b].tolist(), found, strict=True))


def test_equal_neighbours_become_one_region_first() -> None:
    """Two flat halves of a clip, as many regions as halves: nothing is lost."""
    x = torch.zeros(1, 4, 4, 6, 3)
    x[..., 3:, :] = 1.0
    _, into = ward_regions(x.flatten(1, 3), Grid(4, 4, 6), 2)
    halves = into.view(4, 4, 6)
    assert (halves[..., :3] == halves[0, 0, 0]).all()
    assert (halves[..., 3:] == halves[0, 0, 5]).all()
    assert halves[0, 0, 0] != halves[0, 0, 5]


def test_wards_cost_of_single_tokens_is_that_of_size_one() -> None:
    x = torch.randn(2, 11, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ward_cost(x, None), ward_cost(x, torch.ones(2, 11, 1)))


def test_blocks_merge_at_most_half_of_what_is_left() -> None:
    layout = Layout("ViT", 4, Grid(4, 4, 4))
    assert [step.drop for step in sta.ToMeConfig(r=30).plan(layout)] == [30, 17, 8, 4]
    ward = [step.drop for step in sta.WardConfig(r=4).plan(layout)]
    assert ward == [13, 11, 9, 7]  # 2.5 r of each frame, the first block twice the last
    assert [step.drop for step in sta.WardConfig(r=9).plan(layout)] == [30, 17, 8, 4]


@pytest.mark.parametrize("model", ["vit-s-k400", "vit-b-k400", "vit-l-k400"])
@pytest.mark.parametrize("r", [32, 48, 64])
def test_wards_r_costs_about_what_stas_does(model: str, r: int) -> None:
    with torch.device("meta"):
        built = sta.load(model, weights=None)
    cost = [
        sta.gflops(sta.apply(built, config), (1, 16, 3, 224, 224))
        for config in (sta.STAConfig(r=r), sta.WardConfig(r=r))
    ]
    assert cost[1] == pytest.approx(cost[0], rel=0.05)


def test_a_taken_name_and_a_method_that_does_not_choose_are_refused() -> None:
    class Mine(sta.RandomConfig):
        method = "sta"

    with pytest.raises(ValueError, match="'sta' of Mine is taken by STAConfig"):
        register(Mine)
    assert METHODS["sta"] is sta.STAConfig

    @dataclass(frozen=True)
    class Silent(SteppedConfig):
        method = "silent"

    with pytest.raises(TypeError, match=r"Silent has an r, but no choose\(site\)"):
        register(Silent)


@torch.no_grad()
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (torch.zeros(2, 4, 3, dtype=torch.long), "must return a Choice"),
        (Choice(torch.zeros(2, 2, 3, dtype=torch.long)), r"kept \(2, 2, 3\); expected"),
        (Choice(torch.zeros(5, 3, dtype=torch.long)), "B=2 clips and T=4 frames"),
    ],
)
def test_an_answer_that_is_no_choice_is_refused(answer: object, says: str) -> None:
    class Wrong(LargestConfig):
        def choose(self, site: object) -> object:
            return answer

    model = sta.apply(VIDEOMAE.make(), Wrong(r=4))
    with pytest.raises(TypeError, match=says):
        model(VIDEOMAE.clip())


@pytest.mark.parametrize("name", ["videomae", "swin"])
def test_tracing_by_hand_names_the_function_that_exports(name: str, tmp_path: Path) -> None:
    backbone = next(b for b in BACKBONES if b.name == name)
    clip = backbone.clip(1)

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = sta.apply(backbone.make(), backbone.config)

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return output(self.model, pixels)

    model = Logits().eval()
    with pytest.raises(RuntimeError, match=r"sta\.export\(model"):
        torch.jit.trace(model, clip)
    file = str(tmp_path / "a.onnx")
    with pytest.raises(RuntimeError, match=r"sta\.export\(model"):
        torch.onnx.export(model, (clip,), file, dynamo=False, verbose=False)
    with pytest.raises(RuntimeError, match=r"torch\.export") as failed:
        torch.onnx.export(model, (clip,), file, dynamo=True, verbose=False)
    assert "sta.export(model" in str(failed.value.__cause__)
