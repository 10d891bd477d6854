"""What the zoo knows about a backbone: its weights, its clips, its scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sta.video.views import ViewSpec

if TYPE_CHECKING:
    from torch import Tensor

Layout = Literal["TCHW", "CTHW"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ClipSpec:
    """The clip that a model expects.

    Attributes:
        views: Frames, stride and size of a clip, and the paper's test views.
        layout: Order of a clip's axes: "TCHW" as transformers' models take it, "CTHW" as
            torchvision's do.
        mean: Of the pixels (0..1) per channel.
        std: Of the pixels per channel.
    """

    views: ViewSpec
    layout: Layout
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def shape(self, batch: int = 1) -> tuple[int, ...]:
        """Shape of the model's input, as `sta.gflops` takes it."""
        frames, size = self.views.frames, self.views.size
        lead = (frames, 3) if self.layout == "TCHW" else (3, frames)
        return (batch, *lead, size, size)

    def pixels(
        self, clips: NDArray[np.uint8] | Tensor, device: str = "cpu", out: Tensor | None = None
    ) -> Tensor:
        """Normalised clips in the model's layout, on its device.

        Args:
            clips: ``(B, T, H, W, 3)`` uint8.
            device: Where the model is.
            out: What an earlier call gave, to be overwritten if it has the size: fresh memory for
                that many floats takes the system longer than the arithmetic.
        """
        import torch

        def moved(tensor: Tensor) -> Tensor:
            """On the device, while whatever runs there runs on."""
            if device.startswith("cuda"):
                tensor = tensor.pin_memory()
            return tensor.to(device, non_blocking=True)

        raw = moved(torch.as_tensor(clips))  # bytes, a quarter of floats
        mean, std = (moved(torch.tensor(of)) for of in (self.mean, self.std))
        frames_first = self.layout == "TCHW"
        order = (0, 1, 4, 2, 3) if frames_first else (0, 4, 1, 2, 3)
        shape = (3, 1, 1) if frames_first else (3, 1, 1, 1)
        scale, shift = (1 / (255 * std)).view(shape), (mean / std).view(shape)
        size = [raw.shape[axis] for axis in order]
        if out is None or list(out.shape) != size:
            out = torch.empty(size, device=raw.device)
        # (x / 255 - mean) / std; on a CPU clip by clip, so that caches hold it from pass to pass
        count = 1 if device == "cpu" else max(1, len(raw))
        for part, floats in zip(raw.split(count), out.split(count), strict=True):
            floats.copy_(part.permute(order).contiguous()).mul_(scale).sub_(shift)
        return out


@dataclass(frozen=True)
class HubWeights:
    """Weights on the Hugging Face hub."""

    name: str

    @property
    def url(self) -> str:
        return f"https://huggingface.co/{self.name}"

    def __str__(self) -> str:
        return f"hub {self.name}"


@dataclass(frozen=True)
class TorchvisionWeights:
    """Weights that torchvision downloads, by the names of its enum and its member."""

    enum: str
    member: str
    url: str

    def __str__(self) -> str:
        return f"torchvision {self.enum}.{self.member}"


@dataclass(frozen=True)
class OfficialFile:
    """A file that the backbone's authors publish, to be downloaded and passed by its path."""

    name: str
    url: str

    def __str__(self) -> str:
        return f"official {self.name}"


Source = HubWeights | TorchvisionWeights | OfficialFile


_TITLES = {"vit": "ViT", "swin": "VideoSwin", "vjepa2": "V-JEPA 2 ViT", "vivit": "ViViT"}


@dataclass(frozen=True)
class ZooModel:
    """One off-the-shelf backbone, of the paper or newer."""

    name: str  # what `sta.load` knows it by
    # "vit" (VideoMAE), "swin" (Video Swin), "vjepa2" or "vivit".
    family: Literal["vit", "swin", "vjepa2", "vivit"]
    size: str  # "S", "B", "L", "H", "T" or "g"
    data_set: Literal["k400", "ssv2", "diving48"]  # what it tells apart
    source: Source  # where `sta.load` gets the weights
    # The authors' own file, which `sta.load` also takes by its path; None for newer backbones,
    # which are loaded from `source`.
    official: OfficialFile | None
    clip: ClipSpec  # the clip it expects
    # Fields of the model's config, for building it and for reading the official file.
    settings: dict[str, object] = field(hash=False)
    # The paper's accuracy in percent by r; r=0 is the unpruned model. For a newer backbone its
    # publisher's, at r=0 only.
    top1: dict[int, float] = field(hash=False)
    # The paper's GFLOPs by r. For a newer backbone our count.
    gflops: dict[int, float] = field(hash=False)
    # Accuracy of the very weights that `source` names, as their publisher measured it; None where
    # there is none but the paper's.
    remeasured: float | None = None

    @property
    def title(self) -> str:
        """As its paper calls it."""
        return f"{_TITLES[self.family]}-{self.size}"
