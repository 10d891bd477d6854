"""Augmentation of clips: the same change in all frames of a clip, another one in each copy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from sta.train.recipe import TrainConfig

# What changes the colours of a clip, and so its label where the label names a colour.
_COLOUR_OPERATIONS = frozenset(
    ("Brightness", "Color", "Contrast", "Posterize", "Solarize", "AutoContrast", "Equalize")
)
_FINENESS = 10  # levels per unit of magnitude, so that a noisy magnitude is more than rounding


class NoisyRandAugment(v2.RandAugment):
    """RandAugment whose magnitude, from 0 to 10, varies from clip to clip."""

    def __init__(self, magnitude: float, noise: float, colour: bool) -> None:
        super().__init__(
            num_magnitude_bins=10 * _FINENESS + 1,
            interpolation=InterpolationMode.BILINEAR,
            fill=128,
        )
        self.mean, self.noise = magnitude, noise
        self._AUGMENTATION_SPACE = {
            name: operation
            for name, operation in v2.RandAugment._AUGMENTATION_SPACE.items()
            if colour or name not in _COLOUR_OPERATIONS
        }

    def forward(self, video: Tensor) -> Tensor:
        drawn = self.mean + self.noise * torch.randn(()).item()
        self.magnitude = round(min(max(drawn, 0.0), 10.0) * _FINENESS)
        augmented: Tensor = super().forward(video)
        return augmented


class ClipAugment:
    """What is done to each copy of a clip on its own: RandAugment and flip."""

    def __init__(self, config: TrainConfig) -> None:
        steps: list[v2.Transform] = []
        if config.randaugment > 0:
            noise = config.randaugment_noise
            steps.append(NoisyRandAugment(config.randaugment, noise, config.colour))
        if config.flip > 0:
            steps.append(v2.RandomHorizontalFlip(config.flip))
        self.steps = steps

    def __call__(self, video: Tensor) -> Tensor:
        """Augment a clip (T, C, H, W), uint8, drawing from torch's generator."""
        for step in self.steps:
            video = step(video)
        return video


class Mix:
    """What is done to a batch: mixup or cutmix with a neighbour, and smoothed targets."""

    def __init__(self, config: TrainConfig, classes: int) -> None:
        self.classes, self.smoothing = classes, config.label_smoothing
        self.ways: list[v2.Transform] = []
        if config.mixup > 0:
            self.ways.append(v2.MixUp(alpha=config.mixup, num_classes=classes))
        if config.cutmix > 0:
            self.ways.append(v2.CutMix(alpha=config.cutmix, num_classes=classes))

    def __call__(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mixed pixels (B, T, C, H, W) and their targets (B, classes), which sum to 1."""
        target = F.one_hot(labels, self.classes).to(pixels.dtype)
        if self.ways:
            way = self.ways[int(torch.randint(len(self.ways), ()).item())]
            mixed, target = way(tv_tensors.Video(pixels), target)
            pixels = mixed.as_subclass(Tensor)
        return pixels, (1 - self.smoothing) * target + self.smoothing / self.classes
