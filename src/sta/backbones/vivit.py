"""ViViT (transformers): joint space-time attention over tubelets, and a class token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers.models.vivit.modeling_vivit import VivitLayer, VivitModel

from sta.backbones.hooks import Swapped
from sta.backbones.vit import ViTAdapter
from sta.backbones.vit_hooks import ForwardState
from sta.backbones.vit_step import TokenStep
from sta.core.tokens import Grid
from sta.methods.base import Similarity


class VivitLayerWithStep(Swapped, VivitLayer):
    """The block with a step between attention and MLP."""

    hook: TokenStep

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: None = None,
        *,
        state: ForwardState,
        **kwargs: Any,
    ) -> Tensor:
        normed = self.layernorm_before(hidden_states)
        bias = self.hook.attention_bias(state)
        if bias is None:
            attended, _ = self.attention(normed, attention_mask, **kwargs)
        else:  # not every attention implementation takes a bias
            dropout = self.attention.attention_dropout if self.training else 0.0
            attended = self.attention.o_proj(
                VivitAdapter.attend(self, normed, bias, dropout=dropout)
            )
        hidden_states = self.hook.between(
            self, normed, self.dropout(attended) + hidden_states, state
        )
        return self.dropout(self.mlp(self.layernorm_after(hidden_states))) + hidden_states


class VivitAdapter(ViTAdapter):
    """Adapter of `VivitModel`, alone or inside `VivitForVideoClassification`."""

    family = "ViViT"
    classes = ("VivitModel", "VivitForVideoClassification")
    prefix = 1  # the class token
    block_with_step = VivitLayerWithStep
    # While a model is traced, transformers makes a mask even where there is nothing to mask.
    cleared_argument = "attention_mask"

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return isinstance(module, VivitModel)

    @property
    def grid(self) -> Grid:
        (t, h, w), (height, width) = self.tubelet, self.embedding.image_size
        return Grid(self.backbone.config.num_frames // t, height // h, width // w)

    @property
    def tubelet(self) -> tuple[int, int, int]:
        return tuple(self.backbone.config.tubelet_size)

    @property
    def embedding(self) -> Any:
        return self.backbone.embeddings

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self.backbone.layers

    @property
    def encoder(self) -> nn.Module:
        return self.backbone

    @staticmethod
    def attention_input(block: Any, x: Tensor) -> Tensor:
        return block.layernorm_before(x)

    @staticmethod
    def projection(block: Any, similarity: Similarity) -> tuple[nn.Linear, int]:
        linear = getattr(block.attention, f"{similarity[0]}_proj")
        return linear, block.attention.num_attention_heads

    @staticmethod
    def reason_against_call(backbone: Any, given: Mapping[str, Any]) -> str | None:
        if given.get("attention_mask") is not None:
            return "attention_mask speaks of tokens that later blocks no longer have: leave it out"
        return VivitAdapter(backbone).reason_against_clip(given.get("pixel_values"))
