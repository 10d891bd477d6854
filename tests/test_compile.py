"""The default compiler, code generation included, on the main method."""

from __future__ import annotations

import torch

import sta
from backbones import BACKBONES, output


@torch.no_grad()
def test_inductor_agrees_with_eager() -> None:
    backbone = BACKBONES[0]
    model, clip = sta.apply(backbone.make(), backbone.config), backbone.clip()
    eager, kept = output(model, clip), sta.kept(model)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(output(compiled, clip), eager, rtol=0, atol=1e-4)
    for one, other in zip(sta.kept(model), kept, strict=True):
        assert torch.equal(one, other)
