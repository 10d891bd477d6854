"""Reading checkpoint files safely, and telling the official formats apart."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

#: Name of a tensor, its shape in the checkpoint and in the model.
WrongShape = tuple[str, tuple[int, ...], tuple[int, ...]]
# What training programs wrap a state dict in, outermost first.
_WRAPPERS = ("state_dict", "model", "module", "model_state")


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pth`, `.pt` or `.bin` file, without wrappers around them.

    Pickles are read with `weights_only=True`: tensors and plain containers, never code.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, or holds something else than tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path}: holds Python objects besides tensors, which are not loaded because they can "
            f"run code; save its state dict as safetensors where you trust the file ({error})"
        ) from error
    except (RuntimeError, EOFError, OSError, safetensors.SafetensorError, KeyError) as error:
        raise ValueError(
            f"{path}: not a readable checkpoint; expected .safetensors or a PyTorch file, complete"
        ) from error
    return _unwrap(path, content)


def _unwrap(path: Path, content: object) -> dict[str, Tensor]:
    while isinstance(content, Mapping):
        tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
        inner = next((content[w] for w in _WRAPPERS if isinstance(content.get(w), Mapping)), None)
        if inner is None:
            if tensors:
                return _without_common_prefix(tensors)
            break
        content = inner
    raise ValueError(f"{path}: holds no state dict; expected tensors by name")


def _without_common_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Strip what wrapping modules put before every name."""
    for prefix in ("module.", "model."):
        if all(name.startswith(prefix) for name in tensors):
            return _without_common_prefix({n.removeprefix(prefix): t for n, t in tensors.items()})
    return tensors


def fill(model: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Load a converted state dict, every tensor of it, or say what does not fit."""
    wanted = model.state_dict()
    wrong = wrong_shapes(wanted, state)
    if problem := misfits(set(wanted) - set(state), set(state) - set(wanted), wrong):
        raise ValueError(
            f"{path}: does not fit the model built for it: {problem}. Settings that a checkpoint "
            f"cannot tell are keyword arguments, e.g. image_size=..., num_heads=[...]"
        )
    model.load_state_dict(dict(state))


def wrong_shapes(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[WrongShape]:
    """The tensors of a checkpoint whose shape is not the model's own."""
    return [
        (name, tuple(state[name].shape), tuple(tensor.shape))
        for name, tensor in own.items()
        if name in state and tensor.shape != state[name].shape
    ]


def misfits(
    missing: Collection[str],
    unexpected: Collection[str],
    wrong: Collection[WrongShape],
) -> str:
    """Names the tensors that keep a checkpoint from fitting a model; empty if there are none."""
    shapes = [f"{name} is {found}, expected {own}" for name, found, own in sorted(wrong)]
    parts = [f"missing {_some(sorted(missing))}" if missing else ""]
    parts += [f"unknown {_some(sorted(unexpected))}" if unexpected else "", _some(shapes)]
    return "; ".join(part for part in parts if part)


def check_fields(config: type[Any], overrides: Mapping[str, Any]) -> None:
    """Refuse what is no field of a transformers config, which would be taken in silence."""
    known = config()
    for name, value in overrides.items():
        if not hasattr(known, name):
            raise ValueError(
                f"{name}={value!r} is not a field of {config.__name__}; "
                f"try num_attention_heads, image_size or num_frames"
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
