"""Settings: what is refused, what is derived, what survives a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from torch import nn
from transformers import VideoMAEForPreTraining

import sta
from backbones import BACKBONES
from sta.core.schedule import drops, spread_blocks
from sta.methods import METHODS, make_config

VIDEOMAE = BACKBONES[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"r": -1}, "r=-1"),
        ({"r": 2.5}, "whole number"),
        ({"r": True}, "whole number"),
        ({"r": 4, "schedule": "steep"}, "'decreasing', 'constant', 'increasing'"),
        ({"schedule": ()}, "at least one"),
        ({"schedule": (4, -2)}, "schedule=-2"),
        ({"r": 8, "schedule": (4, 2)}, "contradicts"),
        ({"r": 4, "blocks": (-1, 1)}, "counted from 1"),
        ({"r": 4, "blocks": (3, 1)}, "rising"),
        ({"r": 4, "blocks": ()}, "rising"),
        ({"schedule": (4, 2), "blocks": (1, 2, 3)}, "one block per drop"),
        ({"r": 4, "order": "FXF"}, "'F' and 'B'"),
        ({"schedule": (4, 2), "order": "FBF"}, "2 steps"),
        ({"r": 4, "similarity": "keys"}, "'key', 'query', 'value', 'ffn'"),
        ({"r": 4, "score": "both"}, "'sta'"),
        ({"r": 4, "first_frame": "last"}, "'tome'"),
        ({"r": 4, "semantic": "rank"}, "'deviation'"),
        ({"r": 4, "temperature": 0}, "above 0"),
        ({"r": 4, "seed": "x"}, "whole number"),
        ({"r": 4, "window_queries": "some"}, "'all', 'kept'"),
        ({"r": 4, "fill": "zeros"}, "'frame', 'clip'"),
    ],
)
def test_bad_settings_say_what_is_allowed(settings: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sta.STAConfig(**settings)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (sta.STAConfig(r=10), "r=10 leaves no tokens: the steps drop 10, 5, 2 of the 16 per frame"),
        (sta.STAConfig(schedule=(8, 8)), "drops 16 of the 16 per frame here; drop 15 or fewer"),
        (sta.STAConfig(r=2, blocks=(1, 5)), "4 blocks"),
        (sta.STAConfig(r=2, order="FB"), "3 steps"),
        (sta.STAConfig(schedule=(1, 1, 1, 1, 1)), "4 blocks"),
        (sta.ToMeConfig(r=33), "33 of the clip's 64 tokens .* use r <= 32"),
        (sta.WardConfig(r=10), "33 of the clip's 64 tokens .* use r <= 9"),
        (sta.FrameDifferenceConfig(r=16), "r <= 15"),
        (sta.STAConfig.released(9), "r <= 8"),
    ],
)
def test_settings_that_do_not_fit_the_model(config: sta.Config, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sta.apply(VIDEOMAE.make(), config)


def test_unsupported_models_are_told_what_is_supported() -> None:
    with pytest.raises(TypeError, match=r"Linear.*VideoMAEForVideoClassification"):
        sta.apply(nn.Linear(2, 2), sta.STAConfig(r=1))
    pretraining = VideoMAEForPreTraining(VIDEOMAE.make().config)
    with pytest.raises(TypeError, match="decoder"):
        sta.apply(pretraining, sta.STAConfig(r=1))
    with pytest.raises(TypeError, match="STAConfig"):
        sta.apply(VIDEOMAE.make(), {"r": 4})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Module"):
        sta.apply("videomae", sta.STAConfig(r=4))  # type: ignore[type-var]


def test_a_backbone_inside_another_module_is_found() -> None:
    wrapper = nn.Sequential(VIDEOMAE.make())
    sta.apply(wrapper, sta.STAConfig(r=4))
    wrapper(VIDEOMAE.clip())
    assert len(sta.kept(wrapper)) == 3


def test_schedules_of_the_paper() -> None:
    assert drops(64, "decreasing", 3) == (64, 32, 16)
    assert drops(48, "constant", 3) == (48, 48, 48)
    assert drops(27, "increasing", 3) == (27, 54, 108)
    assert drops(320, "decreasing", 3, later=(0, 1, 2)) == (320, 120, 40)
    assert drops(320, "even", 3, later=(0, 1, 2)) == (320, 80, 20)  # of 784, 196 and 49
    assert drops(27, "even", 3) == (27, 27, 27)
    assert spread_blocks(12, 3) == (1, 5, 9)
    assert spread_blocks(24, 3) == (1, 9, 17)


@pytest.mark.parametrize("method", METHODS)
def test_a_config_survives_its_file(method: str, tmp_path: Path) -> None:
    config = make_config(method, 6)
    if isinstance(config, sta.STAConfig):
        config = dataclasses.replace(config, blocks=(1, 2, 4), temperature=0.5, order="FBB")
    config.to_file(tmp_path / "config.json")
    assert sta.Config.from_file(tmp_path / "config.json") == config
    assert type(config).from_file(tmp_path / "config.json") == config


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("nonsense", "not a config file"),
        ("[]", "not a config file"),
        ('{"method": "magic"}', "'magic' is not one of sta"),
        ('{"method": "sta", "ratio": 2}', "unknown setting 'ratio'"),
        ('{"method": "random", "r": 2}', "not one of sta"),
    ],
)
def test_a_bad_config_file_is_named(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=says) as error:
        sta.STAConfig.from_file(path)
    assert str(path) in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"absent\.json"):
        sta.STAConfig.from_file(tmp_path / "absent.json")


@pytest.mark.parametrize("text", ['{"method": ["sta"]}', '{"method": "sta", "r": "many"}'])
def test_a_files_errors_name_the_file(tmp_path, text):
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tuned\.json: "):
        sta.Config.from_file(path)


def test_the_papers_formula_and_the_released_program_go_by_the_norm(tmp_path):
    assert sta.STAConfig(r=8).semantic == "deviation"
    assert sta.STAConfig.paper(8).semantic == "norm"
    released = sta.STAConfig.released(8)
    released.to_file(tmp_path / "released.json")
    assert sta.Config.from_file(tmp_path / "released.json") == released


def test_files_of_earlier_versions_still_read(tmp_path):
    path = tmp_path / "earlier.json"
    path.write_text('{"method": "sta", "r": 8, "semantic": "norm", "program": "released"}')
    assert sta.Config.from_file(path) == sta.ReleasedConfig(8)
    path.write_text('{"method": "sta", "r": 8, "semantic": "norm", "program": "paper"}')
    assert sta.Config.from_file(path) == sta.STAConfig.paper(8)


def test_a_file_says_which_version_wrote_it(tmp_path):
    path = tmp_path / "config.json"
    sta.STAConfig(r=8).to_file(path)
    assert json.loads(path.read_text())["sta"] == sta.__version__


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ('{"method": "sta", "r": 8}', sta.STAConfig(r=8)),  # before files had a version
        ('{"sta": "0.1.0", "method": "sta", "r": 8}', sta.STAConfig(r=8)),
        (  # as it was written before merging, proportional attention and budgets
            '{"sta": "0.1.0", "method": "sta", "r": 8, "schedule": "decreasing", "blocks": null, '
            '"order": null, "similarity": "key", "temperature": 1.0, "score": "sta", '
            '"semantic": "deviation", "first_frame": "tome", "seed": 0, "fill": "frame", '
            '"window_queries": "kept", "pool": "kept"}',
            sta.STAConfig(r=8),
        ),
        (
            '{"sta": "0.1.0", "method": "tome", "r": 8, "proportional": true}',
            sta.ToMeConfig(8, True),
        ),
        ('{"sta": "0.1.0", "method": "released", "r": 8}', sta.ReleasedConfig(8)),
        ('{"sta": "9.0.0", "method": "random", "r": 8, "seed": 3}', sta.RandomConfig(r=8, seed=3)),
    ],
)
def test_files_of_other_versions_read_where_they_can(text, config, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert sta.Config.from_file(path) == config


def test_a_setting_of_a_later_version_names_both_versions(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"sta": "9.0.0", "method": "sta", "r": 8, "later": 1}')
    with pytest.raises(ValueError, match=r"'later'.*written by sta 9\.0\.0, this is "):
        sta.Config.from_file(path)
