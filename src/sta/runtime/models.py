"""A model in any of the forms that the public functions take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sta.backbones.zoo.video_model import VideoModel, describe, load_video_model


def open_video_model(
    model: str | nn.Module | VideoModel,
    *,
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
) -> VideoModel:
    """A model with what it expects.

    Args:
        model: What `sta.load` takes; or a model, which is used as it is.
        overrides: Fields of the backbone's config, for `sta.load`.
        random_weights: Build it without loading weights.

    Raises:
        ValueError: `overrides` or `random_weights` are given with a model that is already built.
    """
    if isinstance(model, str):
        return load_video_model(model, random_weights=random_weights, **(overrides or {}))
    if overrides or random_weights:
        raise ValueError(
            "overrides and random_weights are for models that are loaded by name; this one is built"
        )
    return model if isinstance(model, VideoModel) else describe(model)
