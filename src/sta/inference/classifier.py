"""A model as inference sees it: uint8 clips go in, class probabilities come out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sta.backbones.outputs import dtype_of, logits_of
from sta.backbones.patch import apply, remove
from sta.backbones.zoo.spec import ClipSpec
from sta.measure.fastest import MethodRuns, check_device
from sta.measure.flops import gflops
from sta.methods import Config
from sta.runtime.batches import StaticRuns


@dataclass
class Classifier:
    """Runs one model under several methods on the same clips.

    Attributes:
        model: A video classifier, with no method applied yet; a supported one, if any is to be.
        clip: The clips it expects.
        configs: The methods; None stands for the model as it is.
        device: Where to run it.
        runtime: What runs it: one of `sta.measure.fastest.CHOICES`.
        logits: Give the logits, too, after the probabilities.
    """

    model: nn.Module
    clip: ClipSpec
    configs: Sequence[Config | None] = (None,)
    device: str = "cpu"
    runtime: str = "torch"
    logits: bool = False
    _applied: Config | None = field(default=None, init=False, repr=False)
    _runs: StaticRuns | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_device(self.runtime, self.device)
        if self.runtime != "torch":
            self._runs = StaticRuns(MethodRuns(self._under, len(self.configs), self.runtime))
        self.model.to(self.device).eval()
        for config in self.configs:  # what does not fit is said before any video is read
            self.use(config)

    def use(self, config: Config | None) -> None:
        """Put a method in place."""
        if config == self._applied:
            return
        if config is None:
            remove(self.model)
        else:
            apply(self.model, config)
        self._applied = config

    def _under(self, number: int) -> nn.Module:
        """The model under the method of a number."""
        self.use(self.configs[number])
        return self.model

    def __call__(self, clips: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities ``(methods, B, classes)`` of clips ``(B, T, H, W, 3)``, and seconds.

        With `logits`, those follow in the last axis: ``(methods, B, 2 * classes)``.
        """
        scores, seconds = [], []
        with torch.inference_mode(self._runs is None):  # graphs are made outside of it
            pixels = self.clip.pixels(clips, self.device).to(dtype_of(self.model))
            given = pixels if self._runs is None else self._runs.fit(pixels)
            for number in range(len(self.configs)):
                run = self._under(number) if self._runs is None else self._runs.runs[number]
                self._wait()
                start = time.perf_counter()
                logits = logits_of(run(given))
                self._wait()
                seconds.append(time.perf_counter() - start)
                own = logits[: len(clips)].double()  # (B, classes)
                shares = own.softmax(dim=-1)
                given_out = torch.cat((shares, own), dim=-1) if self.logits else shares
                scores.append(given_out.cpu().numpy())
        return np.stack(scores), np.array(seconds)

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)

    def gflops(self) -> list[float]:
        """GFLOPs of one clip under each method."""
        counts = []
        for config in self.configs:
            self.use(config)
            counts.append(gflops(self.model, self.clip.shape()))
        return counts
