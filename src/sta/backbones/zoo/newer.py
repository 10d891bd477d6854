"""Backbones newer than the paper, for which transformers has classes: V-JEPA 2 and ViViT.

Accuracies are their publishers', GFLOPs our own count: of the stock model, and with a third of each
frame dropped at the first step. V-JEPA 2 names the number of clips and crops
of its tests; where the clips lie in a video is this package's nearest sampling. Its ViT-H and its
256-pixel ViT-g were published as encoders without a classifier: `VJEPA2Model.from_pretrained` loads
them, and `sta.apply` takes them as they are.
"""

from __future__ import annotations

from sta.backbones.zoo.spec import ClipSpec, HubWeights, ZooModel
from sta.video.views import ViewSpec

_CLASSES = {"ssv2": 174, "diving48": 48}
_VJEPA2: dict[str, dict[str, object]] = {
    "L": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    "g": {
        "hidden_size": 1408,
        "num_hidden_layers": 40,
        "num_attention_heads": 22,
        "mlp_ratio": 48 / 11,
    },
}


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
