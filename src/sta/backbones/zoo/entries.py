"""The backbones that the zoo knows by name: the ten of the paper, and newer ones.

Newer are V-JEPA 2 and ViViT, for which transformers has classes. Their accuracies are their
publishers', GFLOPs our own count: of the stock model, and with a third of each frame dropped at the
first step. V-JEPA 2 names the number of clips and crops of its tests; where the clips lie in a
video is this package's nearest sampling. Its ViT-H and its 256-pixel ViT-g were published as
encoders without a classifier: `VJEPA2Model.from_pretrained` loads them, and `sta.apply` takes them
as they are.
"""

from __future__ import annotations

from sta.backbones.zoo.spec import (
    ClipSpec,
    HubWeights,
    OfficialFile,
    Source,
    TorchvisionWeights,
    ZooModel,
)
from sta.video.views import ViewSpec, protocol

VIT_R = (0, 32, 48, 64)
SWIN_R = (0, 192, 256, 320)

_CLASSES = {"k400": 400, "ssv2": 174, "diving48": 48}
_VIT = {  # width, blocks, heads
    "S": (384, 12, 6),
    "B": (768, 12, 12),
    "L": (1024, 24, 16),
    "H": (1280, 32, 16),
}
_VIT_NAMES = {"S": "small", "B": "base", "L": "large", "H": "huge"}
_VIT_GFLOPS = {
    "S": (57, 42, 35, 29),
    "B": (180, 136, 116, 96),
    "L": (597, 446, 376, 308),
    "H": (1192, 890, 748, 611),
}
_SWIN = {  # width, blocks, heads, stochastic depth
    "T": (96, (2, 2, 6, 2), (3, 6, 12, 24), 0.1),
    "S": (96, (2, 2, 18, 2), (3, 6, 12, 24), 0.1),
    "B": (128, (2, 2, 18, 2), (4, 8, 16, 32), 0.1),
}
_VJEPA2: dict[str, dict[str, object]] = {
    "L": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    "g": {
        "hidden_size": 1408,
        "num_hidden_layers": 40,
        "num_attention_heads": 22,
        "mlp_ratio": 48 / 11,
    },
}
_VIDEOMAE_ZOO = "https://github.com/MCG-NJU/VideoMAE/blob/main/MODEL_ZOO.md"
_SWIN_FILES = "https://github.com/SwinTransformer/storage/releases/download/v1.0.4/"
_TORCHVISION_FILES = "https://download.pytorch.org/models/"


def _vit(size: str, data_set: str, top1: tuple[float, ...]) -> ZooModel:
    width, depth, heads = _VIT[size]
    suffix = {"k400": "finetuned-kinetics", "ssv2": "finetuned-ssv2"}[data_set]
    return ZooModel(
        name=f"vit-{size.lower()}-{data_set}",
        family="vit",
        size=size,
        data_set=data_set,  # type: ignore[arg-type]
        source=HubWeights(f"MCG-NJU/videomae-{_VIT_NAMES[size]}-{suffix}"),
        official=OfficialFile("checkpoint.pth", _VIDEOMAE_ZOO),
        clip=ClipSpec(protocol(data_set, "vit"), "TCHW"),
        settings={
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "num_labels": _CLASSES[data_set],
            "layer_norm_eps": 1e-6,
            "use_mean_pooling": True,
        },
        top1=dict(zip(VIT_R, top1, strict=True)),
        gflops=dict(zip(VIT_R, _VIT_GFLOPS[size], strict=True)),
    )


def _swin(
    size: str,
    data_set: str,
    official: str,
    source: Source | None,
    top1: tuple[float, ...],
    gflops: tuple[float, ...],
    remeasured: float | None = None,
) -> ZooModel:
    width, depths, heads, stochastic_depth = _SWIN[size]
    file = OfficialFile(official, _SWIN_FILES + official)
    return ZooModel(
        name=f"swin-{size.lower()}-{data_set}",
        family="swin",
        size=size,
        data_set=data_set,  # type: ignore[arg-type]
        source=source or file,
        official=file,
        clip=ClipSpec(protocol(data_set, "swin"), "CTHW"),
        settings={
            "patch_size": [2, 4, 4],
            "embed_dim": width,
            "depths": list(depths),
            "num_heads": list(heads),
            "window_size": [16, 7, 7] if data_set == "ssv2" else [8, 7, 7],
            "stochastic_depth_prob": stochastic_depth,
            "num_classes": _CLASSES[data_set],
        },
        top1=dict(zip(SWIN_R, top1, strict=True)),
        gflops=dict(zip(SWIN_R, gflops, strict=True)),
        remeasured=remeasured,
    )


def _torchvision(size: str, member: str, file: str) -> TorchvisionWeights:
    return TorchvisionWeights(f"Swin3D_{size}_Weights", member, _TORCHVISION_FILES + file)


PAPER: tuple[ZooModel, ...] = (
    _vit("S", "k400", (78.8, 78.8, 78.6, 78.1)),
    _vit("B", "k400", (81.2, 81.2, 81.1, 80.8)),
    _vit("L", "k400", (85.1, 85.2, 85.1, 85.0)),
    _vit("H", "k400", (86.3, 86.3, 86.2, 86.1)),
    _vit("S", "ssv2", (66.8, 66.6, 66.4, 65.8)),
    _vit("B", "ssv2", (70.6, 70.4, 70.3, 69.9)),
    _swin(
        "T",
        "k400",
        "swin_tiny_patch244_window877_kinetics400_1k.pth",
        _torchvision("T", "KINETICS400_V1", "swin3d_t-7615ae03.pth"),
        (78.8, 78.7, 78.7, 78.6),
        (88, 68, 61, 54),
        77.715,
    ),
    _swin(
        "S",
        "k400",
        "swin_small_patch244_window877_kinetics400_1k.pth",
        _torchvision("S", "KINETICS400_V1", "swin3d_s-da41c237.pth"),
        (80.5, 80.3, 80.2, 80.1),
        (166, 121, 106, 91),
        79.521,
    ),
    _swin(
        "B",
        "k400",
        "swin_base_patch244_window877_kinetics400_22k.pth",
        _torchvision("B", "KINETICS400_IMAGENET22K_V1", "swin3d_b_22k-7c6ae6fa.pth"),
        (82.7, 82.5, 82.5, 82.3),
        (282, 202, 176, 149),
        81.643,
    ),
    _swin(
        "B",
        "ssv2",
        "swin_base_patch244_window1677_sthv2.pth",
        None,
        (69.6, 69.6, 69.5, 69.2),
        (321, 241, 215, 188),
    ),
)


def _vjepa2(
    size: str, data_set: str, views: ViewSpec, top1: float, gflops: dict[int, float]
) -> ZooModel:
    return ZooModel(
        name=f"vjepa2-{size.lower()}-{data_set}",
        family="vjepa2",
        size=size,
        data_set=data_set,  # type: ignore[arg-type]
        source=HubWeights(
            f"facebook/vjepa2-vit{size.lower()}-fpc{views.frames}-{views.size}-{data_set}"
        ),
        official=None,
        clip=ClipSpec(views, "TCHW"),
        settings={
            **_VJEPA2[size],
            "crop_size": views.size,
            "frames_per_clip": views.frames,
            "num_labels": _CLASSES[data_set],
        },
        top1={0: top1},
        gflops=gflops,
    )


NEWER: tuple[ZooModel, ...] = (
    _vjepa2("L", "ssv2", ViewSpec(16, 4, 256, 2, 3, "centred"), 73.7, {0: 935, 85: 453}),
    _vjepa2("g", "ssv2", ViewSpec(64, 2, 384, 2, 3, "uniform"), 77.3, {0: 61172, 192: 22913}),
    _vjepa2("L", "diving48", ViewSpec(32, 2, 256, 4, 3, "centred"), 89.0, {0: 2335, 85: 1051}),
    _vjepa2("g", "diving48", ViewSpec(32, 2, 384, 4, 3, "centred"), 90.2, {0: 20301, 192: 8394}),
    ZooModel(
        name="vivit-b-k400",
        family="vivit",
        size="B",
        data_set="k400",
        source=HubWeights("google/vivit-b-16x2-kinetics400"),
        official=None,
        clip=ClipSpec(ViewSpec(32, 2, 224, 4, 3, "centred"), "TCHW", (0.5,) * 3, (0.5,) * 3),
        settings={"num_labels": 400},
        top1={0: 80.0},
        gflops={0: 452, 65: 224},
    ),
)

ALL = (*PAPER, *NEWER)

_BY_NAME = {model.name: model for model in ALL}
_SHORT = {name.removesuffix("-k400"): name for name in _BY_NAME}  # "vit-b" is on Kinetics


def names() -> list[str]:
    """What `sta.load` knows by name."""
    return list(_BY_NAME)


def known(name: str) -> bool:
    """Whether `find` has it; "vit-b" is short for "vit-b-k400"."""
    return name in _BY_NAME or name in _SHORT


def find(name: str) -> ZooModel:
    """A backbone of the zoo; refuses a name that is not there."""
    name = _SHORT.get(name, name)
    if name not in _BY_NAME:
        raise ValueError(f"{name!r} is not in the zoo, which has {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
