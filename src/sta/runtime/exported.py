"""An exported file as a model: what it expects and tells is in the file itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sta.backbones import find
from sta.backbones.base import StepLayout
from sta.backbones.hooks import StepHook, hooks_in
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import EXPORTED, VideoModel
from sta.core.tokens import Grid
from sta.methods import Config
from sta.runtime.sessions import FORMATS, Shapes, of_session, read_file
from sta.version import __version__
from sta.video.views import ViewSpec

#: What runs a file, by its ending.
RUNTIME = {".onnx": "onnxruntime", ".xml": "openvino", ".pt2": "torch"}
#: The size of a batch that may be any.
ANY = -1
assert set(RUNTIME) == set(EXPORTED) == {ending for ending, _ in FORMATS.values()}


@dataclass(frozen=True)
class FileFacts:
    """What an exported file says of itself."""

    clip: ClipSpec  # the clips it expects
    shape: tuple[int, ...]  # of the pixels that it takes; the batch is -1 where it may be any
    class_names: tuple[str, ...]  # in label order
    family: str  # of the backbone, whose test protocols differ
    config: Config | None  # the method that is part of it; None if there is none
    steps: tuple[StepLayout, ...]  # where its steps are, and the grids they choose from
    precision: str  # what it computes in
    gflops: float  # of one clip

    def to_json(self) -> str:
        values = asdict(self)
        if self.config is not None:
            values["config"]["method"] = self.config.method
        return json.dumps({"sta": __version__, **values})

    @classmethod
    def from_json(cls, text: str, path: Path) -> FileFacts:
        """What `to_json` wrote; refuses anything else."""
        try:
            values: dict[str, Any] = json.loads(text)
            clip, config = values["clip"], values["config"]
            return cls(
                ClipSpec(
                    ViewSpec(**clip["views"]),
                    clip["layout"],
                    tuple(clip["mean"]),
                    tuple(clip["std"]),
                ),
                tuple(map(int, values["shape"])),
                tuple(map(str, values["class_names"])),
                str(values["family"]),
                None if config is None else Config.from_values(config, path),
                tuple(
                    StepLayout(str(after), Grid(*grid), tuple(patch))
                    for after, grid, patch in values["steps"]
                ),
                str(values["precision"]),
                float(values["gflops"]),
            )
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(
                f"{path}: what it says of its clips and classes is not what sta export writes "
                f"({type(error).__name__}: {error}); export it again"
            ) from None


def facts_of(
    opened: VideoModel,
    network: nn.Module,
    views: ViewSpec,
    shape: Sequence[int],
    precision: str,
    gflops: float,
) -> FileFacts:
    """What a file of a model is to say."""
    hook = next(hooks_in(network, StepHook), None)
    return FileFacts(
        ClipSpec(views, opened.clip.layout, opened.clip.mean, opened.clip.std),
        tuple(shape),
        opened.class_names,
        opened.family,
        None if hook is None else hook.config,
        () if hook is None else tuple(find(network).step_layouts()),
        precision,
        gflops,
    )


class ExportedModel(nn.Module):
    """A file that `sta export` wrote, as a model: pixels to logits.

    Of a file for one batch size, larger batches are cut and smaller ones filled up. `facts` is what
    the file says of itself, `kept` what each step kept in the last forward. Refused are damaged
    files, those of other origin, and a precision that a file does not have.
    """

    digest: Tensor

    def __init__(
        self, path: str | Path, precision: str | None = None, threads: int | None = None
    ) -> None:
        super().__init__()
        self.path, self.threads = Path(path), threads
        self.asked = None if precision == "float32" else precision
        opened = read_file(self.path, precision=self.asked or "float32", threads=threads)
        text = opened.facts
        if text is None:
            raise ValueError(
                f"{path}: does not say which clips it takes, what its classes are called and how "
                f"its tokens are chosen: files that sta export writes have it in their metadata; "
                f"export the model with it"
            )
        self.facts = FileFacts.from_json(text, self.path)
        own = self.facts.precision
        if self.asked not in (None, own) and (self.path.suffix != ".xml" or own == "int8"):
            raise ValueError(
                f"{path}: was exported in {own} and cannot compute in {precision}: leave the "
                f"precision out, or export the model anew"
            )
        self.kept: list[Tensor] = []
        self._check(opened.shapes)
        self._session = of_session(opened.session)
        content = hashlib.sha256()
        for file in (self.path, self.path.with_suffix(".bin")):
            if file == self.path or self.path.suffix == ".xml":
                content.update(file.read_bytes())
        word = int.from_bytes(content.digest()[:7], "big")
        self.register_buffer("digest", torch.tensor(word))  # tells files apart

    @property
    def runtime(self) -> str:
        return RUNTIME[self.path.suffix]

    def _check(self, shapes: Shapes) -> None:
        """Refuse metadata that are not of this graph."""
        own = self.facts
        if shapes != (own.shape, len(own.class_names), len(own.steps)):
            raise ValueError(
                f"{self.path}: its metadata are of another model: they say pixels {own.shape}, "
                f"{len(own.class_names)} classes and {len(own.steps)} steps, but the graph has "
                f"{shapes.pixels}, {shapes.classes} and {shapes.steps}; export it again"
            )

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits (B, classes) of pixels (B, ...), of any B."""
        size, *shape = self.facts.shape
        if list(pixels.shape[1:]) != shape:
            raise ValueError(
                f"{self.path}: takes pixels of shape (B, {', '.join(map(str, shape))}), not "
                f"{tuple(pixels.shape)}"
            )
        logits, kept = [], []
        for part in (pixels,) if size == ANY else pixels.split(size):
            missing = max(0, size - len(part))
            filled = torch.cat([part, part[:1].expand(missing, *part.shape[1:])])
            logits.append(self._session(filled)[: len(part)])
            kept.append([step[: len(part)] for step in self._session.kept()])
        self.kept = [torch.cat(step) for step in zip(*kept, strict=True)]
        return torch.cat(logits)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.asked, self.threads)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExportedModel:
        return self  # a file does not change


def is_exported(model: str | Path | nn.Module | VideoModel) -> bool:
    """Whether a model, as the public functions take it, is an exported file."""
    if isinstance(model, str | Path):
        return Path(model).suffix in EXPORTED
    return isinstance(getattr(model, "model", model), ExportedModel)


def open_model(
    model: str | Path | nn.Module | VideoModel,
    *,
    overrides: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    bare: bool = False,
    precision: str | None = None,
    threads: int | None = None,
) -> VideoModel:
    """`VideoModel.open`, which also takes an exported file; precision and threads are of a file."""
    if isinstance(model, str | Path) and is_exported(model):
        if overrides or random_weights or bare:
            what = "overrides" if overrides else "random_weights" if random_weights else "features"
            raise ValueError(f"{model}: is an exported file, which has no {what}; give the model")
        file = ExportedModel(model, precision, threads)
        return VideoModel(file, file.facts.clip, file.facts.class_names, file.facts.family)
    return VideoModel.open(model, overrides=overrides, random_weights=random_weights, bare=bare)
