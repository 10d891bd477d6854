"""VideoMAE (transformers): joint space-time attention over tubelets, no class token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers.models.videomae.modeling_videomae import (
    VideoMAEForPreTraining,
    VideoMAELayer,
    VideoMAEModel,
)

from sta.backbones.base import Grid
from sta.backbones.hooks import Swapped
from sta.backbones.vit import ViTAdapter
from sta.backbones.vit_steps import MergeStep
from sta.backbones.vit_trail import Trail
from sta.methods import Similarity


class MergingVideoMAELayer(Swapped, VideoMAELayer):
    """The block with a merging step between attention and MLP."""

    plug: MergeStep

    def forward(self, hidden_states: Tensor, *, trail: Trail, **kwargs: Any) -> Tensor:
        normed = self.layernorm_before(hidden_states)
        bias = self.plug.attention_bias(trail)
        if bias is None:
            attended = self.attention(normed, **kwargs)
        else:  # the stock module takes no bias
            dropout = self.attention.attention.dropout_prob if self.training else 0.0
            context = VideoMAEAdapter.attend(self, normed, bias, dropout=dropout)
            attended = self.attention.output(context, normed)
        metric = VideoMAEAdapter.head_mean(self, normed, "key")
        hidden_states = self.plug(attended + hidden_states, metric, trail)
        intermediate = self.intermediate(self.layernorm_after(hidden_states))
        return self.output(intermediate, hidden_states)


class VideoMAEAdapter(ViTAdapter):
    """Adapter of `VideoMAEModel`, alone or inside `VideoMAEForVideoClassification`."""

    family = "VideoMAE"
    classes = ("VideoMAEModel", "VideoMAEForVideoClassification")
    merging_block = MergingVideoMAELayer

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return isinstance(module, VideoMAEModel)

    def reason_against(self, model: nn.Module) -> str | None:
        if isinstance(model, VideoMAEForPreTraining):
            return "its decoder needs a token for every visible place of the grid"
        return None

    @property
    def grid(self) -> Grid:
        patches = self.backbone.embeddings.patch_embeddings
        frames = self.backbone.config.num_frames // patches.tubelet_size
        (height, width), (h, w) = patches.image_size, patches.patch_size
        return Grid(frames, height // h, width // w)

    @property
    def tubelet(self) -> tuple[int, int, int]:
        patches = self.backbone.embeddings.patch_embeddings
        return (patches.tubelet_size, *patches.patch_size)

    @property
    def embedding(self) -> nn.Module:
        return self.backbone.embeddings

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self.backbone.encoder.layer

    @staticmethod
    def attention_input(block: Any, x: Tensor) -> Tensor:
        return block.layernorm_before(x)

    @staticmethod
    def projection(block: Any, similarity: Similarity) -> tuple[nn.Linear, int]:
        attention = block.attention.attention
        return getattr(attention, similarity), attention.num_attention_heads

    @staticmethod
    def reason_against_call(backbone: Any, given: Mapping[str, Any]) -> str | None:
        return VideoMAEAdapter(backbone).reason_against_clip(given.get("pixel_values"))
