"""A model as inference sees it: uint8 clips go in; classes, vectors or grids of tokens come out."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sta.backbones import find
from sta.backbones.encode import Fill, check_block, encode
from sta.backbones.hooks import ask_first_step
from sta.backbones.outputs import dtype_of
from sta.backbones.patch import apply, remove
from sta.backbones.zoo.spec import ClipSpec
from sta.inference.uploads import Uploads
from sta.measure.auto import AUTO, AutoRuns, check_runtime
from sta.measure.flops import gflops
from sta.methods import Config
from sta.methods.base import Site
from sta.runtime.batches import Runs
from sta.runtime.comparison import overlap
from sta.runtime.exported import ExportedModel
from sta.runtime.probe import make_safe
from sta.runtime.with_torch import run_eager

#: Clips whose kept tokens are compared with float32's, in lower precision.
COMPARED = 2


@dataclass
class ClipModel:
    """Runs one model under several methods on the same clips."""

    # A video classifier, with no method applied yet; a supported one, if any is to be.
    model: nn.Module
    clip: ClipSpec  # the clips it expects
    configs: Sequence[Config | None] = (None,)  # the methods; None stands for the model as it is
    device: str = "cpu"  # where to run it
    runtime: str = "torch"  # what runs it: one of `sta.measure.auto.CHOICES`
    precision: str = "float32"  # what it computes in: one of `sta.runtime.PRECISIONS`
    # Clips ``(n, T, H, W, 3)`` that int8 takes its ranges from.
    calibration: NDArray[np.uint8] | None = None
    # How many are expected, for `runtime="auto"`; None if that is not known.
    clips: int | None = None
    # In lower precision, per method, the largest share over its steps of kept tokens that are not
    # those that float32 keeps; of the first clips.
    differing: list[float] = field(default_factory=list, init=False, repr=False)
    _applied: Config | None = field(default=None, init=False, repr=False)
    _runs: Runs | AutoRuns | None = field(default=None, init=False, repr=False)
    _compared: bool = field(default=False, init=False, repr=False)
    _buffer: Tensor | None = field(default=None, init=False, repr=False)
    _uploads: Uploads | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        first = check_runtime(self.runtime, self.precision, self.device)
        if self.device == "cpu":
            make_safe(first, self.precision)  # before anything is computed
        self.model.to(self.device).eval()
        for config in self.configs:  # what does not fit is said before any video is read
            self.use(config)
        self._compared = self.precision == "float32" or not any(self.configs)

    def use(self, config: Config | None) -> None:
        """Put a method in place; an exported file has its own."""
        if config == self._applied or isinstance(self.model, ExportedModel):
            return
        if config is None:
            remove(self.model)
        else:
            apply(self.model, config)
        self._applied = config

    def network(self) -> nn.Module:
        """What is run: from pixels to the tensor that is wanted."""
        return self.model

    def outputs(self, clips: NDArray[np.uint8] | Tensor) -> tuple[list[Tensor], list[float]]:
        """What the network says of clips under each method, and seconds.

        Clips are ``(B, T, H, W, 3)`` uint8; or pixels as the model itself takes them.
        """
        with torch.inference_mode(False), torch.no_grad():
            pixels = self._pixels(clips).to(self.device, dtype_of(self.model))
            made, seconds, kept = self.forward(pixels, kept=not self._compared)
            if not self._compared:
                self._compared = True
                self._compare(pixels[:COMPARED], kept)
        return made, seconds

    @property
    def upload(self) -> Uploads | None:
        """Begins to upload clips, see `sta.inference.uploads`; None where there is no need to."""
        if self._uploads is None and self.device.startswith("cuda"):
            self._uploads = Uploads(lambda clips: self.clip.pixels(clips, self.device), self.device)
        return self._uploads

    @property
    def lengths(self) -> Callable[[NDArray[np.uint8]], list[int]] | None:
        """Tells clips by how many tokens the methods leave of each, so that batches are of like
        ones; None where that does not differ, or is not known before the blocks."""
        if isinstance(self.model, ExportedModel):
            return None
        asked = [
            config
            for config in self.configs
            if config is not None and config.follows_clip
            if config.plan(find(self.model).layout)[0].after == 0
        ]
        return (lambda clips: [self._length(clip, asked) for clip in clips]) if asked else None

    def _length(self, clip: NDArray[np.uint8], configs: Sequence[Config]) -> int:
        with torch.inference_mode(False):
            pixels = self.clip.pixels(clip[None], self.device).to(dtype_of(self.model))
            length = 0
            for config in configs:
                self.use(config)
                length += ask_first_step(self.model, pixels, partial(_kept, config))
        return length

    def forward(
        self, pixels: Tensor, *, kept: bool = False
    ) -> tuple[list[Tensor], list[float], list[list[Tensor]]]:
        """The network alone, on pixels that are there already: see `sta.runtime.batches.Runs`."""
        self._runs = self._runs or self._ready()
        return self._runs(pixels, kept=kept)

    def gflops(self) -> list[float]:
        counts = []
        for config in self.configs:
            self.use(config)
            counts.append(gflops(self.model, self.clip.shape()))
        return counts

    def parts(self) -> tuple[type[Self], dict[str, Any]]:
        """Its class and what it is made of but for the device, to be sent elsewhere."""
        self.use(None)
        self.model.cpu()
        names = (part.name for part in fields(self) if part.init and part.name != "device")
        return type(self), {name: getattr(self, name) for name in names}

    def _pixels(self, clips: NDArray[np.uint8] | Tensor) -> Tensor:
        if isinstance(clips, Tensor):
            return clips
        if self.device != "cpu":
            return self.clip.pixels(clips, self.device)
        self._buffer = self.clip.pixels(clips, out=self._buffer)
        return self._buffer

    def _under(self, number: int) -> nn.Module:
        self.use(self.configs[number])
        return self.network()

    def _ready(self) -> Runs | AutoRuns:
        if self.runtime != AUTO:
            return self._on(self.runtime)
        return AutoRuns(
            self._on,
            len(self.configs),
            self.precision,
            self._about(),
            self.clips,
            any(config is not None and config.drops for config in self.configs),
        )

    def _on(self, runtime: str) -> Runs:
        calibration = None
        if self.calibration is not None:
            calibration = self.clip.pixels(self.calibration, self.device)
        return Runs(self._under, len(self.configs), runtime, self.precision, calibration)

    def _about(self) -> dict[str, Any]:
        """What speed depends on: the model's shape, not its values, and the methods."""
        shapes = [f"{n} {tuple(t.shape)}\n" for n, t in self.model.state_dict().items()]
        return {
            "model": type(self.model).__name__,
            "tensors": hashlib.sha256("".join(shapes).encode()).hexdigest()[:16],
            "methods": [config and [config.method, asdict(config)] for config in self.configs],
        }

    def _compare(self, pixels: Tensor, kept: Sequence[Sequence[Tensor]]) -> None:
        """Say how many of the kept tokens are not those that float32 keeps."""
        for number, config in enumerate(self.configs):
            reference = run_eager(self._under(number), pixels, "float32", None)
            reference(pixels)
            shares = [
                1 - overlap(own.cpu(), theirs[: len(own)].cpu()).mean().item()
                for own, theirs in zip(reference.kept(), kept[number], strict=True)
            ]
            self.differing.append(max(shares, default=0.0))
            if config is not None and shares:
                print(
                    f"{self.precision}: {max(shares):.2%} of the tokens that {config.method} keeps "
                    f"are not those that float32 keeps ({len(pixels)} clips, the worst step)",
                    file=sys.stderr,
                )


def _kept(config: Config, site: Site) -> int:
    """Tokens of a clip alone, with what it is filled up by."""
    return config.choose(site).kept.shape[1]


@dataclass
class Classifier(ClipModel):
    """Runs one model under several methods on the same clips; see `ClipModel`."""

    logits: bool = False  # give the logits, too, after the probabilities

    def __call__(
        self, clips: NDArray[np.uint8] | Tensor
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities ``(methods, B, classes)`` of clips, see `outputs`, and seconds.

        With `logits`, those follow in the last axis: ``(methods, B, 2 * classes)``.
        """
        made, seconds = self.outputs(clips)
        logits = torch.stack(made).double()  # (methods, B, classes)
        shares = logits.softmax(dim=-1)
        scores = torch.cat((shares, logits), dim=-1) if self.logits else shares
        return scores.cpu().numpy(), np.array(seconds)


@dataclass
class Encoder(ClipModel):
    """Runs one model for its features; see `ClipModel` and `sta.backbones.encode`."""

    block: int | None = None  # whose output is taken, counted from 1; None is the whole model's
    dense: bool = False  # give tokens on their grid instead of one vector
    fill: Fill = "nearest"  # what stands at dropped places

    def __post_init__(self) -> None:
        check_block(find(self.model), self.block)
        self._network = _Features(self.model, self.block, self.dense, self.fill)
        super().__post_init__()

    def network(self) -> nn.Module:
        return self._network

    def __call__(
        self, clips: NDArray[np.uint8] | Tensor
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Features ``(methods, B, ...)`` of clips ``(B, T, H, W, 3)``, and seconds."""
        made, seconds = self.outputs(clips)
        return torch.stack(made).float().cpu().numpy(), np.array(seconds)


class _Features(nn.Module):
    """The model, returning its features."""

    def __init__(self, model: nn.Module, block: int | None, dense: bool, fill: Fill) -> None:
        super().__init__()
        self.model = model
        self.block, self.dense, self.fill = block, dense, fill

    def forward(self, pixels: Tensor) -> Tensor:
        return encode(self.model, pixels, block=self.block, dense=self.dense, fill=self.fill)
