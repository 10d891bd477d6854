"""Training clips: digit actions or files of a list, augmented the same way on every run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torchvision.transforms import v2

from sta.train.augment import ClipAugment
from sta.video import ViewSpec
from sta.video.cache import ENDING
from sta.video.decode import VideoError, read_views
from sta.video.lists import find_labelled
from sta.video.safe import SafeDecoder
from sta.video.views import Views

#: Copies, their labels, and the clips that could not be read, with what is wrong.
Item = tuple[Tensor, Tensor, dict[int, str]]


class Clips(Sized, Protocol):
    """Labelled clips by number; `DigitActions` is one."""

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        """Frames (T, H, W, 3) and the label."""
        ...


class FileClips:
    """The videos of a labelled list, each as one clip.

    Videos are decoded in a process of their own, so that a damaged one costs no more than itself.
    In training a clip is at a random place in time, with a random crop, both from torch's
    generator, rather than in the middle.
    """

    def __init__(
        self,
        name: str,
        spec: ViewSpec,
        class_names: Sequence[str],
        *,
        root: str | None = None,
        training: bool = False,
    ) -> None:
        self.entries = find_labelled(name, root, classes=class_names)
        self.training = training
        self.spec = replace(spec, temporal=1, spatial=3 if training else 1)
        self.crop = v2.RandomResizedCrop(spec.size, scale=(0.5, 1.0), antialias=True)
        self._decoder: tuple[int, SafeDecoder] | None = None

    def name_of(self, index: int) -> str:
        """What a clip is called, for messages."""
        return self.entries[index].path

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        entry = self.entries[index]
        assert entry.label is not None  # find_labelled refuses videos without
        if not self.training:
            return self._read(entry.source, self.spec).clips()[0], entry.label
        views = self._read(entry.source, replace(self.spec, place=torch.rand(()).item()))
        frames = torch.from_numpy(views.frames[views.index[0]]).permute(0, 3, 1, 2)
        return self.crop(frames).permute(0, 2, 3, 1).numpy(), entry.label

    def _read(self, source: str, spec: ViewSpec) -> Views:
        if source.endswith(ENDING):  # frames of a cache need no decoder
            return read_views(source, spec)
        if self._decoder is None or self._decoder[0] != os.getpid():  # each loader has its own
            self._decoder = os.getpid(), SafeDecoder(spec)
        decoder = self._decoder[1]
        decoder.spec = spec
        return decoder(source)


class AugmentedClips(Dataset[Item]):
    """Clips with their augmented copies.

    What is drawn for a clip depends on the seed, the epoch and the clip, not on the process that
    draws it or on what was drawn before: a run that was stopped goes on as if it had not been.
    """

    def __init__(self, clips: Clips, augment: ClipAugment, repeats: int, seed: int) -> None:
        self.clips, self.augment, self.repeats, self.seed = clips, augment, repeats, seed
        self._failed: dict[int, str] = {}  # by index, what is wrong

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, key: tuple[int, int]) -> Item:
        """Copies (repeats, T, C, H, W) and labels (repeats,) of an (epoch, index).

        A clip that cannot be read is left out: the next that can takes its place, so that batches
        stay full, and the item says what is wrong with the other.
        """
        epoch, first = key
        failed: dict[int, str] = {}
        with torch.random.fork_rng(devices=[]):
            for step in range(len(self)):
                index = (first + step) % len(self)
                entropy = np.random.SeedSequence([self.seed, epoch, index]).generate_state(1)
                torch.manual_seed(int(entropy[0]))
                if index not in self._failed:
                    try:
                        frames, label = self.clips[index]
                        break
                    except VideoError as error:
                        self._failed[index] = str(error)
                failed[index] = self._failed[index]
            else:
                raise ValueError(
                    f"none of the {len(self)} training clips can be read; the first: "
                    f"{self._failed[0]}"
                )
            video = torch.from_numpy(frames).permute(0, 3, 1, 2)  # (T, C, H, W)
            copies = [self.augment(video) for _ in range(self.repeats)]
        return torch.stack(copies), torch.full((self.repeats,), label), failed


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


def collate(items: list[Item]) -> Item:
    """Copies of all clips as one batch: (B, T, C, H, W) and (B,), and what could not be read."""
    videos, labels, failed = zip(*items, strict=True)
    return torch.cat(videos), torch.cat(labels), {k: v for f in failed for k, v in f.items()}
