"""An r that is too large is refused with the largest that fits; so are clips that do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import sta
from backbones import BACKBONES, Backbone
from sta.core.tokens import Grid
from sta.methods import Layout

Make = Callable[[int], sta.Config]

STEPPED: dict[str, Make] = {
    "decreasing": sta.STAConfig,
    "constant": lambda r: sta.STAConfig(r=r, schedule="constant"),
    "increasing": lambda r: sta.STAConfig(r=r, schedule="increasing"),
    "random": lambda r: sta.RandomConfig(r=r, blocks=(1, 3)),
    "late": lambda r: sta.STAConfig(r=r, blocks=(2, 3)),
    "frame-difference": sta.FrameDifferenceConfig,
}
COLUMNAR: dict[str, Make] = {
    **STEPPED,
    "tome": sta.ToMeConfig,
    "ward": sta.WardConfig,
    "released": sta.STAConfig.released,
}
VIDEOMAE, SWIN = (next(b for b in BACKBONES if b.name.startswith(n)) for n in ("videomae", "swin"))


def recommended(action: Callable[[], object]) -> int | None:
    """The r that a refusal recommends; None if there is none."""
    try:
        action()
    except ValueError as error:
        return int(re.findall(r"use r <= (\d+)", str(error))[0])
    return None


@torch.no_grad()
@pytest.mark.parametrize(
    ("backbone", "make"),
    [
        *(pytest.param(VIDEOMAE, make, id=f"videomae-{n}") for n, make in COLUMNAR.items()),
        *(pytest.param(SWIN, make, id=f"swin-{n}") for n, make in STEPPED.items()),
    ],
)
def test_the_recommended_r_is_the_largest_that_fits(backbone: Backbone, make: Make) -> None:
    model, clip = backbone.make(), backbone.clip(batch=1)

    def attempt(r: int) -> int | None:
        return recommended(lambda: sta.apply(model, make(r))(clip))

    most = attempt(1000)
    assert most is not None
    assert attempt(most) is None
    assert attempt(most + 1) == most


@pytest.mark.parametrize("tokens", [4, 5, 16, 49, 196])
def test_groups_of_the_released_program(tokens: int) -> None:
    layout = Layout("ViT", 12, Grid(8, tokens, 1))
    most = recommended(lambda: sta.ReleasedConfig(1000).plan(layout))
    assert most == tokens // 2  # an odd frame could drop one more, but not what comes after
    assert recommended(lambda: sta.ReleasedConfig(most + 1).plan(layout)) == most
    assert [step.drop for step in sta.ReleasedConfig(most).plan(layout)] == [most] * 3


@torch.no_grad()
@pytest.mark.parametrize("config", [sta.STAConfig(r=4), sta.ToMeConfig(r=4)], ids=["sta", "tome"])
def test_clips_of_another_length_are_refused_by_name(config: sta.Config) -> None:
    model = sta.apply(VIDEOMAE.make(), config)
    clip = VIDEOMAE.clip()
    with pytest.raises(ValueError, match="takes clips of 8 frames of 32 x 32 pixels, not of 4 "):
        model(clip[:, :4])
    model(clip)
