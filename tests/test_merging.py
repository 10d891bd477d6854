"""Merging instead of dropping: what each token stands for, in attention and in the average."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import sta
from backbones import BACKBONES, output
from sta.backbones import find
from sta.backbones.encode import encode
from sta.core.merge import most_similar, weighted_mean

VIDEOMAE, VIVIT, VJEPA2, SWIN = (
    next(b for b in BACKBONES if b.name == name) for name in ("videomae", "vivit", "vjepa2", "swin")
)


def test_a_dropped_token_goes_into_the_most_similar_kept_one() -> None:
    metric = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(0))
    kept = torch.tensor([[0, 3, 4, 8], [1, 2, 5, 6]])
    into = most_similar(metric, kept)
    for b in range(2):
        for token in range(9):
            similar = [
                float(F.cosine_similarity(metric[b, token], metric[b, k], dim=0)) for k in kept[b]
            ]
            assert int(into[b, token]) == similar.index(max(similar))
            if token in kept[b]:
                assert kept[b, into[b, token]] == token


@torch.no_grad()
@pytest.mark.parametrize("backbone", [VIDEOMAE, VIVIT], ids=str)
def test_merging_equal_tokens_changes_nothing(backbone: object) -> None:
    """A still clip without positions: one frame, each token weighing four, is the whole clip."""
    model = backbone.make()
    for name, buffer in (*model.named_parameters(), *model.named_buffers()):
        if "position" in name:
            buffer.zero_()
    inner = model.videomae if backbone is VIDEOMAE else model.vivit
    if isinstance(getattr(inner.embeddings, "position_embeddings", None), torch.Tensor):
        inner.embeddings.position_embeddings.zero_()
    clip = backbone.clip(batch=2)[:, :1].expand(-1, 8, -1, -1, -1).contiguous()
    expected = output(model, clip)
    config = sta.FrameDifferenceConfig(r=12, budget="clip", merge=True, proportional=True)
    found = output(sta.apply(model, config), clip)
    assert sta.kept(model)[0].tolist() == [[*range(16)]] * 2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    dropped = output(sta.apply(model, sta.FrameDifferenceConfig(r=11, budget="clip")), clip)
    assert (dropped - expected).abs().max() > 1e-4  # 20 tokens: four count twice


@torch.no_grad()
def test_each_step_averages_by_what_tokens_stand_for() -> None:
    """Three steps by hand, and the average that the head receives."""
    model = sta.apply(VIDEOMAE.make(), sta.STAConfig(r=4, merge=True))
    steps, seen, left = find(model).steps, [], []
    for step in steps:
        step.observe = lambda site: seen.append((site.tokens, site.features("key"), site.sizes))
    blocks = model.videomae.encoder.layer
    for number in (0, 1, 2):  # after blocks 1, 2 and 3
        blocks[number].register_forward_hook(lambda _, args, out: left.append(out))
    received = []
    model.fc_norm.register_forward_pre_hook(lambda _, args: received.append(args[0]))
    tokens = model.videomae.register_forward_hook(lambda _, args, out: received.append(out[0]))
    model(VIDEOMAE.clip())
    tokens.remove()
    sizes = torch.ones(2, 64, 1)
    for step, (x, metric, given), merged in zip(steps, seen, left, strict=True):
        if step.number:
            torch.testing.assert_close(given, sizes)
        kept, into = step.kept, most_similar(metric, step.kept)
        assert torch.equal(into, step.into)
        after = torch.zeros(2, kept.shape[1], 1)
        for b in range(2):
            for slot in range(kept.shape[1]):
                members = (into[b] == slot).nonzero().flatten()
                weight = sizes[b, members]
                after[b, slot] = weight.sum()
                mean = (x[b, members] * weight).sum(0) / weight.sum()
                torch.testing.assert_close(merged[b, slot], mean)
        sizes = after
    assert sizes.sum(1).flatten().tolist() == [64, 64]
    last, average = received
    torch.testing.assert_close(average, (last * sizes).sum(1) / 64)


@torch.no_grad()
def test_the_pooler_of_vjepa2_weighs_tokens_by_size() -> None:
    """Tokens that stand for others weigh as if they were there as often."""
    model = sta.apply(VJEPA2.make(), sta.STAConfig(r=4, merge=True))
    seen = []
    model.pooler.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    model(VJEPA2.clip(batch=1))
    (tokens, pooled), sizes = seen[0], find(model).steps[-1].sizes
    sta.remove(model)
    repeated = tokens[0].repeat_interleave(sizes[0, :, 0].long(), 0).unsqueeze(0)
    assert repeated.shape[1] == 64
    torch.testing.assert_close(pooled, model.pooler(repeated), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("backbone", [VIDEOMAE, VIVIT, VJEPA2], ids=str)
def test_attention_weighs_by_size(backbone: object) -> None:
    """With tokens repeated as often as they stand for, the stock block gives them the same."""
    config = sta.STAConfig(schedule=(6,), blocks=(1,), merge=True, proportional=True)
    model = sta.apply(backbone.make(), config)
    adapter = find(model)
    block, seen = adapter.blocks[1], []
    block.register_forward_hook(
        lambda _, args, kwargs, out: seen.append((args, out)), with_kwargs=True
    )
    output(model, backbone.clip(batch=1))
    (args, out), step = seen[0], adapter.steps[0]
    sta.remove(model)
    x, prefix = args[0], adapter.prefix
    out = out[0] if isinstance(out, tuple) else out
    often = torch.cat([torch.ones(prefix), step.sizes[0, :, 0]]).long()
    rows = torch.arange(len(often)).repeat_interleave(often)
    positions = () if len(args) < 2 or args[1] is None else (args[1][:, rows],)
    again = block(x[:, rows], *positions)
    again = again[0] if isinstance(again, tuple) else again
    torch.testing.assert_close(again, out[:, rows], rtol=0, atol=1e-5)


@torch.no_grad()
def test_features_of_a_bare_encoder_weigh_by_size() -> None:
    inner = sta.apply(VIDEOMAE.make().videomae, sta.STAConfig(r=4, merge=True))
    clip = VIDEOMAE.clip()
    pooled = encode(inner, clip)
    tokens, sizes = inner(clip).last_hidden_state, find(inner).steps[-1].sizes
    torch.testing.assert_close(pooled, weighted_mean(tokens, sizes))
    assert (pooled - tokens.mean(1)).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_another_type_go_with_a_model_in_half_precision(dtype: torch.dtype) -> None:
    model = sta.apply(VIDEOMAE.make(), sta.VidTLDRConfig(r=12))  # its weights are float32
    exact = output(model, VIDEOMAE.clip())
    low = output(model.to(dtype), VIDEOMAE.clip().to(dtype))
    assert low.dtype == dtype
    torch.testing.assert_close(low.float(), exact, rtol=0, atol=0.1)


@torch.no_grad()
@pytest.mark.parametrize("config", [sta.WardConfig(r=16), sta.STAConfig(r=16, merge=True)])
def test_features_of_swins_blocks_weigh_regions_by_size(config: sta.Config) -> None:
    """As the head does, which averages a grid with every region at all of its places."""
    model, clip, seen = sta.apply(SWIN.make(), config), SWIN.clip(), []
    block, _ = find(model).all_blocks()[2]
    block.register_forward_hook(lambda _, args, out: seen.append(out))
    pooled = encode(model, clip, block=3)
    everywhere = sta.restore(model, seen[0]).flatten(1, 2)  # (B, T * N, C)
    torch.testing.assert_close(pooled, everywhere.mean(1))
    assert (pooled - seen[0].mean(1)).abs().max() > 1e-3


def test_proportional_attention_is_for_merged_tokens() -> None:
    with pytest.raises(ValueError, match="set merge=True"):
        sta.STAConfig(r=4, proportional=True)


@pytest.mark.parametrize("kind", [sta.STAConfig, sta.RandomConfig, sta.FrameDifferenceConfig])
def test_what_fills_windows_is_refused_where_there_are_none(kind: type[sta.Config]) -> None:
    model = VIDEOMAE.make()
    with pytest.raises(
        ValueError, match=rf'{kind.__name__}\(fill="clip"\) cannot be applied to VideoMAE'
    ):
        sta.apply(model, kind(r=4, fill="clip"))  # type: ignore[call-arg]
    assert isinstance(sta.apply(model, kind(r=4, fill="frame")), type(model))  # type: ignore[call-arg]
