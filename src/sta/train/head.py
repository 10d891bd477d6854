"""A model's classifier: how many classes it has, another one, and the model with it as files."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import nn

_HEADS = ("classifier", "head")  # transformers', torchvision's


def _head(model: nn.Module) -> tuple[str, nn.Linear]:
    for name in _HEADS:
        module = getattr(model, name, None)
        if isinstance(module, nn.Linear):
            return name, module
    raise TypeError(
        f"{type(model).__name__} has no linear classifier called {' or '.join(_HEADS)}: "
        f"expected a video classifier of transformers or torchvision"
    )


def classes_of(model: nn.Module) -> int:
    """Number of classes that a model tells apart."""
    return _head(model)[1].out_features


def replace_head(model: nn.Module, classes: int) -> None:
    """Give a model an untrained classifier of `classes` classes, in place."""
    if classes < 1:
        raise ValueError(f"classes={classes}: a classifier needs at least one")
    name, old = _head(model)
    new = nn.Linear(old.in_features, classes, device=old.weight.device, dtype=old.weight.dtype)
    nn.init.trunc_normal_(new.weight, std=0.02)
    nn.init.zeros_(new.bias)
    setattr(model, name, new)
    config = getattr(model, "config", None)
    if config is not None:
        config.num_labels = classes
        model.num_labels = classes  # type: ignore[assignment]


def save_model(model: nn.Module, folder: Path) -> None:
    """Write a model for `sta.load`: ``model.safetensors``, and ``config.json`` if it has one."""
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained = getattr(model, "save_pretrained", None)
    if callable(save_pretrained):
        save_pretrained(folder)
        return
    file = folder / "model.safetensors"
    save_file({k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}, file)
    file.chmod(0o644)


def fresh(model: nn.Module) -> nn.Module:
    """The same backbone, untrained."""
    config = getattr(model, "config", None)
    if config is not None:
        untrained: nn.Module = type(model)(config)
        return untrained
    for module in model.modules():
        for name in ("reset_parameters", "define_relative_position_bias_table"):
            reset = getattr(module, name, None)
            if callable(reset):
                reset()
    return model
