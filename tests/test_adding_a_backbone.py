"""The page that says how to write an adapter, held against the adapters it speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import TimesformerConfig, TimesformerForVideoClassification

import sta
from sta import backbones
from sta.backbones.vit import ViTAdapter

ROOT = Path(__file__).parent.parent
ADAPTERS = ROOT / "src/sta/backbones"


def test_the_pages_code_is_the_adapters() -> None:
    page = (ROOT / "docs/adding-a-backbone.md").read_text()
    source = "".join((ADAPTERS / f"{name}.py").read_text() for name in ("vivit", "vjepa2"))
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shown = [block for block in blocks if "register" not in block]
    assert len(shown) == 7
    for block in shown:
        assert block in source


@pytest.mark.parametrize("name", ["videomae", "vjepa2", "vivit"])
def test_adapters_are_small(name: str) -> None:
    assert len((ADAPTERS / f"{name}.py").read_text().splitlines()) <= 105


class Block(nn.Module):
    """A pre-norm transformer block of somebody's own."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + nn.functional.scaled_dot_product_attention(
            self.q(normed), self.k(normed), self.v(normed)
        )


class OwnViT(nn.Module):
    """A backbone that sta does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv3d(3, 8, 4, 4)
        self.flat = nn.Sequential(self.embed, nn.Flatten(2))
        self.layers = nn.ModuleList(Block(8) for _ in range(3))

    def forward(self, clip: Tensor) -> Tensor:
        x = self.flat(clip).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x


class OwnAdapter(ViTAdapter):
    """The least that an adapter says."""

    family = "own"
    classes = ("OwnViT",)
    grid = backbones.Grid(2, 3, 3)
    tubelet = (4, 4, 4)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return isinstance(module, OwnViT)

    @property
    def embedding(self) -> nn.Module:
        return self.backbone.embed

    @property
    def blocks(self) -> nn.ModuleList:
        return self.backbone.layers

    @staticmethod
    def attention_input(block: Block, x: Tensor) -> Tensor:
        return block.norm(x)

    @staticmethod
    def projection(block: Block, similarity: str) -> tuple[nn.Linear, int]:
        return getattr(block, similarity[0]), 1


@pytest.fixture
def registered() -> Iterator[None]:
    backbones.register(OwnAdapter)
    yield
    backbones._registered.remove(OwnAdapter)


@torch.no_grad()
@pytest.mark.usefixtures("registered")
def test_an_adapter_outside_the_package() -> None:
    model = OwnViT()
    stock = model(torch.ones(2, 3, 8, 12, 12))
    sta.apply(model, sta.STAConfig(r=4))
    assert model(torch.ones(2, 3, 8, 12, 12)).shape == (2, 4, 8)
    assert [k.shape for k in sta.kept(model)] == [(2, 2, 5), (2, 2, 3), (2, 2, 2)]
    with pytest.raises(ValueError, match="no block with a step inside"):
        sta.apply(model, sta.ToMeConfig(r=2))
    assert torch.equal(sta.remove(model)(torch.ones(2, 3, 8, 12, 12)), stock)


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"OwnViT is not a supported model.*VideoMAE.*ViViT"):
        sta.apply(OwnViT(), sta.STAConfig(r=1))


def test_models_that_cannot_work_are_refused_with_the_reason() -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = TimesformerConfig(image_size=16, patch_size=8, num_frames=2, **small)
    model = TimesformerForVideoClassification(config)
    with pytest.raises(TypeError, match=r"attends along time.*joint attention.*V-JEPA 2"):
        sta.apply(model, sta.STAConfig(r=1))
    for name, reason in (("VideoPrismVisionModel", "one by one"), ("MViT", "convolutions")):
        stranger = nn.Sequential(type(name, (nn.Module,), {})())
        with pytest.raises(TypeError, match=reason):
            sta.apply(stranger, sta.STAConfig(r=1))
