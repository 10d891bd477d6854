"""A model with what it expects and tells: clips, pixels, test views, class names.

Inference, training, measurements, pictures and export all read it here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sta.backbones import find
from sta.backbones.outputs import dtype_of
from sta.backbones.zoo import embedded, entries, fetch
from sta.backbones.zoo.checkpoints import read_state
from sta.backbones.zoo.folders import Folder, save_folder
from sta.backbones.zoo.preprocessor import read_clip
from sta.backbones.zoo.spec import IMAGENET_MEAN, IMAGENET_STD, ClipSpec, TorchvisionWeights
from sta.methods import STAConfig
from sta.video.views import Decoder, ViewSpec
from sta.video.views import protocol as published

#: Mean and standard deviation of the pixels where they are not ImageNet's, by transformers' names.
_HALF = (0.5, 0.5, 0.5)
_PIXELS = {"vivit": (_HALF, _HALF)}
#: What transformers' configs call the side and the frames of a clip.
_SIZE_FIELDS = ("crop_size", "image_size")
_FRAME_FIELDS = ("num_frames", "frames_per_clip")

#: Whole numbers of so many bytes, to look at the bits of other types as.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHECKPOINTS = {".safetensors", ".pth", ".pt", ".bin"}
#: Files that `sta export` writes.
EXPORTED = (".onnx", ".xml", ".pt2")


@dataclass
class VideoModel:
    """A loaded model with what goes in and what comes out.

    Attributes:
        model: The classifier, or a bare encoder.
        clip: The clips it expects: frames, stride, size, layout, mean and deviation, and its own
            test views.
        class_names: In label order; none of a bare encoder.
        family: ``"vit"`` or ``"swin"``, whose test protocols differ.
    """

    model: nn.Module
    clip: ClipSpec
    class_names: tuple[str, ...]
    family: str

    @classmethod
    def open(
        cls,
        model: str | Path | nn.Module | VideoModel,
        *,
        overrides: Mapping[str, Any] | None = None,
        random_weights: bool = False,
        bare: bool = False,
    ) -> VideoModel:
        """A model in any of the forms that the public functions take.

        `overrides` are fields of the backbone's config, for `sta.load`; a model that is built is
        used as it is. `bare` takes a folder without a classifier for its encoder alone.
        """
        if isinstance(model, str | Path):
            return load_video_model(
                str(model), random_weights=random_weights, bare=bare, **(overrides or {})
            )
        if overrides or random_weights:
            raise ValueError(
                "overrides and random_weights are for models that are loaded by name; this one is "
                "built"
            )
        return model if isinstance(model, VideoModel) else describe(model)

    @property
    def frame_tokens(self) -> list[int]:
        """Tokens of a frame at each step that drops some; on a ViT, before the first one."""
        return find(self.model).tokens_per_frame(self.clip.views.size)

    @property
    def largest_r(self) -> int:
        """The largest r that leaves a token at every step of STA."""
        return find(self.model).largest_r(STAConfig(), self.clip.views.size)

    @property
    def default_r(self) -> int:
        """A drop that about halves the work: as the paper's 64 of 196 tokens, a third."""
        return self.frame_tokens[0] // 3

    def pixels(self, clips: NDArray[np.uint8], device: str = "cpu") -> Tensor:
        """Clips ``(B, T, H, W, 3)`` as the model takes them, in the type of its weights."""
        return self.clip.pixels(clips, device).to(dtype_of(self.model))

    def save(self, folder: str | Path) -> None:
        """Write a folder that `sta.load` takes, with the clips it expects and its class names."""
        save_folder(self.model, folder, self.clip, self.class_names)


def model_name(model: str | Path | nn.Module | VideoModel) -> str:
    """What a model is called in results: as it was asked for, or its class."""
    if isinstance(model, str | Path):
        return str(model)
    return type(model.model if isinstance(model, VideoModel) else model).__name__


def load_video_model(
    name: str,
    *,
    random_weights: bool = False,
    new_head: bool = False,
    bare: bool = False,
    **overrides: Any,
) -> VideoModel:
    """Load what `sta.load` takes and find out what it expects.

    `new_head` allows an untrained classifier where a folder has none that fits: for training.
    `bare` takes a folder without a classifier for its encoder alone: for features.
    """
    if not random_weights:
        return open_model(name, True, new_head, overrides, bare)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the same ones every time, so that two runs can be compared
        return open_model(name, False, new_head, overrides)


#: What was known of models when they were loaded, for whoever passes them on by themselves.
_LOADED: WeakKeyDictionary[nn.Module, tuple[ClipSpec, tuple[str, ...]]] = WeakKeyDictionary()


def open_model(
    name: str, pretrained: bool, new_head: bool, overrides: dict[str, Any], bare: bool = False
) -> VideoModel:
    """What `sta.load` and `load_video_model` share."""
    opened = _open(name, pretrained, new_head, overrides, bare)
    _LOADED[opened.model] = opened.clip, opened.class_names
    return opened


def _open(
    name: str, pretrained: bool, new_head: bool, overrides: dict[str, Any], bare: bool
) -> VideoModel:
    path = Path(name)
    if fetch.known(name):
        if pretrained:
            return describe(fetch.fetch(name, overrides, new_head), *_of_the_zoo(name))
        return describe(fetch.build(name, overrides), *_of_the_zoo(name))
    if not pretrained:
        raise ValueError(f"{name}: weights=None builds backbones of the zoo, by their names")
    if path.suffix in EXPORTED:
        raise ValueError(
            f"{name}: is an exported file: predict, eval, watch, bench and show run it as it is; "
            f"for anything else give the model that it was made of"
        )
    if path.suffix in _CHECKPOINTS or path.is_file():
        return _open_file(path, overrides)
    if path.is_dir() or len(path.parts) == 2:
        return _open_folder(Folder(name, overrides, bare), new_head)
    raise ValueError(
        f"{name!r} is no file or folder, no hub id (owner/name) and not in the zoo, which "
        f"has {', '.join(fetch.names())}"
    )


def _of_the_zoo(name: str) -> tuple[ClipSpec, tuple[str, ...] | None]:
    """The clip and, where it tells them, the class names that a name of the zoo stands for."""
    if name in embedded.names():
        return embedded.clip_and_names(name)
    found = entries.find(name)
    if isinstance(found.source, TorchvisionWeights):
        from torchvision.models import get_weight

        meta = get_weight(f"{found.source.enum}.{found.source.member}").meta
        return found.clip, tuple(meta["categories"])
    return found.clip, None


def _open_folder(folder: Folder, new_head: bool) -> VideoModel:
    found = describe(folder.load(new_head), class_names=folder.class_names())
    path = folder.preprocessor()
    if path is None:
        return found
    return replace(found, clip=read_clip(path, found.clip, _fixed(found.model)))


def _open_file(path: Path, overrides: dict[str, Any]) -> VideoModel:
    from sta.backbones.zoo import swin, videomae

    if embedded.is_exported(path):
        embedded.check_overrides(path.stem, overrides)
        model = embedded.load(path.stem, path.parent)
        return describe(model, *embedded.clip_and_names(path.stem, path.parent))
    state = read_state(path)
    if videomae.is_official(state):
        return describe(videomae.load_official(state, path, **overrides))
    if swin.is_official(state):
        return describe(swin.load_official(state, path, **overrides))
    if swin.is_torchvision(state):
        return describe(swin.load_torchvision(state, path, **overrides))
    raise ValueError(
        f"{path}: not a checkpoint of a known format; expected a fine-tuned file of VideoMAE "
        f"(blocks.0.attn.qkv.weight, ...), of Video Swin (backbone.layers.0.blocks.0..., ...) or "
        f"of torchvision's class. What save_pretrained wrote is loaded by its folder, which holds "
        f"the config, too"
    )


def describe(
    model: nn.Module, clip: ClipSpec | None = None, class_names: tuple[str, ...] | None = None
) -> VideoModel:
    """A model with what it tells of itself, and what is known of it from elsewhere.

    Frames and size of a clip are the model's own where its config has them; class names are in
    label order.
    """
    if clip is None and class_names is None and model in _LOADED:
        clip, class_names = _LOADED[model]
    config: Any = getattr(model, "config", None)
    if config is None:  # torchvision's
        known = clip or ClipSpec(published("k400", "swin"), "CTHW")
        names = class_names or tuple(f"class {number}" for number in range(_outputs(model)))
        return VideoModel(model, known, names, "swin")
    own: dict[str, Any] = {name: value for name, (_, value) in _own_shape(model).items()}
    if clip is None:
        mean, std = _PIXELS.get(config.model_type, (IMAGENET_MEAN, IMAGENET_STD))
        clip = ClipSpec(published("k400", "vit"), "TCHW", mean, std)
        if config.model_type == "vjepa2":  # as its processor in transformers always does
            own["short_side"] = int(own["size"] * 256 / 224)
    clip = replace(clip, views=replace(clip.views, **own))
    if class_names is None and not hasattr(model, "classifier"):
        class_names = ()  # a bare encoder, whose config has names nevertheless
    if class_names is None:
        class_names = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    return VideoModel(model, clip, class_names, "vit")


def _own_shape(model: nn.Module) -> dict[str, tuple[str, int]]:
    """Size and frames of a clip by a model's config, each with the name of the field."""
    config = getattr(model, "config", None)
    shape = {}
    for name, fields in (("size", _SIZE_FIELDS), ("frames", _FRAME_FIELDS)):
        for field in fields:
            if value := getattr(config, field, None):
                shape[name] = (field, value if isinstance(value, int) else value[0])
                break
    return shape


def _fixed(model: nn.Module) -> Mapping[str, tuple[str, int]]:
    """What a model has position embeddings for, and so cannot be changed: of size and frames."""
    shape = _own_shape(model)
    if getattr(getattr(model, "config", None), "model_type", None) == "vjepa2":
        shape.pop("frames", None)  # its positions are rotary
    return shape


def fingerprint(model: nn.Module) -> str:
    """A word that tells weights apart, from all their bits: the same model gives the same one."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        bits = value.detach().contiguous().view(_INTEGERS[value.element_size()])
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {int(bits.sum())} ".encode())
    return digest.hexdigest()[:16]


def view_spec(
    video_model: VideoModel,
    *,
    protocol: str | None = None,
    views: str | None = None,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    decoder: Decoder = "pyav",
) -> ViewSpec:
    """The views to take: the model's own or as published for a data set, and changed from there."""
    own = video_model.clip.views
    spec = own
    if protocol is not None:
        spec = replace(
            published(protocol, video_model.family),
            frames=own.frames,
            size=own.size,
            short_side=own.short_side,
        )
    spec = replace(
        spec,
        frames=spec.frames if frames is None else frames,
        stride=spec.stride if stride is None else stride,
        size=spec.size if size is None else size,
        short_side=spec.short_side if size is None else None,
        decoder=decoder,
    )
    _check_clip(video_model, spec)
    return spec.with_views(views) if views is not None else spec


def _check_clip(video_model: VideoModel, spec: ViewSpec) -> None:
    """Refuse clips that the model has no position embeddings for."""
    for name, (_, own) in _fixed(video_model.model).items():
        if (given := getattr(spec, name)) != own:
            unit = "pixels" if name == "size" else "frames"
            raise ValueError(
                f"{name}={given}: this model takes clips of {own} {unit}; leave it out"
            )


def _outputs(model: nn.Module) -> int:
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(model).__name__} has no linear layer that its classes could be counted by; "
            f"give class_names"
        )
    return linear[-1].out_features
