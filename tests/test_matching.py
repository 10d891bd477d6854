"""Settings of equal cost: as close as whole numbers of tokens allow, whatever the method."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sta
from backbones import BACKBONES
from sta.backbones.copies import meta_copy
from sta.measure.matching import match_gflops

VIDEOMAE = next(b for b in BACKBONES if b.name == "videomae")
SWIN = next(b for b in BACKBONES if b.name == "swin")


def cost(backbone, config):
    return sta.gflops(sta.apply(backbone.make(), config), (1, *backbone.shape))


@pytest.mark.parametrize(
    ("method", "share"), [("sta", 0.35), ("random", 0.8), ("tome", 0.8), ("frame-difference", 0.5)]
)
def test_no_neighbour_comes_closer(method, share):
    target = share * cost(VIDEOMAE, sta.DenseConfig())
    config = match_gflops(VIDEOMAE.make, (1, *VIDEOMAE.shape), target, method)
    assert config.method == method
    off = abs(cost(VIDEOMAE, config) - target)
    for r in (config.r - 1, config.r + 1):
        try:
            assert off <= abs(cost(VIDEOMAE, sta.methods.make_config(method, r)) - target) + 1e-12
        except ValueError:  # the model has no more tokens to drop
            assert r > config.r
            assert cost(VIDEOMAE, config) > target


def test_targets_out_of_reach():
    shape = (1, *VIDEOMAE.shape)
    assert match_gflops(VIDEOMAE.make, shape, 1e9, "random") == sta.RandomConfig(r=0)
    lowest = match_gflops(VIDEOMAE.make, shape, 0.0, "frame-difference")
    assert lowest == sta.FrameDifferenceConfig(r=15)  # of 16 tokens per frame


def test_swin_random_costs_what_sta_costs():
    target = cost(SWIN, sta.STAConfig(r=16))
    assert match_gflops(SWIN.make, (1, *SWIN.shape), target, "random") == sta.RandomConfig(r=16)


def test_a_method_matches_itself_and_the_model_is_left_alone():
    model = sta.apply(VIDEOMAE.make(), sta.STAConfig(r=4))
    clip = VIDEOMAE.clip()
    with torch.no_grad():
        before = model(clip).logits
    target = sta.gflops(model, (1, *VIDEOMAE.shape))
    assert match_gflops(model, (1, *VIDEOMAE.shape), target, "sta") == sta.STAConfig(r=4)
    with torch.no_grad():
        assert torch.equal(model(clip).logits, before)


def test_settings_of_ones_own():
    shape = (1, *VIDEOMAE.shape)
    target = sta.gflops(sta.apply(VIDEOMAE.make(), sta.STAConfig(r=6)), shape)
    found = match_gflops(
        VIDEOMAE.make, shape, target, lambda r: sta.STAConfig(r=r, schedule="constant")
    )
    assert found.schedule == "constant"
    assert 0 < found.r < 6  # it drops as many again at every step


def test_a_method_that_the_model_refuses_says_why():
    with pytest.raises(ValueError, match="ToMeConfig cannot be applied"):
        match_gflops(SWIN.make, (1, *SWIN.shape), 0.0, "tome")


def test_a_method_without_r_is_what_it_is():
    target = 0.5 * cost(VIDEOMAE, sta.DenseConfig())
    config = match_gflops(VIDEOMAE.make, (1, *VIDEOMAE.shape), target, "dense")
    assert config == sta.DenseConfig()


def test_a_copy_without_weights_has_none():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    copied = meta_copy(model)
    assert {t.device.type for t in (*copied.parameters(), *copied.buffers())} == {"meta"}
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert copied[0].weight.shape == (4, 3)
