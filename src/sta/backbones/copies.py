"""Copies of a model that cost no memory: with the same weights, or with none at all."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def shared_copy(model: M) -> M:
    """A copy with the same weights in memory: applying a method to it leaves the model alone."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def meta_copy(model: M) -> M:
    """A copy on the meta device, whose weights are never copied: to count its work."""
    empty: dict[int, object] = {}
    for parameter in model.parameters():
        like = torch.empty_like(parameter, device="meta")
        empty[id(parameter)] = nn.Parameter(like, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        empty[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, empty)


def copy_on(model: nn.Module, device: str) -> nn.Module:
    """A copy on a device, which shares the model's weights where the model is there already."""
    own = next(model.parameters()).device
    return shared_copy(model) if own == torch.device(device) else copy.deepcopy(model).to(device)
