"""Outputs of the original authors' programs, recorded on random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

CARRIED = Path(__file__).parent / "golden"
SHARED = Path(__file__).parents[2] / "shared" / "golden"
CASES: dict[str, dict[str, Any]] = json.loads((CARRIED / "cases.json").read_text())


def tensors(name: str) -> dict[str, Tensor]:
    """The tensors of a case: carried along, or else from the shared folder."""
    for folder in (CARRIED, SHARED):
        if (folder / f"{name}.safetensors").exists():
            return load_file(folder / f"{name}.safetensors")
    pytest.skip(f"{name} is not carried along and {SHARED} is absent")


def official_file(name: str, path: Path, wrapper: str | None = None) -> Path:
    """Write a case's weights as an official `.pth` file."""
    state = {
        key.removeprefix("state."): value
        for key, value in tensors(name).items()
        if key.startswith("state.")
    }
    torch.save(state if wrapper is None else {wrapper: state, "epoch": 3}, path)
    return path
