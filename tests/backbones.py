"""Tiny models of every supported family: the adapter suite runs over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torchvision.models.video import SwinTransformer3d
from transformers import (
    VideoMAEConfig,
    VideoMAEForVideoClassification,
    VideoMAEModel,
    VivitConfig,
    VivitForVideoClassification,
    VivitModel,
    VJEPA2Config,
    VJEPA2ForVideoClassification,
    VJEPA2Model,
)

import sta
from outside import LargestConfig
from sta.backbones import Grid
from sta.backbones.patch import add_learned
from sta.methods import METHODS, make_config


@dataclass(frozen=True)
class Backbone:
    """A tiny model and what the suite must know about it.

    Attributes:
        name: Shown in test names.
        make: Builds it, in eval mode, with the same random weights every time.
        shape: Of one clip, without the batch.
        grids: The grid each step chooses from; one entry stands for all steps.
        r: A drop that fits.
        configs: Methods that work on it, beside `STAConfig(r)`.
        refused: Methods that must be refused with a ValueError.
        dense_tolerance: How far `DenseConfig` may be from the stock model.
        checkpointing: Whether the stock model supports gradient checkpointing.
        hidden_states: Whether the stock model can return all hidden states.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    grids: tuple[Grid, ...]
    r: int
    configs: tuple[sta.Config, ...]
    refused: tuple[sta.Config, ...] = ()
    dense_tolerance: float = 0.0
    checkpointing: bool = True
    hidden_states: bool = True
    config: sta.STAConfig = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", sta.STAConfig(r=self.r))

    def clip(self, batch: int = 2, seed: int = 0) -> Tensor:
        """Random pixels."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, *self.shape, generator=generator)

    def unequal(self) -> Tensor:
        """Three clips: a still one, one where a corner moves, and one where all does."""
        busy = self.clip(batch=1)
        still = busy[:, :1].expand_as(busy)
        corner = still.clone()
        corner[..., :9, :9] = busy[..., :9, :9]
        return torch.cat([still, corner, busy])

    def grid(self, step: int) -> Grid:
        """The grid that a step's kept indices refer to."""
        return self.grids[min(step, len(self.grids) - 1)]

    def __str__(self) -> str:
        return self.name


def output(model: nn.Module, clip: Tensor) -> Tensor:
    """The model's logits, or its last hidden state if it has no head."""
    out = model(clip)
    if isinstance(out, Tensor):
        return out
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The same random weights every time, scaled up so that tokens differ visibly."""

    def made() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = make()
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    nn.init.normal_(parameter, std=0.1)
        return model.eval()

    return made


def _videomae(**overrides: object) -> VideoMAEConfig:
    settings = {
        "image_size": 32,
        "patch_size": 8,
        "num_frames": 8,
        "tubelet_size": 2,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "num_labels": 5,
        **overrides,
    }
    return VideoMAEConfig(**settings)


def _vjepa2(**overrides: object) -> VJEPA2Config:
    settings = {
        "crop_size": 32,
        "patch_size": 8,
        "frames_per_clip": 8,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "mlp_ratio": 2.0,
        "num_pooler_layers": 0,
        "pred_hidden_size": 24,
        "pred_num_attention_heads": 2,
        "pred_num_hidden_layers": 1,
        "num_labels": 5,
        **overrides,
    }
    return VJEPA2Config(**settings)


class VJEPA2Features(nn.Module):
    """The encoder alone, as users of the features run it."""

    def __init__(self, config: VJEPA2Config) -> None:
        super().__init__()
        self.model = VJEPA2Model._from_config(config, attn_implementation="eager")

    def forward(self, clip: Tensor) -> Tensor:
        return self.model(clip, skip_predictor=True).last_hidden_state


def _vivit(**overrides: object) -> VivitConfig:
    settings = {
        "image_size": 32,
        "tubelet_size": (2, 8, 8),
        "num_frames": 8,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "num_labels": 5,
        **overrides,
    }
    return VivitConfig(**settings)


def _swin(**overrides: object) -> SwinTransformer3d:
    settings = {
        "patch_size": [2, 4, 4],
        "embed_dim": 8,
        "depths": [1, 2, 2, 2],
        "num_heads": [1, 2, 2, 4],
        "window_size": [2, 4, 4],
        "num_classes": 5,
        **overrides,
    }
    return SwinTransformer3d(**settings)


#: Settings of methods that the suite runs on every columnar family.
LISTED = (
    sta.STAConfig.released(4),
    sta.RandomConfig(r=4),
    sta.ToMeConfig(r=6, proportional=False),
    sta.ToMeConfig(r=6),
    sta.WardConfig(r=4),
    sta.FrameDifferenceConfig(r=5),
    sta.PatchChangeConfig(r=5),
    sta.VidTLDRConfig(r=12),
    sta.KCentreConfig(r=9),
    sta.RLTConfig(buckets=(40,)),
    sta.STAConfig(r=4, budget="clip", temperature=0.1),
    sta.STAConfig(r=4, budget="clip", temporal="place", combine="both"),
    sta.STAConfig(r=4, temporal="pixels", combine="both"),
    sta.STAConfig(r=4, merge=True),
    sta.STAConfig(r=4, merge=True, proportional=True, budget="clip", combine="both"),
    sta.FrameDifferenceConfig(r=5, budget="clip", merge=True, proportional=True),
    sta.STAConfig(schedule=(3, 2), blocks=(0, 2)),
    sta.STAConfig(
        budget="auto", threshold=0.01, buckets=(40,), temporal="place", combine="both", blocks=(1,)
    ),
    sta.FrameDifferenceConfig(budget="auto", threshold=0.1, buckets=(40,)),
    sta.PatchChangeConfig(r=5, budget="clip"),
    sta.PatchChangeConfig(budget="auto", threshold=5.0, buckets=(40,)),
    LargestConfig(r=4),
)
#: Methods that nobody listed run as they are registered. Every backbone runs dense by itself.
OTHERS = METHODS.keys() - {config.method for config in LISTED} - {"sta", "dense"}
COLUMNAR = (
    *LISTED,
    *(make_config(name, 4) for name in sorted(OTHERS) if not METHODS[name].learns),
)

# One code serves all columnar families: every setting of every method runs on one of them alone.
VIT_METHODS = (
    sta.STAConfig(r=4, order="BFB", similarity="ffn", score="temporal", temperature=0.1),
    sta.STAConfig(r=4, similarity="query", score="semantic", first_frame="grid"),
    sta.STAConfig(schedule=(3, 2), blocks=(2, 4), similarity="value", first_frame="random"),
    sta.STAConfig(r=2, schedule="increasing"),
    sta.RandomConfig(r=4, budget="clip"),
    sta.RandomConfig(r=4, merge=True),
    sta.PatchChangeConfig(r=5, merge=True),
    sta.KCentreConfig(r=9, merge=True),
    *COLUMNAR,
)
BRIEFER = (
    sta.STAConfig(schedule=(3, 2), blocks=(2, 3), similarity="value", first_frame="random"),
    *COLUMNAR,
)


def _scored() -> SwinTransformer3d:
    model = _swin()
    add_learned(model, sta.STTSConfig())
    return model


#: With a scorer of its own, for the method that needs one; its grid is that of the input.
SCORED = Backbone(
    name="swin-scored",
    make=seeded(_scored),
    shape=(3, 8, 64, 64),
    grids=(Grid(4, 16, 16),),
    r=1,
    configs=(sta.STTSConfig(r=1), sta.STTSConfig(r=2, window_queries="all")),
    checkpointing=False,
    hidden_states=False,
)

BACKBONES = (
    Backbone(
        name="videomae",
        make=seeded(lambda: VideoMAEForVideoClassification(_videomae())),
        shape=(8, 3, 32, 32),
        grids=(Grid(4, 4, 4),),
        r=4,
        configs=VIT_METHODS,
        refused=(sta.STTSConfig(r=1),),
    ),
    Backbone(
        name="videomae-eager",
        make=seeded(
            lambda: VideoMAEForVideoClassification._from_config(
                _videomae(), attn_implementation="eager"
            )
        ),
        shape=(8, 3, 32, 32),
        grids=(Grid(4, 4, 4),),
        r=4,
        configs=(sta.RandomConfig(r=4),),
    ),
    Backbone(
        name="videomae-headless-odd",
        make=seeded(
            lambda: VideoMAEModel(
                _videomae(image_size=(24, 40), num_frames=6, use_mean_pooling=False)
            )
        ),
        shape=(6, 3, 24, 40),
        grids=(Grid(3, 3, 5),),
        r=5,
        configs=(
            sta.RandomConfig(r=4),
            sta.ToMeConfig(r=3),
            sta.WardConfig(r=3),
            sta.FrameDifferenceConfig(r=7),
        ),
        refused=(sta.STAConfig.released(2),),
    ),
    Backbone(
        name="vjepa2",
        make=seeded(lambda: VJEPA2ForVideoClassification(_vjepa2())),
        shape=(8, 3, 32, 32),
        grids=(Grid(4, 4, 4),),
        r=4,
        configs=BRIEFER,
    ),
    Backbone(
        name="vjepa2-features-eager-longer",  # clips of another length than the config's
        make=seeded(lambda: VJEPA2Features(_vjepa2(crop_size=40, frames_per_clip=4))),
        shape=(10, 3, 40, 40),
        grids=(Grid(5, 5, 5),),
        r=7,
        configs=(
            sta.RandomConfig(r=4),
            sta.WardConfig(r=4),
            sta.FrameDifferenceConfig(r=7),
        ),
        refused=(sta.STAConfig.released(2),),
        checkpointing=False,
    ),
    Backbone(
        name="vivit",
        make=seeded(lambda: VivitForVideoClassification(_vivit())),
        shape=(8, 3, 32, 32),
        grids=(Grid(4, 4, 4),),
        r=4,
        configs=BRIEFER,
    ),
    Backbone(
        name="vivit-headless-eager-odd",
        make=seeded(
            lambda: VivitModel._from_config(
                _vivit(image_size=(24, 40), num_frames=6), attn_implementation="eager"
            )
        ),
        shape=(6, 3, 24, 40),
        grids=(Grid(3, 3, 5),),
        r=5,
        configs=(
            sta.RandomConfig(r=4),
            sta.WardConfig(r=4),
            sta.FrameDifferenceConfig(r=7),
        ),
        refused=(sta.STAConfig.released(2),),
    ),
    Backbone(
        name="swin",
        make=seeded(_swin),
        shape=(3, 8, 64, 64),
        grids=(Grid(4, 8, 8), Grid(4, 4, 4), Grid(4, 2, 2)),
        r=16,
        configs=(
            sta.STAConfig(r=16, window_queries="all"),
            sta.STAConfig(r=24, pool="grid", order="BFB", similarity="ffn", score="temporal"),
            sta.STAConfig(r=4, similarity="query", score="semantic", first_frame="grid"),
            sta.STAConfig(schedule=(9, 2), blocks=(1, 2), similarity="value"),
            sta.STAConfig(r=16, fill="clip", semantic="deviation"),
            sta.RandomConfig(r=16),
            sta.STAConfig(r=16, temporal="place", combine="both"),
            sta.STAConfig(r=16, temporal="pixels", order="BFB"),
            sta.FrameDifferenceConfig(r=16, fill="clip"),
            sta.WardConfig(r=16),
            sta.RandomConfig(r=16, merge=True),
            LargestConfig(r=16),
        ),
        refused=(
            sta.STAConfig.released(4),
            sta.ToMeConfig(r=4),
            sta.PatchChangeConfig(r=4),
            sta.VidTLDRConfig(r=4),
            sta.KCentreConfig(r=4),
            sta.RLTConfig(),
            sta.STTSConfig(r=1),  # it has no scorer
            sta.STAConfig(r=4, budget="clip"),
            sta.FrameDifferenceConfig(r=4, budget="clip"),
            sta.FrameDifferenceConfig(budget="auto", threshold=0.1),
            sta.PatchChangeConfig(r=4, budget="clip"),
            sta.PatchChangeConfig(budget="auto", threshold=5.0),
            sta.STAConfig(r=4, blocks=(4,)),
            sta.STAConfig(r=4, blocks=(0,)),
        ),
        dense_tolerance=1e-5,
        checkpointing=False,
        hidden_states=False,
    ),
    Backbone(
        name="swin-odd",  # three stages; clips are no multiple of windows that outgrow the grid
        make=seeded(lambda: _swin(depths=[2, 3, 2], num_heads=[1, 2, 4], window_size=[2, 3, 5])),
        shape=(3, 5, 44, 60),
        grids=(Grid(3, 6, 8), Grid(3, 3, 4)),
        r=11,
        configs=(
            sta.STAConfig(r=11, window_queries="all", pool="grid"),
            sta.RandomConfig(r=5, schedule="constant", fill="clip"),
            sta.FrameDifferenceConfig(r=11),
            sta.WardConfig(r=11),
        ),
        refused=(sta.STAConfig.released(4), sta.STAConfig(schedule=(1, 1, 1))),
        dense_tolerance=1e-5,
        checkpointing=False,
        hidden_states=False,
    ),
)
