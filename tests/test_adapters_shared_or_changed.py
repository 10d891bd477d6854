"""Models that others share or change: threads, adapted or quantised layers, parametrisations."""

from __future__ import annotations

import sys
import threading
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import sta
from backbones import BACKBONES, Backbone, output
from sta.backbones import find
from sta.backbones.vit import ViTAdapter


def in_two_threads(model: nn.Module, clips: list[Tensor], times: int = 1) -> list[list[Tensor]]:
    """What two threads that share the model make of a clip each."""
    outputs: list[list[Tensor]] = [[], []]

    @torch.no_grad()
    def run(number: int) -> None:
        outputs[number] = [output(model, clips[number]) for _ in range(times)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs


@pytest.mark.parametrize("method", ["sta", "frame-difference"])
def test_threads_can_share_a_model(backbone: Backbone, method: str) -> None:
    model, clips = backbone.make(), [backbone.clip(seed=seed) for seed in range(2)]
    sta.apply(model, backbone.config if method == "sta" else sta.FrameDifferenceConfig(backbone.r))
    with torch.no_grad():
        alone = [output(model, clip) for clip in clips]
    assert not torch.equal(*alone)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as unlucky as can be
    try:
        many = in_two_threads(model, clips, times=15)
    finally:
        sys.setswitchinterval(before)
    both = threading.Barrier(2, timeout=20)

    def meet(*_: object) -> None:
        both.wait()

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):  # in every part of every block
            module.register_forward_hook(meet)
    for outputs in (many, in_two_threads(model, clips)):
        for made, expected in zip(outputs, alone, strict=True):
            assert made
            assert all(torch.equal(one, expected) for one in made)


class Adapted(nn.Module):
    """A projection with an addition, as low-rank adaptation wraps it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x.roll(3, -1)


def adapt(model: nn.Module) -> nn.Module:
    """Replace all key projections by adapted ones."""
    adapter = cast(ViTAdapter, find(model))
    keys = [adapter.projection(block, "key")[0] for block in adapter.blocks]
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if any(child is key for key in keys):
                setattr(module, name, Adapted(cast(nn.Linear, child)))
    return model


@torch.no_grad()
@pytest.mark.parametrize("name", ["videomae", "vjepa2", "vivit"])
@pytest.mark.parametrize("how", ["before", "after", "exported", "merging"])
def test_tokens_are_compared_by_what_the_projection_really_puts_out(name: str, how: str) -> None:
    backbone = next(b for b in BACKBONES if str(b) == name)
    config = sta.ToMeConfig(r=6) if how == "merging" else backbone.config
    clip, merged = backbone.clip(), backbone.make()
    adapter = cast(ViTAdapter, find(merged))
    for block in adapter.blocks:
        key, _ = adapter.projection(block, "key")
        key.weight += torch.eye(key.in_features).roll(3, 0)
    expected = output(sta.apply(merged, config), clip)
    if how == "after":
        model = adapt(sta.apply(backbone.make(), config))
    else:
        model = sta.apply(adapt(backbone.make()), config)
    made = output(
        torch.export.export(model, (clip,)).module() if how == "exported" else model, clip
    )
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_model_can_be_quantised_after_a_method_was_applied() -> None:
    backbone = BACKBONES[0]
    outputs = []
    for order in (("apply", "quantise"), ("quantise", "apply")):
        model = backbone.make()
        for what in order:
            if what == "apply":
                sta.apply(model, backbone.config)
            else:
                model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
        outputs.append(output(model, backbone.clip()))
    assert torch.equal(*outputs)


def test_what_was_put_over_our_classes_is_named(backbone: Backbone) -> None:
    model = sta.apply(backbone.make(), backbone.config)
    (conv,) = (module for module in model.modules() if isinstance(module, nn.Conv3d))
    nn.utils.parametrizations.weight_norm(conv)
    with pytest.raises(TypeError, match=r"became a ParametrizedPatchProduct.*undo that first"):
        sta.remove(model)
    nn.utils.parametrize.remove_parametrizations(conv, "weight")
    sta.remove(model)
    assert type(conv) is nn.Conv3d
