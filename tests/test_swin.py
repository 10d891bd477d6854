"""Video Swin: the same network on fewer tokens, checked against the stock modules themselves."""

from __future__ import annotations

import copy
import pickle
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.models.swin_transformer import PatchMerging
from torchvision.models.video import SwinTransformer3d
from torchvision.models.video.swin_transformer import ShiftedWindowAttention3d

import sta
from golden import official_file, tensors
from sta.backbones import find
from sta.backbones.swin_attention import window_attention
from sta.backbones.swin_site import features
from sta.backbones.swin_tokens import StageTokens
from sta.backbones.swin_windows import Windows, box_biases, boxes, window_bias
from sta.core.tokens import clip_indices


def tiny(**overrides: object) -> SwinTransformer3d:
    torch.manual_seed(0)
    arguments = {
        "patch_size": [2, 4, 4],
        "embed_dim": 8,
        "depths": [2, 2, 2, 1],
        "num_heads": [1, 2, 2, 4],
        "window_size": [2, 3, 4],
        "num_classes": 5,
        **overrides,
    }
    model = SwinTransformer3d(**arguments)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    return model.eval()


def brute_source(x: Tensor, kept: Tensor, fill: str = "frame") -> Tensor:
    """The kept token that stands at every place, (B, T, H, W): every place looks at all of them."""
    batch, frames, height, width, _ = x.shape
    centred = x.flatten(1, 3) - x.flatten(1, 3).mean(1, keepdim=True)
    found = torch.empty(batch, frames, height, width, dtype=torch.long)
    for b, t, i, j in product(*map(range, found.shape)):
        far = (kept[b] // width - i) ** 2 + (kept[b] % width - j) ** 2  # (T, K)
        slot = far.argmin(-1) + torch.arange(frames) * kept.shape[-1]  # the nearest of each frame
        own = far[t].min() == 0
        if fill == "frame" or own:
            found[b, t, i, j] = slot[t]
            continue
        place = kept[b].flatten()[slot] + torch.arange(frames) * height * width
        here = centred[b, (t * height + i) * width + j]
        found[b, t, i, j] = slot[torch.cosine_similarity(here, centred[b, place], dim=-1).argmax()]
    return found


def brute_fill(rows: Tensor, source: Tensor) -> Tensor:
    """Kept tokens onto the grid, (B, T, K, C) -> (B, T, H, W, C)."""
    return torch.stack([r.flatten(0, 1)[s] for r, s in zip(rows, source, strict=True)])


def by_hand(
    model: SwinTransformer3d, clip: Tensor, kept: list[Tensor], pool: str, fill: str = "frame"
) -> Tensor:
    """The pruned network out of stock parts: fill the grid, run a stock block, drop again."""
    x, step, tokens, chosen = model.patch_embed(clip), -1, None, None
    for module in model.features:
        if isinstance(module, PatchMerging):
            x, step = module(x), step + 1
            continue
        if step < 0:
            x = module(x)
            continue
        chosen = kept[step]  # (B, T, K)
        index = chosen.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1])
        source = brute_source(x, chosen, fill)
        entered = tokens = x.flatten(2, 3).gather(2, index)
        for block in module:
            filled = block(brute_fill(tokens, source))
            tokens = filled.flatten(2, 3).gather(2, index)
        if fill == "frame":
            x = brute_fill(tokens, source)
        else:  # every place goes on as itself, changed as the token that stood in for it
            x = x + brute_fill(tokens - entered, source)
    last = model.norm(tokens if pool == "kept" else x)
    return model.head(last.flatten(1, -2).mean(1))


@torch.no_grad()
def test_official_weights_give_the_official_logits(tmp_path: Path) -> None:
    data = tensors("swin_00")
    for wrapper in (None, "state_dict"):
        path = official_file("swin_00", tmp_path / "swin.pth", wrapper)
        for told in ({}, {"num_heads": [1, 2, 3, 6], "window_size": [4, 3, 3]}):
            model = sta.load(path, **told)
            assert isinstance(model, SwinTransformer3d)
            assert not model.training
            logits = model(data["pixel_values"])
            torch.testing.assert_close(logits, data["logits"], rtol=0, atol=1e-4)
            dense = sta.apply(model, sta.DenseConfig())(data["pixel_values"])
            torch.testing.assert_close(dense, data["logits"], rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["kept", "grid"])
@pytest.mark.parametrize("queries", ["all", "kept"])
@pytest.mark.parametrize("fill", ["frame", "clip"])
@pytest.mark.parametrize("shape", [(8, 48, 64), (5, 44, 60)], ids=["whole", "padded"])
def test_pruned_is_stock_blocks_on_filled_grids(
    shape: tuple[int, int, int], fill: str, queries: str, pool: str
) -> None:
    """Also the proof of what stands in for every dropped token, in every block."""
    model, clip = tiny(), torch.randn(2, 3, *shape)
    config = sta.STAConfig(r=20, window_queries=queries, pool=pool, fill=fill)
    logits = sta.apply(model, config)(clip)
    kept = sta.kept(model)
    expected = by_hand(sta.remove(model), clip, kept, pool, fill)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("config", [sta.WardConfig(r=20), sta.STAConfig(r=20, merge=True)])
@pytest.mark.parametrize("shape", [(8, 48, 64), (5, 44, 60)], ids=["whole", "padded"])
def test_merged_is_stock_blocks_on_grids_of_means(
    shape: tuple[int, int, int], config: sta.Config
) -> None:
    """Every place of a region has its mean, and leaves as itself plus what the mean gained."""
    model, clip = tiny(), torch.randn(2, 3, *shape)
    logits = sta.apply(model, config)(clip)
    steps = find(model).steps
    merged = [(clip_indices(step.kept, step.grid.tokens), step.into) for step in steps]
    sta.remove(model)
    x, step = model.patch_embed(clip), -1
    for module in model.features:
        if isinstance(module, PatchMerging):
            x, step = module(x), step + 1
            continue
        if step < 0:
            x = module(x)
            continue
        kept, into = merged[step]
        rows = x.flatten(1, 3)
        means = torch.stack(
            [
                torch.stack([rows[b][into[b] == number].mean(0) for number in range(kept.shape[1])])
                for b in range(len(rows))
            ]
        )
        entered = means
        for block in module:
            grid = torch.stack([m[i] for m, i in zip(means, into, strict=True)]).view_as(x)
            out = block(grid).flatten(1, 3)
            means = torch.stack([o[k] for o, k in zip(out, kept, strict=True)])
        gained = torch.stack([m[i] for m, i in zip(means - entered, into, strict=True)])
        x = x + gained.view_as(x)
    expected = model.head(model.norm(x).flatten(1, -2).mean(1))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_merged_tokens_are_restored_at_all_their_places() -> None:
    model, clip, seen = tiny(), torch.randn(2, 3, 8, 48, 64), []
    sta.apply(model, sta.WardConfig(r=20))
    model.features[4][0].register_forward_hook(lambda m, i, o: seen.append(o))
    model(clip)
    step = find(model).steps[1]
    dense = sta.restore(model, seen[0]).flatten(1, 2)  # (B, T * N, C)
    for b in range(2):
        assert torch.equal(dense[b], seen[0][b][step.into[b]])
    assert [tuple(kept.shape) for kept in sta.kept(model)] == [(2, 112), (2, 28), (2, 12)]


sides = st.integers(1, 9)


@settings(max_examples=40, deadline=None)
@given(st.tuples(sides, sides, sides), st.tuples(*[st.integers(1, 4)] * 3), st.data())
def test_attention_is_the_stock_modules(
    grid: tuple[int, int, int], window: tuple[int, int, int], data: st.DataObject
) -> None:
    """Any grid, window and shift: padding, shrunk windows and windows of one place included."""
    shift = [data.draw(st.integers(0, side - 1)) for side in window]
    torch.manual_seed(0)
    stock = ShiftedWindowAttention3d(8, list(window), shift, 2)
    nn.init.normal_(stock.relative_position_bias_table)
    norm, x = nn.LayerNorm(8), torch.randn(2, *grid, 8)
    with torch.no_grad():
        expected = stock(norm(x))
        for queries in ("all", "kept"):  # whole windows behind a mask, and cut ones
            tokens = StageTokens(x, None, queries)
            windows = Windows.fit(grid, window, (shift[0], shift[1], shift[2]))
            bias = window_bias(
                stock.relative_position_bias_table, stock.relative_position_index, windows.window
            )
            mixed = window_attention(
                tokens.start(x),
                tokens,
                windows,
                box_biases(bias, windows, tokens.cut),
                norm=norm,
                qkv=stock.qkv,
                heads=2,
            )
            got = tokens.fill(stock.proj(mixed))
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@given(st.tuples(sides, sides, sides), st.tuples(*[st.integers(1, 5)] * 3))
def test_boxes_hold_every_place_once(
    grid: tuple[int, int, int], window: tuple[int, int, int]
) -> None:
    windows = Windows.fit(grid, window, (window[0] // 2, window[1] // 2, window[2] // 2))
    for cut in ("masked", "split"):
        places = torch.cat([b.flatten() for b in boxes(windows, cut, torch.device("cpu"))])
        assert places[places < windows.places].sort().values.tolist() == list(range(windows.places))
        padded = windows.padded[0] * windows.padded[1] * windows.padded[2]
        assert len(places) == padded


@torch.no_grad()
def test_kept_queries_do_less_work_for_the_same_result() -> None:
    model, shape = tiny(), (1, 3, 8, 48, 64)
    clip = torch.randn(shape)
    results, work = [], []
    for queries in ("all", "kept"):
        sta.apply(model, sta.STAConfig(r=20, window_queries=queries))
        results.append(model(clip))
        work.append(sta.gflops(model, shape))
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)
    assert work[1] < work[0]


def fresh(model: nn.Module, clip: Tensor, config: sta.Config) -> Tensor:
    """Logits of a model that never saw a clip before."""
    twin = tiny()
    twin.load_state_dict(model.state_dict())
    return sta.apply(twin.to(clip.dtype), config)(clip)


@pytest.mark.parametrize("config", [sta.DenseConfig(), sta.STAConfig(r=20)])
def test_biases_are_never_stale(config: sta.Config) -> None:
    model, clip = sta.apply(tiny(), config), torch.randn(1, 3, 8, 48, 64)
    tables = [p for n, p in model.named_parameters() if "bias_table" in n]

    def check() -> None:
        with torch.no_grad():
            assert torch.equal(model(clip), fresh(model, clip, config))
            assert torch.equal(model(clip), fresh(model, clip, config))  # now from the cache

    check()
    model.train()(clip).square().sum().backward()
    torch.optim.SGD(tables, lr=10.0).step()
    model.eval()
    check()
    for table in tables:  # behind autograd's back, as moving averages do it
        table.data.mul_(-1)
    check()
    model.load_state_dict(tiny().state_dict())
    check()
    clip = torch.randn(1, 3, 4, 36, 36)  # other windows
    check()
    model.double()
    clip = clip.double()
    check()


@pytest.mark.parametrize("table_too", [False, True])
def test_biases_made_in_inference_mode_serve_gradients(table_too: bool) -> None:
    model, clip = sta.apply(tiny(), sta.STAConfig(r=20)), torch.randn(1, 3, 8, 48, 64)
    for module in model.modules():
        if isinstance(module, ShiftedWindowAttention3d):
            with torch.inference_mode(table_too):
                table = module.relative_position_bias_table.detach().clone()
            module.relative_position_bias_table = nn.Parameter(table, requires_grad=False)
            assert module.relative_position_bias_table.is_inference() == table_too
    with torch.inference_mode():
        logits = model(clip)
    again = model(clip)
    assert torch.equal(again, logits)
    again.sum().backward()
    assert model.patch_embed.proj.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_biases_stay_out_of_copies_and_files() -> None:
    model, clip = tiny(), torch.randn(1, 3, 8, 48, 64)
    sta.apply(model, sta.STAConfig(r=20))
    unused = len(pickle.dumps(model))
    logits = model(clip)
    assert len(pickle.dumps(model)) < unused + 1000
    assert torch.equal(copy.deepcopy(model)(clip), logits)


@torch.no_grad()
def test_drops_are_of_the_full_grids() -> None:
    model, clip = tiny(depths=[1, 1, 1, 1]), torch.randn(1, 3, 4, 128, 128)
    sta.apply(model, sta.STAConfig(r=64))(clip)
    lengths = [k.shape[-1] for k in sta.kept(model)]
    assert lengths == [256 - 64, 64 - int(1.5 * 64 / 4), 16 - int(2 * 64 / 16)]
    sta.apply(model, sta.RandomConfig(r=64))(clip)
    assert [k.shape[-1] for k in sta.kept(model)] == lengths
    sta.apply(model, sta.STAConfig(r=4, schedule="constant"))(clip)
    assert [k.shape[-1] for k in sta.kept(model)] == [252, 60, 12]


@torch.no_grad()
def test_blocks_are_stages() -> None:
    model, clip = tiny(depths=[1, 1, 1, 1]), torch.randn(1, 3, 4, 64, 64)
    sta.apply(model, sta.STAConfig(r=8, blocks=(2, 3)))(clip)
    assert [tuple(k.shape) for k in sta.kept(model)] == [(1, 2, 16 - 8), (1, 2, 4 - 3)]
    for blocks, named in (((4,), "4"), ((1, 2, 3, 4), "4")):
        with pytest.raises(ValueError, match=rf"{named}.*3 stages with a patch merging"):
            sta.apply(model, sta.STAConfig(r=4, blocks=blocks))
    with pytest.raises(ValueError, match="4 steps"):
        sta.apply(model, sta.STAConfig(schedule=(4, 3, 2, 1)))


@torch.no_grad()
def test_a_drop_that_leaves_nothing_is_refused_when_the_clip_is_seen() -> None:
    model, clip = tiny(), torch.randn(1, 3, 4, 32, 32)
    sta.apply(model, sta.STAConfig(r=16))
    with pytest.raises(ValueError, match=r"step 1 would drop 16 .*have 16 there"):
        model(clip)
    sta.apply(model, sta.STAConfig(schedule=(4, 4, 0)))
    with pytest.raises(ValueError, match=r"step 2 would drop 4 .*have 4 there"):
        model(clip)


def test_methods_that_cannot_work_on_windows_say_why() -> None:
    for config, reason in (
        (sta.ToMeConfig(r=4), "windows"),
        (sta.STAConfig.released(4), "windows"),
        (sta.PatchChangeConfig(4), "windows"),
    ):
        with pytest.raises(ValueError, match=f"Video Swin: .*{reason}"):
            sta.apply(tiny(), config)


def test_blocks_of_another_make_are_refused() -> None:
    model = tiny()
    model.features[0][0].attn = nn.Identity()
    with pytest.raises(TypeError, match="attends with Identity"):
        sta.apply(model, sta.STAConfig(r=4))


@torch.no_grad()
@pytest.mark.parametrize("pool", ["kept", "grid"])
def test_restore_takes_what_hooks_see(pool: str) -> None:
    model, clip = tiny(), torch.randn(2, 3, 8, 48, 64)
    sta.apply(model, sta.STAConfig(r=20, pool=pool))
    seen: dict[str, Tensor] = {}
    for name, module in (
        ("stage 2", model.features[2]),
        ("block", model.features[4][0]),
        ("stage 4", model.features[6]),
    ):
        module.register_forward_hook(lambda m, i, o, name=name: seen.update({name: o}))
    model(clip)
    kept = sta.kept(model)
    assert torch.equal(sta.restore(model, seen["stage 2"]), seen["stage 2"].flatten(2, 3))
    dense = sta.restore(model, seen["block"])  # (B, T, N, C)
    rows = seen["block"].unflatten(1, (4, -1))
    assert dense.shape == (2, 4, 12, 32)
    assert torch.equal(dense.gather(2, kept[1].unsqueeze(-1).expand_as(rows)), rows)
    assert torch.equal(
        dense,
        brute_fill(rows, brute_source(torch.empty(*rows.shape[:2], 3, 4, 1), kept[1])).flatten(
            2, 3
        ),
    )
    last = sta.restore(model, seen["stage 4"])
    assert last.shape == (2, 4, 4, 64)
    assert seen["stage 4"].shape == ((2, 4, 2, 1, 64) if pool == "kept" else (2, 4, 2, 2, 64))


@torch.no_grad()
def test_frame_difference_keeps_what_moves() -> None:
    """Only one corner moves: its places are kept at every step."""
    clip = torch.zeros(1, 3, 8, 64, 64)
    clip[:, :, :, :16, :16] = torch.randn(1, 3, 8, 16, 16)
    model = sta.apply(tiny(), sta.FrameDifferenceConfig(r=24))
    model(clip)
    for kept, side in zip(sta.kept(model), (8, 4, 2), strict=True):
        corner = {y * side + x for y in range(side // 4) for x in range(side // 4)} or {0}
        assert all(corner <= set(frame.tolist()) for frame in kept[0])


def test_training_keeps_dropout_and_stochastic_depth() -> None:
    clip = torch.randn(2, 3, 8, 48, 64)
    model = tiny(dropout=0.1, attention_dropout=0.1, stochastic_depth_prob=0.5)
    for config in (sta.DenseConfig(), sta.STAConfig(r=20), sta.RandomConfig(r=20)):
        sta.apply(model, config).train()
        first, second = model(clip), model(clip)
        assert not torch.equal(first, second)
        first.sum().backward()
        with torch.no_grad():
            assert torch.equal(model.eval()(clip), model(clip))


def test_stochastic_depth_drops_whole_clips() -> None:
    """With the last block always dropped, a pruned stage is the identity on its kept tokens."""
    model, clip = tiny(depths=[1, 1], num_heads=[1, 2]), torch.randn(2, 3, 8, 48, 64)
    sta.apply(model, sta.STAConfig(r=20)).train()
    model.features[2][0].stochastic_depth.p = 1.0
    seen: list[Tensor] = []
    model.features[2][0].register_forward_hook(lambda m, i, o: seen.extend((i[0], o)))
    model(clip)
    torch.testing.assert_close(seen[0], seen[1])


@torch.no_grad()
def test_reduced_precision() -> None:
    model, clip = tiny(), torch.randn(1, 3, 5, 44, 60)
    for config in (sta.DenseConfig(), sta.RandomConfig(r=20)):
        exact = sta.apply(model, config)(clip)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = model(clip)
        half = copy.deepcopy(model).bfloat16()(clip.bfloat16())
        assert half.dtype == torch.bfloat16
        for rough in (mixed, half):
            torch.testing.assert_close(rough.float(), exact, rtol=0, atol=0.1)


@torch.no_grad()
def test_adapted_projections_are_followed() -> None:
    """A layer put around the projection, as LoRA does, decides which tokens are similar."""

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base
            self.extra = nn.Linear(base.in_features, base.out_features, bias=False)
            nn.init.normal_(self.extra.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.extra(x)

    block = tiny().features[2][0]
    x = torch.randn(2, 9, block.attn.qkv.in_features)
    before = features(block, x, "key")
    block.attn.qkv = Adapted(block.attn.qkv)
    made = block.attn.qkv(block.norm1(x)).chunk(3, -1)[1].unflatten(-1, (block.attn.num_heads, -1))
    torch.testing.assert_close(features(block, x, "key"), made.mean(-2))
    assert not torch.allclose(features(block, x, "key"), before)
