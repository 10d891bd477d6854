"""Against the outputs of the authors' released program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sta
from golden import CASES, official_file, tensors
from sta.core.released import released_step

STAGES = [name for name in CASES if name.startswith("stage")]
VITS = [(name, r) for name, case in CASES.items() if name.startswith("vit") for r in case["r"]]


@pytest.mark.parametrize("name", STAGES)
def test_step_keeps_exactly_the_same_tokens(name: str) -> None:
    data, case = tensors(name), CASES[name]
    kept = released_step(
        data["x"],
        data["metric"],
        case["r"],
        groups=case["groups"],
        backward=case["order"] == "backward",
    )
    kept = kept.view(case["B"], case["groups"], -1).sort(-1).values
    assert torch.equal(kept, data["kept"].long())


@torch.no_grad()
@pytest.mark.parametrize(("name", "r"), VITS)
def test_logits_of_the_whole_model(name: str, r: int, tmp_path: Path) -> None:
    data, case = tensors(name), CASES[name]
    path = official_file(name, tmp_path / "official.pth", wrapper="module")
    model = sta.load(path, num_attention_heads=case["heads"], image_size=case["img"])
    if r:
        sta.apply(model, sta.STAConfig.released(r))
    out = model(data["pixel_values"].transpose(1, 2), output_hidden_states=True)
    torch.testing.assert_close(out.logits, data[f"logits_r{r}"], rtol=0, atol=1e-4)
    features = model.fc_norm(out.hidden_states[-1].mean(1))
    torch.testing.assert_close(features, data[f"features_r{r}"], rtol=0, atol=1e-4)


def test_no_other_setting_goes_with_it() -> None:
    with pytest.raises(TypeError, match="order"):
        sta.ReleasedConfig(r=4, order="FFF")
    assert sta.STAConfig.released(4) == sta.ReleasedConfig(r=4)
