"""What every adapter must do, asserted once, for every backbone family."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

import sta
from backbones import BACKBONES, SCORED, Backbone, output
from sta.backbones import find


def _kind(config: sta.Config) -> tuple[object, ...]:
    return config.method, config.budget, config.merge


METHODS = [
    pytest.param(backbone, config, id=f"{backbone}-{config.method}-{i}")
    for backbone in (*BACKBONES, SCORED)
    for i, config in enumerate((*([backbone.config] * (backbone in BACKBONES)), *backbone.configs))
]

# One of each method, for what takes seconds: a method's settings do not change its kind of graph.
ONE_OF_EACH = list({(str(p.values[0]), _kind(p.values[1])): p for p in reversed(METHODS)}.values())


def trace(model: nn.Module) -> dict[str, object]:
    """Everything that a plug could leave behind in a model."""
    return {
        name: (
            type(module),
            sorted(module.__dict__),
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            len(module._forward_hooks_with_kwargs),
        )
        for name, module in model.named_modules()
    }


@torch.no_grad()
def test_r_zero_is_the_stock_model_bit_for_bit(backbone: Backbone) -> None:
    model, clip = backbone.make(), backbone.clip()
    stock = output(model, clip)
    for config in (sta.STAConfig(r=0), sta.RandomConfig(r=0)):
        sta.apply(model, config)
        assert torch.equal(output(model, clip), stock)
        for step, kept in enumerate(sta.kept(model)):
            grid = backbone.grid(step)
            assert kept.tolist() == [[list(range(grid.tokens))] * grid.frames] * 2


@torch.no_grad()
@pytest.mark.parametrize(("backbone", "config"), METHODS)
def test_remove_gives_the_stock_model_back(backbone: Backbone, config: sta.Config) -> None:
    model, clip = backbone.make(), backbone.clip()
    stock, before = output(model, clip), trace(model)
    assert sta.apply(model, config) is model
    pruned = output(model, clip)
    assert not torch.equal(pruned, stock)
    assert pruned.isfinite().all()
    assert sta.remove(model) is model
    assert trace(model) == before
    assert torch.equal(output(model, clip), stock)
    with pytest.raises(ValueError, match="no method is applied"):
        sta.kept(model)


@torch.no_grad()
def test_dense_agrees_with_stock(backbone: Backbone) -> None:
    model, clip = backbone.make(), backbone.clip()
    stock = output(model, clip)
    dense = output(sta.apply(model, sta.DenseConfig()), clip)
    torch.testing.assert_close(dense, stock, rtol=0, atol=backbone.dense_tolerance)


@torch.no_grad()
@pytest.mark.parametrize(("backbone", "config"), METHODS)
def test_kept_are_places_of_the_grid(backbone: Backbone, config: sta.Config) -> None:
    model = sta.apply(backbone.make(), config)
    with pytest.raises(RuntimeError, match="run a forward first"):
        sta.kept(model)
    output(model, backbone.clip())
    earlier: list[set[int]] = []
    for step, kept in enumerate(sta.kept(model)):
        assert kept.dtype == torch.int64
        assert (kept.diff(dim=-1) > 0).all()  # ascending, so unique
        grid = backbone.grid(step)
        assert kept.min() >= 0
        assert kept.max() < (grid.tokens if kept.ndim == 3 else grid.tokens * grid.frames)
        if kept.ndim == 3:
            assert kept.shape[:2] == (2, grid.frames)
        places = [set(row.tolist()) for row in kept.flatten(0, -2)]
        if earlier and len(backbone.grids) == 1:  # what one step dropped, no later one has
            assert all(now <= old for now, old in zip(places, earlier, strict=True))
        earlier = places


@torch.no_grad()
def test_drops_follow_the_schedule(backbone: Backbone) -> None:
    model = backbone.make()
    sta.apply(model, backbone.config)
    output(model, backbone.clip())
    random = copy.deepcopy(model)
    sta.apply(random, sta.RandomConfig(r=backbone.r))
    output(random, backbone.clip())
    shapes = [tuple(k.shape) for k in sta.kept(model)]
    assert shapes == [tuple(k.shape) for k in sta.kept(random)]
    assert shapes[0] == (2, backbone.grids[0].frames, backbone.grids[0].tokens - backbone.r)
    assert len(shapes) == 3 or len(backbone.grids) > 1


@torch.no_grad()
@pytest.mark.parametrize(("backbone", "config"), METHODS)
def test_a_clip_does_not_depend_on_its_batch(backbone: Backbone, config: sta.Config) -> None:
    """Permuting the batch permutes the result; a clip alone gives what it gives in company."""
    clip = backbone.clip(batch=3)
    order = torch.tensor([2, 0, 1])
    model = sta.apply(backbone.make(), config)
    logits, kept = output(model, clip), sta.kept(model)
    again = output(model, clip[order])
    torch.testing.assert_close(again, logits[order], rtol=0, atol=1e-5)
    for one, other in zip(sta.kept(model), kept, strict=True):
        assert torch.equal(one, other[order])
    torch.testing.assert_close(output(model, clip[1:2]), logits[1:2], rtol=0, atol=1e-5)


@pytest.mark.parametrize("more", [0, 1], ids=["whole patches", "a rest"])
def test_patches_are_embedded_as_in_the_stock_model(backbone: Backbone, more: int) -> None:
    model = backbone.make()
    (conv,) = (module for module in model.modules() if isinstance(module, nn.Conv3d))
    sizes = (step * 3 + more for step in conv.kernel_size)
    pixels = torch.randn(2, conv.in_channels, *sizes)

    def embedded() -> tuple[Tensor, ...]:
        pixels.requires_grad_()
        out = conv(pixels)
        return out, *torch.autograd.grad(out.sin().sum(), (pixels, conv.weight, conv.bias))

    stock = embedded()
    sta.apply(model, backbone.config)
    assert type(conv) is not nn.Conv3d
    torch.testing.assert_close(embedded(), stock, rtol=1e-4, atol=1e-4)
    sta.apply(model, sta.DenseConfig())
    assert type(conv) is nn.Conv3d


@torch.no_grad()
def test_applying_again_replaces(backbone: Backbone) -> None:
    model, clip = backbone.make(), backbone.clip()
    once = output(sta.apply(model, backbone.config), clip)
    for config in (*backbone.configs, backbone.config, backbone.config):
        sta.apply(model, config)
    assert torch.equal(output(model, clip), once)


def test_a_refused_config_leaves_the_model_as_it_was(backbone: Backbone) -> None:
    model = sta.apply(backbone.make(), backbone.config)
    before = trace(model)
    for config in (*backbone.refused, sta.STAConfig(r=2, blocks=(1, 99))):
        with pytest.raises(ValueError, match=r"\d|cannot"):
            sta.apply(model, config)
    assert trace(model) == before


@torch.no_grad()
@pytest.mark.parametrize(("backbone", "config"), ONE_OF_EACH)
def test_compile_full_graph(backbone: Backbone, config: sta.Config) -> None:
    torch._dynamo.reset()
    model, clip = sta.apply(backbone.make(), config), backbone.clip()
    eager, kept = output(model, clip), sta.kept(model)
    # Tracing is what can fail; the slow code generator runs for one model, in test_compile.py.
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(output(compiled, clip), eager, rtol=0, atol=1e-4)
    for one, other in zip(sta.kept(model), kept, strict=True):
        assert torch.equal(one, other)
    with torch._dynamo.config.patch(error_on_recompile=True):  # other clips, same shape
        output(compiled, backbone.clip(seed=1))
        output(compiled, backbone.clip(seed=2))


@torch.no_grad()
@pytest.mark.parametrize(("backbone", "config"), ONE_OF_EACH)
def test_export(backbone: Backbone, config: sta.Config) -> None:
    model, clip = sta.apply(backbone.make(), config), backbone.clip()
    eager = output(model, clip)
    program = torch.export.export(model, (clip,))
    torch.testing.assert_close(output(program.module(), clip), eager, rtol=0, atol=1e-4)
    output(model, clip)
    sta.kept(model)  # real again after a real forward


@torch.no_grad()
@pytest.mark.parametrize(("backbone", "config"), METHODS)
def test_copies_and_pickles_prune_on_their_own(backbone: Backbone, config: sta.Config) -> None:
    model, clip = sta.apply(backbone.make(), config), backbone.clip()
    pruned = output(model, clip)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        _torch_saved(model),
    ):
        assert torch.equal(output(twin, clip), pruned)
        sta.remove(twin)
        assert not torch.equal(output(twin, clip), pruned)
    assert torch.equal(output(model, clip), pruned)  # the twins' removal did not reach it


def _torch_saved(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def test_state_dict_is_the_stock_models(backbone: Backbone) -> None:
    stock, model = backbone.make(), sta.apply(backbone.make(), backbone.config)
    assert model.state_dict().keys() == stock.state_dict().keys()
    stock.load_state_dict(model.state_dict())


@pytest.mark.parametrize(("backbone", "config"), ONE_OF_EACH)
def test_gradients_reach_every_parameter_that_the_stock_model_trains(
    backbone: Backbone, config: sta.Config
) -> None:
    clip = backbone.clip()
    model = backbone.make().train()
    output(model, clip).square().sum().backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    sta.apply(model, config)
    output(model, clip).square().sum().backward()
    for name, parameter in model.named_parameters():
        own = config.learns and f".{config.method}." in name
        assert (parameter.grad is not None) == (own or name in trained), name
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(("backbone", "config"), ONE_OF_EACH)
def test_gradient_checkpointing_changes_nothing(backbone: Backbone, config: sta.Config) -> None:
    if not backbone.checkpointing:
        pytest.skip("the stock model has no gradient checkpointing")
    clip = backbone.clip()
    gradients = []
    for checkpointing in (False, True):
        model = sta.apply(backbone.make(), config).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        output(model, clip).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(checkpointed, plain)


@torch.no_grad()
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_pixels_come_out_as_nan(backbone: Backbone, bad: float) -> None:
    clip = backbone.clip()
    clip[0, 0, 0, 0, 0] = bad
    model = sta.apply(backbone.make(), backbone.config)
    logits = output(model, clip)
    assert not logits[0].isfinite().all()
    assert logits[1].isfinite().all()


@torch.no_grad()
def test_a_still_clip_is_pruned_without_nan(backbone: Backbone) -> None:
    model = backbone.make()
    for clip in (torch.zeros(1, *backbone.shape), torch.ones(1, *backbone.shape)):
        assert output(sta.apply(model, backbone.config), clip).isfinite().all()


@pytest.mark.parametrize(("backbone", "config"), ONE_OF_EACH)
def test_gflops_fall(backbone: Backbone, config: sta.Config) -> None:
    model, shape = backbone.make(), (1, *backbone.shape)
    stock = sta.gflops(model, shape)
    sta.apply(model, config)
    pruned = sta.gflops(model, shape)
    assert pruned > 0
    # On models as tiny as these, comparing all tokens with all costs more than it saves.
    assert pruned < stock or config.method in ("k-centre", "vid-tldr")
    assert sta.gflops(model, (4, *backbone.shape)) == pytest.approx(4 * pruned, rel=1e-6)
    assert sta.gflops(model.to("meta"), shape) == pruned


@torch.no_grad()
@pytest.mark.parametrize(("backbone", "config"), METHODS)
def test_restore_puts_tokens_back(backbone: Backbone, config: sta.Config) -> None:
    """Give every kept token its own place as its value: kept places must get themselves back."""
    model = sta.apply(backbone.make(), config)
    output(model, backbone.clip())
    kept = sta.kept(model)[-1]
    grid = backbone.grid(len(sta.kept(model)) - 1)
    if kept.ndim == 3:
        offset = torch.arange(grid.frames).view(1, -1, 1) * grid.tokens
        places = (kept + offset).flatten(1)
        dense = sta.restore(model, places.unsqueeze(-1).float()).flatten(1)  # (B, T * N)
        assert dense.shape == (2, grid.frames * grid.tokens)
        assert torch.equal(dense.gather(1, places), places.float())
        if config.merge:  # a place holds the token that it was merged into
            return
        frames = dense.view(2, grid.frames, -1) // grid.tokens
        assert torch.equal(frames, offset.expand_as(frames) / grid.tokens)  # filled from its frame
    else:
        tokens = torch.randn(2, kept.shape[1], 7)
        dense = sta.restore(model, tokens)
        assert dense.shape == (2, grid.frames, grid.tokens, 7)
        for clip, filled in zip(tokens, dense.flatten(1, 2), strict=True):
            assert set(map(tuple, filled.tolist())) == set(map(tuple, clip.tolist()))
    with pytest.raises(ValueError, match="per clip"):
        sta.restore(model, torch.zeros(2, 1, 3))
    with pytest.raises(ValueError, match="tokens"):  # of another batch
        sta.restore(model, torch.zeros(1, kept[0].numel(), 3))


@torch.no_grad()
@pytest.mark.parametrize(
    "config",
    [
        sta.STAConfig(r=2, budget="clip"),  # drops 2, 1 and 0
        sta.RandomConfig(schedule=(4, 0, 2), budget="clip"),
        sta.VidTLDRConfig(r=5),  # 5, 1 and 0 of the clip
    ],
    ids=lambda config: config.method,
)
def test_after_a_step_that_drops_nothing_tokens_are_where_they_were(config: sta.Config) -> None:
    """Frames that have lost different numbers of tokens are no equal parts of the rows."""
    model = sta.apply(BACKBONES[0].make(), config)
    output(model, BACKBONES[0].clip())
    kept, drops = sta.kept(model), [step.drop for step in find(model).steps]
    idle = drops.index(0)
    assert torch.equal(kept[idle], kept[idle - 1])
    for places in kept:
        dense = sta.restore(model, places.unsqueeze(-1).float()).flatten(1)  # (B, T * N)
        assert torch.equal(dense.gather(1, places), places.float())
