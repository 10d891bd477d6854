"""Clip by clip: redundancy (S) and importance (GradNorm) under several methods, and the tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import sta
from sta.backbones import find
from sta.backbones.copies import shared_copy
from sta.backbones.zoo.video_model import VideoModel
from sta.explain.anatomy import patch
from sta.explain.gradnorm import gradnorm, mass_on
from sta.explain.look import StepLook, see_steps
from sta.explain.trajectory import last_tokens, trajectory_sum
from sta.inference.classifier import Classifier
from sta.measure.stats import bootstrap
from sta.methods import Config

STOCK = "Unpruned"


@dataclass
class Shares:
    """What one step keeps of the tokens and of the gradient, clip by clip."""

    after: str
    tokens: list[float] = field(default_factory=list)
    mass: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Importance:
    """GradNorm of one clip, and what the methods keep of it.

    Attributes:
        norm: GradNorm, (T, H, W).
        patch: Frames, height and width of the pixels behind one of its places.
        kept: By method, its steps, and the share of the gradient on what each keeps.
    """

    norm: NDArray[np.float32]
    patch: tuple[int, int, int]
    kept: dict[str, list[tuple[StepLook, float]]]


class Analysis:
    """Measures clips one by one and remembers the figures.

    Args:
        opened: The model; it is not changed.
        configs: The methods by name; the unpruned model is measured, too.
        device: Where to run.

    Attributes:
        frames: Frames of tokens, T, once a clip was seen; S is at most T - 1.
        sums: S of every clip, by method.
        left: Tokens that are left of each frame at the end, by method.
        shares: Of each step, by method; filled by `importance`.
    """

    def __init__(
        self, opened: VideoModel, configs: Mapping[str, Config], device: str = "cpu"
    ) -> None:
        opened.model.to(device)
        self.models = {STOCK: sta.remove(shared_copy(opened.model))}
        self.models |= {
            name: sta.apply(shared_copy(opened.model), config) for name, config in configs.items()
        }
        self.runner = Classifier(self.models[STOCK], opened.clip, device=device)
        self.frames = 0
        self.sums: dict[str, list[float]] = {name: [] for name in self.models}
        self.left: dict[str, int] = {}
        self.shares: dict[str, list[Shares]] = {}

    def redundancy(self, clips: NDArray[np.uint8]) -> None:
        """Measure S on clips (B, F, H, W, 3)."""
        pixels = self.runner.clip.pixels(clips, self.runner.device)
        for name, model in self.models.items():
            with torch.inference_mode():
                tokens = last_tokens(model, _forward(model, pixels))
            self.frames, self.left[name] = tokens.shape[1:3]
            self.sums[name] += trajectory_sum(tokens).tolist()

    def importance(self, clip: NDArray[np.uint8], label: int | None = None) -> Importance:
        """Measure GradNorm on a clip (F, H, W, 3), of its label or of the model's own answer."""
        pixels = self.runner.clip.pixels(clip[None], self.runner.device)
        labels = None if label is None else torch.tensor([label], device=pixels.device)
        norm = gradnorm(self.models[STOCK], pixels, labels)
        finest = patch(find(self.models[STOCK]))
        found: dict[str, list[tuple[StepLook, float]]] = {}
        for name, model in self.models.items():
            if name == STOCK:
                continue
            with torch.inference_mode():
                steps, _ = see_steps(model, pixels)
            rows = self.shares.setdefault(name, [Shares(step.after) for step in steps])
            found[name] = []
            for row, step in zip(rows, steps, strict=True):
                kept = torch.from_numpy(step.kept).to(norm.device).unsqueeze(0)
                mass = float(mass_on(kept, norm, step.patch[1] // finest[1]))
                row.tokens.append(float(step.kept.mean()))
                row.mass.append(mass)
                found[name].append((step, mass))
        return Importance(norm[0].float().cpu().numpy(), finest, found)

    def redundancy_table(self) -> list[dict[str, Any]]:
        """A row per method: S with its interval, and how far it is from the unpruned model's."""
        rows = []
        for name, values in self.sums.items():
            low, high = bootstrap(values)
            rows.append(
                {
                    "method": name,
                    "tokens_per_frame": self.left[name],
                    "clips": len(values),
                    "S": float(np.mean(values)),
                    "low": _number(low),
                    "high": _number(high),
                }
            )
        return rows

    def difference(self, name: str, other: str) -> dict[str, Any]:
        """S of a method minus S of another, clip by clip."""
        gap = np.subtract(self.sums[name], self.sums[other])
        low, high = bootstrap(gap.tolist())
        return {
            "method": name,
            "other": other,
            "S": float(gap.mean()),
            "low": _number(low),
            "high": _number(high),
        }

    def importance_table(self) -> list[dict[str, Any]]:
        """A row per method and step: share of the tokens kept, share of the gradient on them."""
        rows = []
        for name, steps in self.shares.items():
            for step in steps:
                low, high = bootstrap(step.mass)
                rows.append(
                    {
                        "method": name,
                        "after": step.after,
                        "clips": len(step.mass),
                        "tokens": float(np.mean(step.tokens)),
                        "gradient": float(np.mean(step.mass)),
                        "low": _number(low),
                        "high": _number(high),
                    }
                )
        return rows


def _forward(model: nn.Module, pixels: Tensor) -> Any:
    return lambda: model(pixels)


def _number(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None
