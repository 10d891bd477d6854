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

from sta.backbones.hooks import Swapped
from sta.backbones.vit import ViTAdapter
from sta.backbones.vit_hooks import ForwardState
from sta.backbones.vit_step import TokenStep
from sta.core.tokens import Grid
from sta.methods.base import Similarity


class VideoMAELayerWithStep(Swapped, VideoMAELayer):
    """The block with a step between attention and MLP."""

    hook: TokenStep

    def forward(self, hidden_states: Tensor, *, state: ForwardState, **kwargs: Any) -> Tensor:
        normed = self.layernorm_before(hidden_states)
        bias = self.hook.attention_bias(state)
        if bias is None:
            attended = self.attention(normed, **kwargs)
        else:  # the stock module takes no bias
            dropout = self.attention.attention.dropout_prob if self.training else 0.0
            context = VideoMAEAdapter.attend(self, normed, bias, dropout=dropout)
            attended = self.attention.output(context, normed)
        hidden_states = self.hook.between(self, normed, attended + hidden_states, state)
        intermediate = self.intermediate(self.layernorm_after(hidden_states))
        return self.output(intermediate, hidden_states)


class VideoMAEAdapter(ViTAdapter):
    """Adapter of `VideoMAEModel`, alone or inside `VideoMAEForVideoClassification`."""

    family = "VideoMAE"
    classes = ("VideoMAEModel", "VideoMAEForVideoClassification")
    block_with_step = VideoMAELayerWithStep
    stateless = "attention"
    after_average = "fc_norm"

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
