"""GFLOPs against the paper's tables, on the meta device."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import sta
from backbones import BACKBONES, Backbone, output
from sta.backbones.zoo.entries import PAPER
from sta.backbones.zoo.spec import ZooModel
from sta.cli import app
from sta.measure.published import ROWS, Published

# Models of one size cost the same on both data sets, unless the window differs.
COUNTED = [m for m in PAPER if m.data_set == "k400" or m.family == "swin"]


def on_meta(model: ZooModel) -> nn.Module:
    with torch.device("meta"):
        return sta.load(model.name, weights=None)


@pytest.mark.parametrize("model", COUNTED, ids=lambda m: m.name)
def test_every_row_of_the_papers_tables_within_one(model: ZooModel) -> None:
    network, shape = on_meta(model), model.clip.shape()
    for r, paper in model.gflops.items():
        sta.apply(network, sta.STAConfig(r=r, window_queries="all"))
        assert sta.gflops(network, shape) == pytest.approx(paper, abs=1)
    sta.remove(network)
    assert sta.gflops(network, shape) == pytest.approx(model.gflops[0], abs=1)


def test_kept_queries_save_on_top() -> None:
    model = next(m for m in PAPER if m.name == "swin-t-k400")
    network = sta.apply(on_meta(model), sta.STAConfig(r=256, window_queries="kept"))
    assert sta.gflops(network, model.clip.shape()) < 0.9 * model.gflops[256]


def test_place_of_the_steps() -> None:
    network = on_meta(next(m for m in PAPER if m.name == "vit-l-k400"))
    for blocks, paper in (((1, 9, 17), 308), ((3, 11, 19), 339), ((5, 13, 21), 370)):
        sta.apply(network, sta.STAConfig(r=64, blocks=blocks))
        assert sta.gflops(network, (1, 16, 3, 224, 224)) == pytest.approx(paper, abs=1)


def test_a_matrix_product_counts_once_per_multiply_accumulate() -> None:
    assert sta.gflops(nn.Linear(1000, 500, bias=False), (200, 1000)) == pytest.approx(0.1)


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_counts_are_pytorchs_own(backbone: Backbone) -> None:
    """Remembered operations are counted again: the same as PyTorch's counter, norms aside."""
    model = sta.apply(backbone.make(), backbone.config).to("meta")
    norms: list[int] = []
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "eager"
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(lambda _, __, out: norms.append(out.numel()))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output(model, torch.empty(1, *backbone.shape, device="meta"))
    expected = counter.get_total_flops() / 2 + sum(norms)
    assert sta.gflops(model, (1, *backbone.shape)) * 1e9 == pytest.approx(expected, rel=1e-12)


def test_counting_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    before = model[0].weight.clone()
    sta.gflops(model, (2, 4))
    assert model.training
    assert torch.equal(model[0].weight, before)
    assert not model[0].weight.is_meta


@torch.no_grad()
def test_counting_forgets_nothing_of_the_last_forward() -> None:
    for backbone in BACKBONES:
        model = sta.apply(backbone.make(), backbone.config)
        sta.gflops(model, (1, *backbone.shape))
        with pytest.raises(RuntimeError, match="run a forward first"):
            sta.kept(model)
        output(model, backbone.clip())
        before = sta.kept(model)
        sta.gflops(model, (1, *backbone.shape))
        for one, other in zip(sta.kept(model), before, strict=True):
            assert torch.equal(one, other)


def test_the_command_prints_the_paper_beside_ours() -> None:
    result = CliRunner().invoke(app, ["flops", "vit-s"])
    assert result.exit_code == 0
    for figure in ("57", "42", "35", "29"):
        assert figure in result.output
    assert "28.76" in result.output


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.build], ids=lambda row: f"{row.name}-{row.data_set}"
)
def test_models_that_the_paper_compares_with_are_counted_as_published(row: Published) -> None:
    assert row.count() == pytest.approx(row.gflops, rel=0.01)


def test_rivals_are_printed_with_stas_rows(refused) -> None:
    result = CliRunner().invoke(app, ["flops", "--published"])
    assert result.exit_code == 0
    for words in ("TimeSformer-L", "Motionformer-L", "MViTv2-L", "STTS", "STA-ViT-H, r=64", "2828"):
        assert words in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "leave the models" in refused("flops", "vit-s", "--published")
