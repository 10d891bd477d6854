"""Training clips: digit actions or files of a list, augmented the same way on every run."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torchvision.transforms import v2

from sta.train.augment import ClipAugment
from sta.video import ViewSpec, read_views
from sta.video.lists import Entry, find_labelled


class Clips(Sized, Protocol):
    """Labelled clips by number; `DigitActions` is one."""

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """Frames (T, H, W, 3) and the label."""
        ...


class FileClips:
    """The videos of a labelled list, each as one clip.

    Args:
        name: What `sta.video.lists.find_labelled` takes: a list or a folder per class.
        spec: Frames, stride and size of a clip.
        classes: Number of classes; labels must be below it.
        root: Where the list's paths start.
        training: Take a random place in time and a random crop, both from torch's generator,
            rather than the middle.
    """

    def __init__(
        self,
        name: str,
        spec: ViewSpec,
        classes: int,
        *,
        root: str | None = None,
        training: bool = False,
    ) -> None:
        self.entries = find_labelled(name, root)
        self.training = training
        self.spec = replace(spec, temporal=1, spatial=3 if training else 1)
        self.crop = v2.RandomResizedCrop(spec.size, scale=(0.5, 1.0), antialias=True)
        for entry in self.entries:
            if not 0 <= self._label(entry) < classes:
                raise ValueError(
                    f"{name}: label {entry.label} of {entry.path!r} is not a class of the model, "
                    f"which has 0..{classes - 1}; --classes N (sta.train.head.replace_head) "
                    f"gives it a new head of N classes"
                )

    @staticmethod
    def _label(entry: Entry) -> int:
        assert entry.label is not None  # find_labelled refuses videos without
        return entry.label

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        entry = self.entries[index]
        if not self.training:
            return read_views(entry.source, self.spec).clips()[0], self._label(entry)
        views = read_views(entry.source, replace(self.spec, place=torch.rand(()).item()))
        frames = torch.from_numpy(views.frames[views.index[0]]).permute(0, 3, 1, 2)
        return self.crop(frames).permute(0, 2, 3, 1).numpy(), self._label(entry)


class AugmentedClips(Dataset[tuple[Tensor, Tensor]]):
    """Clips with their augmented copies.

    What is drawn for a clip depends on the seed, the epoch and the clip, not on the process that
    draws it or on what was drawn before: a run that was stopped goes on as if it had not been.
    """

    def __init__(self, clips: Clips, augment: ClipAugment, repeats: int, seed: int) -> None:
        self.clips, self.augment, self.repeats, self.seed = clips, augment, repeats, seed

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Copies (repeats, T, C, H, W) and labels (repeats,) of an (epoch, index)."""
        epoch, index = key
        with torch.random.fork_rng(devices=[]):
            entropy = np.random.SeedSequence([self.seed, epoch, index]).generate_state(1)
            torch.manual_seed(int(entropy[0]))
            frames, label = self.clips[index]
            video = torch.from_numpy(frames).permute(0, 3, 1, 2)  # (T, C, H, W)
            copies = [self.augment(video) for _ in range(self.repeats)]
        return torch.stack(copies), torch.full((self.repeats,), label)


class EpochSampler(Sampler[tuple[int, int]]):
    """Every clip once, in another order each epoch, as (epoch, index)."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.epoch = size, seed, 0

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.size)
        yield from ((self.epoch, int(index)) for index in order)


def collate(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Copies of all clips as one batch: (B, T, C, H, W) and (B,)."""
    videos, labels = zip(*items, strict=True)
    return torch.cat(videos), torch.cat(labels)
