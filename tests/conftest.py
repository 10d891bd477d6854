"""Settings for all tests."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # what runs before remembered is not for tests

import pytest
import torch
from hypothesis import settings

from backbones import BACKBONES, Backbone
from inference_runs import save_model
from sta.cli import main
from sta.measure.contenders import Source

settings.register_profile("sta", deadline=None, max_examples=60)  # a busy machine is no bug
settings.load_profile("sta")
torch.set_num_threads(1)  # the models here are tiny: a second thread only costs


@pytest.fixture(params=BACKBONES, ids=str)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    """Every backbone in turn."""
    return request.param


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> str:
    """Where a tiny model is saved; nothing may change it."""
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def opened(folder):
    """The same model, open."""
    return Source(folder).open()


@pytest.fixture
def refused(monkeypatch, capsys):
    """Runs a command that must end with exit code 2, and gives its message."""

    def refuse(*words: object) -> str:
        monkeypatch.setattr("sys.argv", ["sta", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return refuse
