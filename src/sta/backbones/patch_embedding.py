"""The patch embedding as the matrix product that it is.

Patches do not overlap, so their convolution is one product; as a convolution it takes about twice
the time, and of a pruned forward it is twice the share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sta.backbones.hooks import Hook, Placement, Swapped


class PatchProduct(Swapped, nn.Conv3d):
    """A convolution whose windows lie side by side, computed as a product."""

    def forward(self, input: Tensor) -> Tensor:
        sizes = input.shape[-3:]
        fits = not any(size % step for size, step in zip(sizes, self.kernel_size, strict=True))
        fits = fits and input.ndim == 5 and input.shape[1] == self.in_channels
        if not fits or torch.compiler.is_exporting():
            return super().forward(input)  # exported, other runtimes have their own way with it
        t, h, w = (size // step for size, step in zip(sizes, self.kernel_size, strict=True))
        patches = input.unflatten(-3, (t, -1)).unflatten(-2, (h, -1)).unflatten(-1, (w, -1))
        patches = patches.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
        tokens = F.linear(patches, self.weight.flatten(1), self.bias)  # (B, t * h * w, D)
        return tokens.transpose(1, 2).unflatten(-1, (t, h, w))


def as_matrix_products(embedding: nn.Module) -> list[Placement]:
    """Placements that make products of the patch convolutions in an embedding."""
    return [
        Placement(module, Hook(), PatchProduct)
        for module in embedding.modules()
        if type(module) is nn.Conv3d or isinstance(module, PatchProduct)
        if module.kernel_size == module.stride
        if module.dilation == (1, 1, 1) and module.padding == (0, 0, 0) and module.groups == 1
    ]
