"""V-JEPA 2: rotary positions of the kept tokens, the predictor, clips of any length."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from transformers import VJEPA2Config, VJEPA2ForVideoClassification, VJEPA2Model
from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2Encoder, VJEPA2Layer

import sta
from backbones import seeded
from masked import gaps
from sta.backbones.vit_hooks import ForwardState, PassPositions

STEPPED = sta.STAConfig(schedule=(5, 3), blocks=(1, 3))
ALL = (
    STEPPED,
    sta.STAConfig.released(5),
    sta.RandomConfig(r=5),
    sta.FrameDifferenceConfig(r=6),
    sta.ToMeConfig(r=8),
    sta.ToMeConfig(r=8, proportional=True),
)
METHODS = pytest.mark.parametrize("method", ALL, ids=lambda m: f"{m.method}-{ALL.index(m)}")


def config() -> VJEPA2Config:
    return VJEPA2Config(
        crop_size=32,
        patch_size=8,
        frames_per_clip=8,
        hidden_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        mlp_ratio=2.0,
        num_pooler_layers=1,
        pred_hidden_size=24,
        pred_num_attention_heads=2,
        pred_num_hidden_layers=1,
        num_labels=5,
    )


def make() -> VJEPA2Model:
    return seeded(lambda: VJEPA2Model(config()))()


def clip(frames: int = 8, batch: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(batch, frames, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def features(model: VJEPA2Model, pixels: Tensor) -> Tensor:
    return model(pixels, skip_predictor=True).last_hidden_state


def gap(model: VJEPA2Model, steps_at: tuple[int, ...], frames: int = 8) -> float:
    stock = make()
    attentions = [block.attention for block in stock.encoder.layer]
    return max(gaps(model, stock, attentions, steps_at, clip(frames)))


@torch.no_grad()
@pytest.mark.parametrize(
    ("method", "steps_at"),
    [
        (STEPPED, (1, 3)),
        (sta.STAConfig(schedule=(0, 6), blocks=(1, 2), similarity="query"), (1, 2)),
        (sta.RandomConfig(schedule=(7, 2), blocks=(2, 3)), (2, 3)),
        (sta.FrameDifferenceConfig(r=6), (0,)),
        (sta.STAConfig(r=4, blocks=(1, 3), budget="clip", temporal="place"), (1, 3)),
    ],
)
def test_kept_tokens_keep_their_rotary_positions(
    method: sta.Config, steps_at: tuple[int, ...]
) -> None:
    """Every block gives its kept tokens what the dense one does, masked to attend to them only."""
    model = sta.apply(make(), method)
    assert gap(model, steps_at) < 1e-5
    assert gap(model, steps_at, frames=4) < 1e-5


@torch.no_grad()
def test_wrong_rotary_positions_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above is sharp: without the places, blocks count their tokens 0, 1, 2, ..."""
    monkeypatch.setattr(PassPositions, "__call__", lambda *_: None)
    assert gap(sta.apply(make(), STEPPED), (1, 3)) > 1e-2


@torch.no_grad()
@METHODS
def test_blocks_are_told_the_places_that_kept_reports(method: sta.Config) -> None:
    model = sta.apply(make(), method)
    told: list[Tensor | None] = []
    for block in model.encoder.layer:
        block.register_forward_pre_hook(lambda _, args: told.append(args[1]))
    features(model, clip())
    reported = []
    for kept in sta.kept(model):
        if kept.ndim == 3:
            kept = (kept + torch.arange(4).view(1, -1, 1) * 16).flatten(1)
        reported.append(kept)
    seen = [places.sort(-1).values for places in told if places is not None]
    assert seen
    for places in seen:
        assert any(places.shape == r.shape and torch.equal(places, r) for r in reported)


@METHODS
def test_every_forward_remembers_its_own_clip(method: sta.Config) -> None:
    """Gradient checkpointing runs blocks again after another clip has passed through the model."""
    gradients = []
    for checkpointing in (False, True):
        model = sta.apply(make(), method).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        first, second = features(model, clip(seed=1)), features(model, clip(seed=2))
        (first.square().sum() + second.sum()).backward()
        gradients.append({n: p.grad for n, p in model.encoder.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@torch.no_grad()
@METHODS
def test_forwards_may_interleave(method: sta.Config) -> None:
    """As when threads share a model: another clip passes while this one is between two blocks."""
    model = sta.apply(make(), method)
    alone = features(model, clip(seed=1))
    other = iter([clip(seed=2)])

    def interrupt(*_: object) -> None:
        if (pixels := next(other, None)) is not None:
            features(model, pixels)

    model.encoder.layer[1].norm1.register_forward_hook(interrupt)
    assert torch.equal(features(model, clip(seed=1)), alone)
    assert next(other, None) is None


@torch.no_grad()
def test_threads_may_have_clips_of_other_lengths() -> None:
    """A step at the input tells later ones its clip's frames; meanwhile another thread's passes."""
    model = sta.apply(make(), sta.STAConfig(schedule=(5, 3), blocks=(0, 2)))
    alone = features(model, clip(8))
    longer, made = clip(16), []

    @torch.no_grad()
    def other() -> None:
        made.append(features(model, longer))

    def interrupt(*_: object) -> None:
        handle.remove()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    handle = model.encoder.embeddings.register_forward_hook(interrupt)
    assert torch.equal(features(model, clip(8)), alone)
    assert torch.equal(made[0], features(model, longer))


@torch.no_grad()
def test_the_predictor_needs_all_tokens() -> None:
    model = make()
    stock = model(clip())
    sta.apply(model, sta.STAConfig(r=0))
    assert torch.equal(model(clip()).predictor_output[0], stock.predictor_output[0])
    sta.apply(model, STEPPED)
    with pytest.raises(ValueError, match="skip_predictor=True"):
        model(clip())
    mask = [torch.arange(8).expand(2, -1)]
    for call in ({"context_mask": mask}, {"target_mask": mask}):
        with pytest.raises(ValueError, match="without context_mask"):
            model(clip(), skip_predictor=True, **call)
    with pytest.raises(ValueError, match="predictor"):
        model(clip(), mask, mask, True)
    kept = features(model, clip())
    assert kept.shape == (2, 4 * 8, 48)
    assert torch.equal(model.get_vision_features(clip()), kept)
    out = model(clip(), None, None, True)
    assert torch.equal(out.masked_hidden_state, kept)


@torch.no_grad()
@pytest.mark.parametrize(("frames", "grid"), [(1, 1), (2, 1), (6, 3), (7, 3), (16, 8)])
def test_clips_of_other_lengths(frames: int, grid: int) -> None:
    """The config's frames_per_clip is no limit of the stock model, so it is none here."""
    for method in (STEPPED, sta.RandomConfig(r=4), sta.FrameDifferenceConfig(r=6)):
        model = sta.apply(make(), method)
        tokens = features(model, clip(frames))
        kept = sta.kept(model)[-1]
        assert kept.shape[:2] == (2, grid)
        assert tokens.shape[1] == grid * kept.shape[2]
        assert sta.restore(model, tokens).shape == (2, grid, 16, 48)


@torch.no_grad()
def test_clips_that_do_not_fit() -> None:
    model = sta.apply(make(), STEPPED)
    with pytest.raises(ValueError, match="32 x 32 pixels"):
        features(model, torch.zeros(1, 8, 3, 64, 64))
    sta.apply(model, sta.STAConfig.released(4))  # its groups are made for the config's length
    with pytest.raises(ValueError, match="regroups frames by 4"):
        features(model, clip(4))
    sta.apply(model, sta.ToMeConfig(r=10))
    assert features(model, clip()).shape[1] == 64 - 40
    assert features(model, clip(2)).shape[1] == 1  # of 16 tokens, half in every block


@torch.no_grad()
def test_half_precision() -> None:
    model = sta.apply(seeded(lambda: VJEPA2ForVideoClassification(config()))(), STEPPED)
    logits = model(clip()).logits
    half = model.bfloat16()(clip()).logits
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()
    assert logits.shape == half.shape


def test_a_block_that_takes_no_positions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assumes that VJEPA2Layer.forward takes `position_mask`, wherever among its arguments."""

    def forward(self: nn.Module, hidden_states: Tensor, **kwargs: object) -> Tensor:
        raise NotImplementedError

    model = make()
    monkeypatch.setattr(VJEPA2Layer, "forward", forward)
    with pytest.raises(TypeError, match=r"VJEPA2Layer\.forward has no argument 'position_mask'"):
        sta.apply(model, STEPPED)
    assert not any(module._forward_hooks for module in model.modules())


def test_an_encoder_that_passes_nothing_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assumes that VJEPA2Encoder.forward hands its keyword arguments to its blocks."""

    def forward(self: nn.Module, pixel_values_videos: Tensor) -> Tensor:
        raise NotImplementedError

    model = make()
    monkeypatch.setattr(VJEPA2Encoder, "forward", forward)
    with pytest.raises(TypeError, match=r"VJEPA2Encoder\.forward takes no further keyword"):
        sta.apply(model, STEPPED)


def test_a_forwards_state_composes_steps() -> None:
    state = ForwardState()
    state.add(0, torch.tensor([[1, 4, 6, 9]]))
    state.add(1, torch.tensor([[0, 3]]))
    state.add(0, torch.tensor([[1, 4, 6, 9]]))  # the first block, run again
    assert state.positions[1].tolist() == [[1, 9]]
    assert state.positions[0].tolist() == [[1, 4, 6, 9]]
