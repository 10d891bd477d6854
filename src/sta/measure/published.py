"""The models that the paper compares with (tables 4 and 5): published figures, and our own count.

What transformers and torchvision have the classes for is built on the meta device and counted as
everything else here; of the others there is the published figure alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from sta.backbones.patch import apply
from sta.backbones.zoo import load
from sta.backbones.zoo.entries import find
from sta.measure.flops import gflops
from sta.methods import Config, STAConfig

Build = Callable[[], tuple[nn.Module, tuple[int, ...]]]


@dataclass(frozen=True)
class Published:
    """A row of the paper's comparison."""

    name: str  # as the paper calls it
    data_set: Literal["k400", "ssv2"]  # Kinetics-400 (table 4) or Something-Something V2 (table 5)
    gflops: float  # of one view, as published
    views: tuple[int, int]  # clips by crops of a video
    top1: float  # accuracy in percent, as published
    # Makes it with its input shape, on the device of the context; None where no library here has
    # it.
    build: Build | None = None
    drops: bool = False  # whether it leaves tokens out
    counted_as: str = ""  # what exactly is counted, where the name does not tell

    def count(self) -> float | None:
        """GFLOPs of one view by our counter; None where it cannot be built here."""
        if self.build is None:
            return None
        with torch.device("meta"):
            model, shape = self.build()
        return gflops(model, shape)


def _zoo(name: str, config: Config | None = None) -> Build:
    def build() -> tuple[nn.Module, tuple[int, ...]]:
        model = load(name, weights=None)
        return apply(model, config) if config else model, find(name).clip.shape()

    return build


def _timesformer(frames: int) -> Build:
    def build() -> tuple[nn.Module, tuple[int, ...]]:
        from transformers import TimesformerConfig, TimesformerForVideoClassification

        config: Any = TimesformerConfig(num_frames=frames, **_LARGE)
        return TimesformerForVideoClassification(config), (1, frames, 3, 224, 224)

    return build


def _vivit() -> tuple[nn.Module, tuple[int, ...]]:
    from transformers import VivitConfig, VivitForVideoClassification

    config: Any = VivitConfig(image_size=320, num_frames=32, tubelet_size=[2, 16, 16], **_LARGE)
    return VivitForVideoClassification(config), (1, 32, 3, 320, 320)


def _swin_large() -> tuple[nn.Module, tuple[int, ...]]:
    from torchvision.models.video import SwinTransformer3d

    model = SwinTransformer3d(
        patch_size=[2, 4, 4],
        embed_dim=192,
        depths=[2, 2, 18, 2],
        num_heads=[6, 12, 24, 48],
        window_size=[8, 12, 12],
    )
    return model, (1, 3, 32, 384, 384)


def _mvit2(
    frames: int, side: int, width: int, heads: int, depths: tuple[int, int, int, int]
) -> Build:
    """MViTv2 as torchvision builds its small one: wider and twice as many heads per stage."""

    def build() -> tuple[nn.Module, tuple[int, ...]]:
        from torchvision.models.video import MViT
        from torchvision.models.video.mvit import MSBlockConfig

        blocks = []
        for stage, depth in enumerate(depths):
            for number in range(depth):
                first = stage > 0 and number == 0
                pool = 8 >> stage
                blocks.append(
                    MSBlockConfig(
                        num_heads=heads << stage,
                        input_channels=width << (stage - first),
                        output_channels=width << stage,
                        kernel_q=[3, 3, 3],
                        kernel_kv=[3, 3, 3],
                        stride_q=[1, 2, 2] if first else [1, 1, 1],
                        stride_kv=[1, pool, pool],
                    )
                )
        model = MViT(
            spatial_size=(side, side),
            temporal_size=frames,
            block_setting=blocks,
            residual_pool=True,
            residual_with_cls_embed=False,
            rel_pos_embed=True,
            proj_after_attn=True,
        )
        return model, (1, 3, frames, side, side)

    return build


_LARGE: dict[str, int] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def _sta(name: str, r: int) -> Build:
    # The paper counts the queries of all tokens in window attention.
    return _zoo(name, STAConfig(r=r, window_queries="all"))


#: The rows of both tables, in the paper's order.
ROWS: tuple[Published, ...] = (
    Published("TimeSformer-L", "k400", 8353, (1, 3), 80.7, _timesformer(96), False, "96 x 224²"),
    Published("Motionformer-L", "k400", 1185, (10, 3), 80.2),
    Published("ViViT-L", "k400", 3981, (4, 3), 84.9, _vivit, False, "32 x 320²"),
    Published("Swin-L", "k400", 2107, (10, 5), 84.9, _swin_large, False, "32 x 384²"),
    Published(
        "MViTv2-L",
        "k400",
        2828,
        (5, 3),
        86.1,
        _mvit2(40, 312, 144, 2, (2, 6, 36, 4)),
        False,
        "40 x 312²",
    ),
    Published("ViT-H", "k400", 1192, (5, 3), 86.3, _zoo("vit-h-k400")),
    Published("STTS-VideoSwin-B", "k400", 253, (4, 3), 81.9, None, True),
    Published("ToMe-ViT-L", "k400", 281, (10, 1), 84.5, None, True),
    Published("STA-VideoSwin-B, r=320", "k400", 149, (4, 3), 82.3, _sta("swin-b-k400", 320), True),
    Published("STA-ViT-L, r=64", "k400", 308, (5, 3), 85.0, _sta("vit-l-k400", 64), True),
    Published("STA-ViT-H, r=64", "k400", 611, (5, 3), 86.1, _sta("vit-h-k400", 64), True),
    Published("TimeSformer-L", "ssv2", 5549, (1, 3), 62.4, _timesformer(64), False, "64 x 224²"),
    Published("Motionformer-L", "ssv2", 1185, (1, 3), 68.1),
    Published(
        "MViTv2-B",
        "ssv2",
        225,
        (1, 3),
        70.5,
        _mvit2(32, 224, 96, 1, (2, 3, 16, 3)),
        False,
        "32 x 224²",
    ),
    Published("VideoSwin-B", "ssv2", 321, (1, 3), 69.6, _zoo("swin-b-ssv2")),
    Published("ViT-B", "ssv2", 180, (2, 3), 70.6, _zoo("vit-b-ssv2")),
    Published("STTS-VideoSwin-B", "ssv2", 237, (1, 3), 68.7, None, True),
    Published("STA-VideoSwin-B, r=320", "ssv2", 188, (1, 3), 69.2, _sta("swin-b-ssv2", 320), True),
    Published("STA-ViT-B, r=48", "ssv2", 116, (2, 3), 70.3, _sta("vit-b-ssv2", 48), True),
)
