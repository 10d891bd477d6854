"""The zoo: ten backbones of the paper, by name, with the paper's own figures."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models import WeightsEnum, get_weight
from typer.testing import CliRunner

import sta
from golden import official_file, tensors
from inference_runs import save_model
from sta.backbones.zoo.entries import NEWER, PAPER
from sta.backbones.zoo.spec import TorchvisionWeights, ZooModel
from sta.cli import app

TABLES = Path(__file__).parents[2] / "shared" / "paper" / "tables.json"
# As counted by torchvision for its own; VideoMAE's paper gives 22M, 87M, 305M and 633M.
PARAMETERS = {
    "vit-s": 22e6,
    "vit-b": 87e6,
    "vit-l": 305e6,
    "vit-h": 633e6,
    "swin-t": 28158070,
    "swin-s": 49816678,
    "swin-b": 88048984,
}


def on_meta(model: ZooModel, **overrides: object) -> nn.Module:
    with torch.device("meta"):
        return sta.load(model.name, weights=None, **overrides)


def test_the_ten_backbones_of_the_paper() -> None:
    assert [model.name for model in PAPER] == [
        *("vit-s-k400", "vit-b-k400", "vit-l-k400", "vit-h-k400", "vit-s-ssv2", "vit-b-ssv2"),
        *("swin-t-k400", "swin-s-k400", "swin-b-k400", "swin-b-ssv2"),
    ]


@pytest.mark.skipif(not TABLES.exists(), reason="the paper's tables are not here")
def test_figures_are_the_papers() -> None:
    tables = json.loads(TABLES.read_text())
    for model in PAPER:
        top1 = tables[f"{model.data_set}_top1"][model.title]
        assert model.top1 == {int(r): value for r, value in top1.items()}
        gflops = tables[f"{model.family}_gflops"]
        row = "B-ssv2" if model.name == "swin-b-ssv2" else model.size
        assert model.gflops == dict(zip(gflops["r"], gflops[row], strict=True))


@pytest.mark.parametrize("model", PAPER, ids=lambda m: m.name)
def test_random_weights_are_of_the_right_size_and_take_the_clip(model: ZooModel) -> None:
    network = on_meta(model)
    count = sum(p.numel() for p in network.parameters())
    classes = 400 if model.data_set == "k400" else 174
    expected = PARAMETERS[model.name.rsplit("-", 1)[0]]
    tolerance = 0.03 if model.family == "vit" or model.data_set == "ssv2" else 0.0
    assert count == pytest.approx(expected, rel=tolerance)
    out = network(torch.empty(model.clip.shape(2), device="meta"))
    assert (out if model.family == "swin" else out.logits).shape == (2, classes)
    assert not network.training


def test_torchvision_publishes_what_the_zoo_says() -> None:
    checked = 0
    for model in PAPER:
        if isinstance(model.source, TorchvisionWeights):
            weights = get_weight(f"{model.source.enum}.{model.source.member}")
            assert weights.url == model.source.url
            assert weights.meta["_metrics"]["Kinetics-400"]["acc@1"] == model.remeasured
            assert weights.transforms.keywords["mean"] == model.clip.mean
            assert weights.transforms.keywords["std"] == model.clip.std
            checked += 1
    assert checked == 3


def test_torchvisions_weights_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = next(m for m in PAPER if m.name == "swin-t-k400")
    state = sta.load(model.name, weights=None).state_dict()
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *a, **k: state)
    loaded = sta.load("swin-t").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


@pytest.mark.parametrize("name", ["vit-b-k400", "swin-b-k400", "swin-b-ssv2"])
def test_weights_out_of_reach_name_the_ways_to_get_them(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(WeightsEnum, "get_state_dict", refuse)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    model = next(m for m in PAPER if m.name == name)
    with pytest.raises(ConnectionError) as raised:
        sta.load(name)
    message = str(raised.value)
    for part in (name, model.official.name, model.official.url, "weights=None"):
        assert part in message
    assert ("try again" in message) == (model.source != model.official)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub out of reach; what was asked of it."""
    asked: list[str] = []

    class Session:
        def head(self, url: str, **_: object) -> None:
            asked.append(url)
            raise OSError("no network")

        request = stream = head

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr("huggingface_hub.utils._http.get_session", Session)
    return asked


def test_a_hub_out_of_reach_is_asked_once_and_its_cache_still_serves(
    tmp_path: Path, no_hub: list[str]
) -> None:
    with pytest.raises(ConnectionError, match=r"owner/name: .* could not be downloaded"):
        sta.load("owner/name", cache_dir=tmp_path)
    assert len(no_hub) == 1
    folder = tmp_path / "models--owner--name"
    saved = save_model(folder / "snapshots" / ("0" * 40))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    cached = sta.load("owner/name", cache_dir=tmp_path)
    for name, value in sta.load(saved).state_dict().items():
        assert torch.equal(cached.state_dict()[name], value)


def test_the_command_line_speaks_of_its_own_options(refused, no_hub: list[str]) -> None:
    message = refused("predict", "a.mp4", "--model", "vivit-b")
    assert "--random-weights" in message
    assert "weights=None" not in message


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"vit-x-k400.*vit-b-k400.*swin-b-ssv2"):
        sta.load("vit-x-k400")


@pytest.mark.parametrize("name", ["vit-s-k400", "swin-t-k400", "vivit-b-k400"])
def test_an_unknown_setting_is_refused_without_weights_too(name: str) -> None:
    with pytest.raises(ValueError, match="foo=1 is not a"):
        sta.load(name, weights=None, foo=1)


def test_swin_files_tell_their_settings(tmp_path: Path) -> None:
    data = tensors("swin_00")
    path = official_file("swin_00", tmp_path / "official.pth")
    state = torch.load(path, weights_only=True)
    bare = {k: v for k, v in state.items() if not k.endswith("relative_position_index")}
    save_file(bare, tmp_path / "bare.safetensors")
    with pytest.raises(ValueError, match=r"bare\.safetensors: .*window_size=\[4, 3, 3\]"):
        sta.load(tmp_path / "bare.safetensors")
    models = [
        sta.load(path),
        sta.load(tmp_path / "bare.safetensors", window_size=[4, 3, 3]),
    ]
    torch.save(models[0].state_dict(), tmp_path / "torchvision.pth")
    models.append(sta.load(tmp_path / "torchvision.pth"))
    with torch.no_grad():
        for model in models:
            logits = model(data["pixel_values"])
            torch.testing.assert_close(logits, data["logits"], rtol=0, atol=1e-4)


def test_swin_files_that_do_not_fit_say_so(tmp_path: Path) -> None:
    path = official_file("swin_00", tmp_path / "swin.pth")
    with pytest.raises(ValueError, match=r"swin\.pth: does not fit.*bias_table"):
        sta.load(path, window_size=[4, 3, 2])
    with pytest.raises(ValueError, match=r"swin\.pth: does not fit.*bias_table"):
        sta.load(path, num_heads=[2, 2, 2, 2])
    with pytest.raises(ValueError, match="heads=3 is not an argument of SwinTransformer3d"):
        sta.load(path, heads=3)
    state = torch.load(path, weights_only=True)
    torch.save({k: v for k, v in state.items() if "cls_head" not in k}, path)
    with pytest.raises(ValueError, match=r"swin\.pth: .*without classifier"):
        sta.load(path)


def test_the_command_lists_and_explains() -> None:
    listed = CliRunner().invoke(app, ["models"])
    assert listed.exit_code == 0
    for model in PAPER:
        assert model.name in listed.output
        assert str(model.source) in listed.output
    assert "77.7" in listed.output  # torchvision's, beside the paper's 78.8
    assert "78.8" in listed.output
    one = CliRunner().invoke(app, ["models", "swin-b-ssv2"]).output
    for part in ("69.6", "321", "swin_base_patch244_window1677_sthv2.pth", "1x3x32x224x224"):
        assert part in one
    assert "vit-b-k400: ViT-B" in CliRunner().invoke(app, ["models", "vit-b"]).output
    facts = json.loads(CliRunner().invoke(app, ["models", "--json"]).output)
    assert facts["vit-b-k400"]["input_shape"] == [1, 16, 3, 224, 224]
    assert facts["vit-b-k400"]["gflops"]["64"] == 96


def test_the_command_takes_parts_of_names() -> None:
    def names(part: str) -> list[str]:
        return list(json.loads(CliRunner().invoke(app, ["models", part, "--json"]).output))

    newer = [model.name for model in NEWER]
    assert names("vjepa2") == names("V-JEPA 2") == [n for n in newer if n.startswith("vjepa2")]
    assert names("vivit-b") == ["vivit-b-k400"]
    assert "vivit-b-k400" not in names("vit")  # what starts so comes first
    assert set(names("ssv2")) >= {"vit-s-ssv2", "swin-b-ssv2", "vjepa2-l-ssv2"}
    table = CliRunner().invoke(app, ["models", "swin-b"]).output
    assert "swin-b-k400: VideoSwin-B" in table  # "swin-b" is short for it
    several = CliRunner().invoke(app, ["models", "swin"]).output
    assert "swin-t-k400" in several
    assert "vit-b-k400" not in several
    wrong = CliRunner().invoke(app, ["models", "vit-x-k400"])
    assert isinstance(wrong.exception, ValueError)
    assert "near it are vit-" in str(wrong.exception)
