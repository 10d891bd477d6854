"""V-JEPA 2 (transformers): joint attention with 3D rotary positions, for clips of any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from transformers.models.vjepa2.modeling_vjepa2 import VJEPA2Layer, VJEPA2Model

from sta.backbones.hooks import Swapped
from sta.backbones.vit import ViTAdapter
from sta.backbones.vit_hooks import ForwardState
from sta.backbones.vit_step import TokenStep
from sta.core.tokens import Grid
from sta.methods.base import Similarity


class VJEPA2LayerWithStep(Swapped, VJEPA2Layer):
    """The block with a step inside; a token that others merge into keeps its position."""

    hook: TokenStep

    def forward(
        self, hidden_states: Tensor, position_mask: Tensor | None, *, state: ForwardState, **_: Any
    ) -> tuple[Tensor, Tensor | None]:
        normed = self.norm1(hidden_states)
        bias, weights = self.hook.attention_bias(state), None
        if bias is None:
            attended, weights = self.attention(normed, position_mask=position_mask)
        else:  # the stock module takes no bias
            dropout = self.attention.dropout_prob if self.training else 0.0
            context = VJEPA2Adapter.attend(
                self, normed, bias, dropout=dropout, positions=position_mask
            )
            attended = self.attention.proj(context)
        hidden_states = self.hook.between(
            self, normed, self.drop_path(attended) + hidden_states, state
        )
        return self.drop_path(self.mlp(self.norm2(hidden_states))) + hidden_states, weights


class VJEPA2Adapter(ViTAdapter):
    """Adapter of `VJEPA2Model`, alone or inside `VJEPA2ForVideoClassification`."""

    family = "V-JEPA 2"
    classes = ("VJEPA2Model", "VJEPA2ForVideoClassification")
    any_length = True
    positions_argument = "position_mask"
    block_with_step = VJEPA2LayerWithStep
    pooler = "pooler"

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return isinstance(module, VJEPA2Model)

    @property
    def grid(self) -> Grid:
        config = self.backbone.config
        side = config.crop_size // config.patch_size
        return Grid(max(1, config.frames_per_clip // config.tubelet_size), side, side)

    @property
    def tubelet(self) -> tuple[int, int, int]:
        config = self.backbone.config
        return config.tubelet_size, config.patch_size, config.patch_size

    @property
    def embedding(self) -> nn.Module:
        return self.backbone.encoder.embeddings

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self.backbone.encoder.layer

    @staticmethod
    def attention_input(block: Any, x: Tensor) -> Tensor:
        return block.norm1(x)

    @staticmethod
    def projection(block: Any, similarity: Similarity) -> tuple[nn.Linear, int]:
        return getattr(block.attention, similarity), block.attention.num_attention_heads

    @classmethod
    def queries_and_keys(
        cls, block: Any, attended: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ids = block.attention.get_position_ids(attended, masks=positions)
        query, key = super().queries_and_keys(block, attended, positions)
        rotate = block.attention.apply_rotary_embeddings
        return rotate(query, pos_ids=ids), rotate(key, pos_ids=ids)

    @staticmethod
    def reason_against_call(backbone: Any, given: Mapping[str, Any]) -> str | None:
        masked = given.get("context_mask") is not None or given.get("target_mask") is not None
        if masked or not given.get("skip_predictor", False):
            return (
                "its predictor needs a token for every place of the grid: call it with "
                "skip_predictor=True and without context_mask and target_mask"
            )
        size, crop = tuple(given["pixel_values_videos"].shape[-2:]), backbone.config.crop_size
        if size != (crop, crop):
            return f"its rotary positions assume frames of {crop} x {crop} pixels, not {size}"
        return None
