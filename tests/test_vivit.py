"""ViViT: the class token, masks and sizes that a pruned model cannot take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import VivitConfig, VivitForVideoClassification, VivitModel

import sta
from backbones import seeded
from masked import gaps, hidden_states

STEPPED = sta.STAConfig(schedule=(5, 3), blocks=(1, 3))


def config() -> VivitConfig:
    return VivitConfig(
        image_size=32,
        tubelet_size=(2, 8, 8),
        num_frames=8,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=5,
    )


def make() -> VivitModel:
    return seeded(lambda: VivitModel(config()))()


def clip(batch: int = 2) -> Tensor:
    return torch.randn(batch, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize(
    ("method", "steps_at"),
    [
        (STEPPED, (1, 3)),
        (sta.STAConfig(schedule=(4,), blocks=(2,), similarity="value"), (2,)),
        (sta.RandomConfig(schedule=(7, 2), blocks=(2, 3)), (2, 3)),
        (sta.FrameDifferenceConfig(r=6), (0,)),
        (sta.STAConfig(r=4, blocks=(1, 3), budget="clip", temporal="place"), (1, 3)),
    ],
)
def test_kept_tokens_and_the_class_token_are_the_masked_dense_models(
    method: sta.Config, steps_at: tuple[int, ...]
) -> None:
    stock = make()
    attentions = [layer.attention for layer in stock.layers]
    assert max(gaps(sta.apply(make(), method), stock, attentions, steps_at, clip())) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    "method",
    [
        sta.STAConfig(r=15, schedule="constant", blocks=(1,)),
        sta.STAConfig.released(8),
        sta.RandomConfig(schedule=(15,), blocks=(1,)),
        sta.FrameDifferenceConfig(r=15),
        sta.ToMeConfig(r=12),
    ],
)
def test_the_class_token_is_first_and_never_dropped(method: sta.Config) -> None:
    """A class token that stands out by far is still first after every block, whatever the r."""
    model = make()
    model.embeddings.cls_token.fill_(1000.0)
    sta.apply(model, method)
    for states in hidden_states(model, clip()):
        first, others = states[:, 0].abs().mean(), states[:, 1:].abs().mean(-1).max()
        assert first > 100 > others
        assert states.shape[1] > 1


@torch.no_grad()
def test_restore_leaves_the_class_token_out() -> None:
    model = sta.apply(make(), STEPPED)
    states = hidden_states(model, clip())
    kept = sta.kept(model)
    for number, step in ((0, None), (1, 0), (2, 0), (3, 1), (4, 1)):
        dense = sta.restore(model, states[number])
        assert dense.shape == (2, 4, 16, 32)
        if step is not None:
            index = kept[step].unsqueeze(-1).expand(-1, -1, -1, 32)
            assert torch.equal(dense.gather(2, index).flatten(1, 2), states[number][:, 1:])
            assert torch.equal(
                sta.restore(model, states[number][:, 1:]), dense
            )  # with or without it


@torch.no_grad()
def test_calls_that_do_not_fit() -> None:
    model = seeded(lambda: VivitForVideoClassification(config()))()
    mask = torch.ones(2, 65, dtype=torch.long)
    stock = model(clip()).logits
    assert torch.allclose(model(clip(), attention_mask=mask).logits, stock, atol=1e-5)
    sta.apply(model, STEPPED)
    with pytest.raises(ValueError, match="attention_mask speaks of tokens"):
        model(clip(), attention_mask=mask)
    with pytest.raises(ValueError, match="attention_mask speaks of tokens"):
        model.vivit(clip(), False, mask)
    same = model(clip()).logits
    assert torch.equal(model(clip(), interpolate_pos_encoding=True).logits, same)
    # ViViT itself cannot interpolate its positions to another grid of tubelets.
    for pixels, given in (
        (torch.zeros(1, 8, 3, 48, 40), "8 frames of 48 x 40"),
        (torch.zeros(1, 4, 3, 32, 32), "4 frames of 32 x 32"),
    ):
        expected = rf"takes clips of 8 frames of 32 x 32 pixels, not of {given}"
        for interpolate in (True, False):
            with pytest.raises(ValueError, match=expected):
                model(pixels, interpolate_pos_encoding=interpolate)
