"""Features against the stock models' hidden states, and dropped places filled by their change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sta
from backbones import BACKBONES, Backbone
from sta.backbones import find
from sta.backbones.encode import encode

BY_NAME = {backbone.name: backbone for backbone in BACKBONES}


def stock(model: Any, clip: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A stock model's last tokens, and those of its blocks, without class token: (B, n, D)."""
    adapter = find(model)
    seen: list[Tensor] = []
    handles = [
        block.register_forward_hook(
            lambda _, args, out: seen.append(out[0] if isinstance(out, tuple) else out)
        )
        for block, _ in adapter.all_blocks()
    ]
    backbone = adapter.backbone
    if adapter.layout.staged:
        last = backbone.norm(backbone.features(backbone.pos_drop(backbone.patch_embed(clip))))
        last = last.flatten(1, 3)
        seen = [tokens.flatten(1, -2) for tokens in seen]
    else:
        extra = {"skip_predictor": True} if adapter.family == "V-JEPA 2" else {}
        last = backbone(clip, **extra).last_hidden_state
        prefix = adapter.prefix  # type: ignore[attr-defined]
        last, seen = last[:, prefix:], [tokens[:, prefix:] for tokens in seen]
    for handle in handles:
        handle.remove()
    return last, seen


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
@pytest.mark.parametrize("applied", [False, True], ids=["stock", "r=0"])
@torch.no_grad()
def test_without_dropping_dense_features_are_the_hidden_states(
    backbone: Backbone, applied: bool
) -> None:
    model, clip = backbone.make(), backbone.clip()
    last, blocks = stock(model, clip)
    if applied:
        sta.apply(model, sta.STAConfig(r=0))
    for block, expected in [(None, last), (1, blocks[0]), (len(blocks), blocks[-1])]:
        found = encode(model, clip, block=block, dense=True)
        assert found.ndim == 4
        assert found.shape[1] == backbone.grids[0].frames
        torch.testing.assert_close(found.flatten(1, 2), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
@torch.no_grad()
def test_without_dropping_pooled_features_are_what_the_stock_model_pools(
    backbone: Backbone,
) -> None:
    model, clip = backbone.make(), backbone.clip()
    last, blocks = stock(model, clip)
    found = encode(sta.apply(model, sta.STAConfig(r=0)), clip)
    head = getattr(model, "classifier", getattr(model, "head", None))
    sta.remove(model)
    if isinstance(head, nn.Module):
        output = model(clip)
        logits = output if isinstance(output, Tensor) else output.logits
        torch.testing.assert_close(head(found), logits, atol=1e-5, rtol=0)
    elif "vivit" in backbone.name:
        torch.testing.assert_close(found, model(clip).last_hidden_state[:, 0], atol=1e-5, rtol=0)
    else:
        torch.testing.assert_close(found, last.mean(1), atol=1e-5, rtol=0)
    if "vivit" not in backbone.name:
        middle = encode(model, clip, block=1)
        torch.testing.assert_close(middle, blocks[0].mean(1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
@pytest.mark.parametrize("fill", ["nearest", "delta"])
@torch.no_grad()
def test_dense_features_of_fewer_tokens_have_the_whole_grid(backbone: Backbone, fill: str) -> None:
    model, clip = backbone.make(), backbone.clip()
    full = encode(model, clip, dense=True)
    sta.apply(model, backbone.config)
    pruned = encode(model, clip, dense=True, fill=fill)  # type: ignore[arg-type]
    assert pruned.shape == full.shape
    assert torch.isfinite(pruned).all()
    assert not torch.equal(pruned, full)


@pytest.mark.parametrize("fill", ["nearest", "delta"])
@torch.no_grad()
def test_stages_without_a_step_have_all_tokens(fill: str) -> None:
    model, clip = BY_NAME["swin"].make(), BY_NAME["swin"].clip()
    sta.apply(model, sta.STAConfig(schedule=(20,), blocks=(1,)))
    last, blocks = stock(model, clip)  # hooks and all
    for block, expected in [(None, last), (1, blocks[0]), (4, blocks[3]), (7, blocks[6])]:
        found = encode(model, clip, block=block, dense=True, fill=fill)  # type: ignore[arg-type]
        torch.testing.assert_close(found.flatten(1, 2), expected, atol=1e-5, rtol=0)
        assert found.shape[1] == 4
    assert blocks[1].shape[1] == 176  # stage 2 has a step
    found = encode(model, clip, block=2, dense=True, fill=fill)  # type: ignore[arg-type]
    assert found.shape[:3] == (2, 4, 64)


MERGING = [
    sta.ToMeConfig(r=6),
    sta.STAConfig(r=4, merge=True, proportional=True),
    sta.STAConfig(schedule=(4, 0, 2), merge=True, budget="clip"),
    sta.VidTLDRConfig(r=6),
]


@pytest.mark.parametrize("name", ["videomae", "vivit", "vjepa2"])
@pytest.mark.parametrize("config", MERGING, ids=lambda config: config.method)
@torch.no_grad()
def test_merged_places_get_the_token_that_they_went_into(name: str, config: sta.Config) -> None:
    model, clip = BY_NAME[name].make(), BY_NAME[name].clip()
    sta.apply(model, config)
    encode(model, clip)
    steps = find(model).steps
    assert steps[-1].kept is not None
    count = steps[-1].kept.shape[1]
    tokens = torch.arange(count).view(1, -1, 1).float().expand(2, -1, -1)
    restored = sta.restore(model, tokens).flatten(1)
    for b in range(2):
        for place in range(restored.shape[1]):
            at = place
            for step in steps:
                at = int(step.into[b, at]) if step.drop else at  # type: ignore[attr-defined]
            assert restored[b, place] == at


@pytest.mark.parametrize("name", ["videomae", "vivit", "vjepa2"])
@pytest.mark.parametrize("config", MERGING, ids=lambda config: config.method)
@torch.no_grad()
def test_delta_undoes_a_merge_that_nothing_followed(name: str, config: sta.Config) -> None:
    """Own value plus the change of the mean: exact for all places, those that stayed among them."""
    model, clip = BY_NAME[name].make(), BY_NAME[name].clip()
    sta.record(sta.apply(model, config))
    encode(model, clip)
    step = find(model).steps[0]
    then, left = step.observe.tokens, step.observe.left  # type: ignore[union-attr]
    restored = sta.restore(model, left + 1.5, fill="delta")
    torch.testing.assert_close(restored.flatten(1, 2), then + 1.5, atol=2e-5, rtol=0)


@pytest.mark.parametrize("config", MERGING[:2], ids=lambda config: config.method)
@torch.no_grad()
def test_delta_is_nearer_than_copies_of_merged_tokens(config: sta.Config) -> None:
    model, clip = BY_NAME["videomae"].make(), BY_NAME["videomae"].clip()
    full = encode(model, clip, dense=True)
    sta.apply(model, config)
    near, delta = (encode(model, clip, dense=True, fill=fill) for fill in ("nearest", "delta"))  # type: ignore[arg-type]
    assert (delta - full).square().mean() < (near - full).square().mean() / 2


@pytest.mark.parametrize("name", ["videomae", "vivit", "vjepa2"])
@torch.no_grad()
def test_what_nothing_happened_to_since_is_restored_exactly(name: str) -> None:
    model, clip = BY_NAME[name].make(), BY_NAME[name].clip()
    then = encode(model, clip, block=2, dense=True).flatten(1, 2)
    sta.record(sta.apply(model, sta.STAConfig(schedule=(4,), blocks=(2,))))
    encode(model, clip)
    kept = find(model).steps[0].kept
    assert kept is not None
    tokens = then.gather(1, kept[..., None].expand(-1, -1, then.shape[-1]))
    restored = sta.restore(model, tokens, fill="delta")
    torch.testing.assert_close(restored.flatten(1, 2), then, atol=2e-5, rtol=0)
    # What all kept tokens have in common reaches the dropped ones, too.
    moved = sta.restore(model, tokens + 1.5, fill="delta")
    torch.testing.assert_close(moved.flatten(1, 2), then + 1.5, atol=2e-5, rtol=0)


@torch.no_grad()
def test_delta_on_swin_is_exact_where_nothing_happened() -> None:
    backbone = BY_NAME["swin"]
    model, clip = backbone.make(), backbone.clip()
    sta.apply(model, backbone.config)
    sta.record(model)
    model(clip)
    step = find(model).steps[-1]
    then = step.observe.tokens  # type: ignore[union-attr]
    grid = then.unflatten(1, (step.grid.frames, -1))  # type: ignore[attr-defined]
    tokens = grid.gather(2, step.kept[..., None].expand(-1, -1, -1, then.shape[-1]))
    restored = sta.restore(model, tokens + 2.0, fill="delta")
    torch.testing.assert_close(restored, grid + 2.0, atol=1e-5, rtol=0)


def test_delta_needs_what_was_recorded() -> None:
    backbone = BY_NAME["videomae"]
    model = sta.apply(backbone.make(), backbone.config)
    hidden = find(model).backbone(backbone.clip()).last_hidden_state
    with pytest.raises(RuntimeError, match=r"sta\.record"):
        sta.restore(model, hidden, fill="delta")
    with pytest.raises(ValueError, match="nearest or delta"):
        sta.restore(model, hidden, fill="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sta\.apply"):
        sta.record(backbone.make())


def test_blocks_that_are_not_there_are_refused() -> None:
    backbone = BY_NAME["videomae"]
    with pytest.raises(ValueError, match="blocks 1 to 4"):
        encode(backbone.make(), backbone.clip(), block=5)
