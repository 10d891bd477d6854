"""Methods: the registry, the page that says how to write one, and references for each choice."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sta
from backbones import BACKBONES, METHODS_BY_NAME, output
from inference_runs import environment
from outside import LargestConfig
from sta.backbones import find
from sta.methods import METHODS, make_config, title_of

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
    assert own - {"dense"} <= METHODS_BY_NAME.keys()  # every backbone runs dense by itself


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
    with pytest.raises(ValueError, match="'magic' is unknown; use one of 'sta', 'released'"):
        make_config("magic", 4)
    assert title_of(sta.STAConfig(r=4)) == "STA, r = 4"
    with pytest.raises(AttributeError, match="MagicConfig"):
        sta.MagicConfig  # noqa: B018


@torch.no_grad()
def test_patch_change_keeps_what_moved_most_in_each_group() -> None:
    model, clip = VIDEOMAE.make(), VIDEOMAE.clip()  # 4 frames of 16 tokens
    r, groups = 5, 2
    sta.apply(model, sta.PatchChangeConfig(r=r, groups=groups))
    model(clip)
    (kept,) = sta.kept(model)
    sta.remove(model)
    projection = model.videomae.embeddings.patch_embeddings.projection
    x = projection(clip.transpose(1, 2)).flatten(2).transpose(1, 2).reshape(2, 4, 16, -1)
    for b in range(2):
        expected = []
        for first in (0, 2):
            change = {}
            for t in (first, first + 1):
                before, now = (t - 1, t) if t else (0, 1)
                for n in range(16):
                    change[t * 16 + n] = (x[b, now, n] - x[b, before, n]).square().sum().sqrt()
            best = sorted(change, key=lambda place: -change[place])[: 2 * (16 - r)]
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
