"""Run-length tokenization: counts that follow the clip, in batches of unequal ones."""

from __future__ import annotations

import pytest
import torch

import sta
from backbones import BACKBONES, Backbone, output
from sta.backbones.encode import encode
from sta.core.difference import run_change
from sta.core.threshold import keep_above

COLUMNAR = [b for b in BACKBONES if b.name in ("videomae", "vjepa2", "vivit", "videomae-eager")]
BARE = [b for b in BACKBONES if b.name in ("videomae-headless-odd", "vjepa2-features-eager-longer")]


def test_what_stays_changed_by_more_than_the_threshold() -> None:
    pixels = torch.rand(2, 6, 3, 4, 6, generator=torch.Generator().manual_seed(0))
    change = run_change(pixels, (2, 2, 3))  # 3 x 2 x 2
    assert change.shape == (2, 3, 4)
    assert change[:, 0].isinf().all()
    for b, t, row, column in torch.cartesian_prod(*map(torch.arange, (2, 2, 2, 2))).tolist():
        place = (slice(2 * row, 2 * row + 2), slice(3 * column, 3 * column + 3))
        after, before = pixels[b, 2 * t + 3][:, *place], pixels[b, 2 * t][:, *place]
        expected = (after - before).abs().mean()
        torch.testing.assert_close(change[b, t + 1, 2 * row + column], expected)
    threshold = float(change[:, 1:].median())
    counts = (change > threshold).sum((1, 2))
    kept, found = keep_above(change, threshold, int(counts.max()))
    assert torch.equal(found, counts)
    for b in range(2):
        expected = (change[b].flatten() > threshold).nonzero().flatten()
        assert kept[b].unique().tolist() == expected.tolist()
        assert kept[b, : counts[b]].tolist() == expected.tolist()
        assert (kept[b, counts[b] :] == expected[-1]).all()
    fewest, found = keep_above(change, threshold, 5)  # the first frame, and what changed most
    assert found.tolist() == [5, 5]
    for b in range(2):
        assert fewest[b].tolist() == [0, 1, 2, 3, 4 + int(change[b, 1:].argmax())]


@torch.no_grad()
@pytest.mark.parametrize("buckets", [None, (20, 40, 64)])
@pytest.mark.parametrize("backbone", COLUMNAR, ids=str)
def test_a_clip_in_a_batch_of_unequal_ones_is_as_alone(
    backbone: Backbone, buckets: tuple[int, ...] | None
) -> None:
    model, batch = sta.apply(backbone.make(), sta.RLTConfig(buckets=buckets)), backbone.unequal()
    together = output(model, batch)
    (kept,) = sta.kept(model)
    lengths = [len(row.unique()) for row in kept]
    assert lengths[0] == 16  # a frame of tokens
    assert 16 < lengths[1] < lengths[2] == 64
    states = torch.randn(3, kept.shape[1], 4)
    for row, place in zip(states, kept, strict=True):  # what fills a clip up is its last token
        row[:] = row[torch.searchsorted(place, place)]
    dense = sta.restore(model, states)
    for number in range(3):
        alone = output(model, batch[number : number + 1])
        torch.testing.assert_close(together[number : number + 1], alone, rtol=0, atol=1e-5)
        (own,) = sta.kept(model)
        assert torch.equal(own[0].unique(), kept[number].unique())
        filled = sta.restore(model, states[number : number + 1, : own.shape[1]])
        torch.testing.assert_close(filled[0], dense[number])
    order = [2, 0, 1]
    torch.testing.assert_close(output(model, batch[order]), together[order], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("backbone", BARE, ids=str)
def test_features_of_unequal_clips_are_as_alone(backbone: Backbone) -> None:
    model, batch = sta.apply(backbone.make(), sta.RLTConfig()), backbone.unequal()
    inner = getattr(model, "model", model)  # the encoder itself
    for dense in (False, True):
        together = encode(inner, batch, dense=dense)
        for number in range(3):
            alone = encode(inner, batch[number : number + 1], dense=dense)
            torch.testing.assert_close(together[number : number + 1], alone, rtol=0, atol=1e-5)


@torch.no_grad()
def test_clips_of_one_length_run_the_stock_attention() -> None:
    """All of a clip's tokens: the stock model, up to how patches are embedded."""
    backbone = COLUMNAR[0]
    clip = backbone.clip()
    expected = output(backbone.make(), clip)
    model = sta.apply(backbone.make(), sta.RLTConfig())
    torch.testing.assert_close(output(model, clip), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"threshold": -1}, "threshold=-1"),
        ({"buckets": ()}, "rising numbers"),
        ({"buckets": (40, 20)}, "rising numbers"),
        ({"buckets": (1.5,)}, "whole number"),
        ({"buckets": 200}, "must be several"),
    ],
)
def test_settings_that_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sta.RLTConfig(**wrong)


def test_a_bucket_holds_a_frame() -> None:
    with pytest.raises(ValueError, match="16 tokens here"):
        sta.apply(COLUMNAR[0].make(), sta.RLTConfig(buckets=(15,)))
