"""Backbones of the zoo: built with random weights, or with their pretrained ones fetched."""

from __future__ import annotations

from typing import Any

from torch import nn

from sta.backbones.zoo import embedded, entries
from sta.backbones.zoo.checkpoints import check_fields
from sta.backbones.zoo.positions import quick_positions
from sta.backbones.zoo.spec import HubWeights, TorchvisionWeights, ZooModel


def names() -> list[str]:
    """What `sta.load` knows by name: embedded models first."""
    return [*embedded.names(), *entries.names()]


def known(name: str) -> bool:
    """Whether the zoo has a backbone of that name."""
    return name in embedded.names() or entries.known(name)


def build(name: str, overrides: dict[str, Any]) -> nn.Module:
    """A backbone with random weights."""
    if name in embedded.names():
        return embedded.build(embedded.facts(name), **overrides)
    model = entries.find(name)
    settings = {**model.settings, **overrides}
    if model.family == "swin":
        from sta.backbones.zoo import swin

        return swin.build(settings)
    import transformers

    stem = {"vit": "VideoMAE", "vjepa2": "VJEPA2", "vivit": "Vivit"}[model.family]
    config = getattr(transformers, f"{stem}Config")
    check_fields(config, overrides)
    config = config(**settings)
    with quick_positions():
        network: nn.Module = getattr(transformers, f"{stem}ForVideoClassification")(config)
    return network.eval()


class Unreachable(ConnectionError):
    """Weights that could not be downloaded; `on_command_line` says it in the commands' options."""

    def __init__(self, model: ZooModel) -> None:
        super().__init__(
            _advice(model, "pass its path to sta.load", "weights=None builds the model")
        )
        self.on_command_line = _advice(
            model, "give its path as --model", "--random-weights runs the model"
        )


def hub_answers() -> bool:
    """Whether the hub can be reached, asked once: its own client tries for half a minute."""
    from huggingface_hub import constants, get_session

    try:
        return bool(get_session().head(constants.ENDPOINT, timeout=5).status_code < 500)
    except Exception:  # of whichever HTTP library this version of the client is built on
        return False


def fetch(name: str, overrides: dict[str, Any], new_head: bool = False) -> nn.Module:
    """A backbone with its weights: embedded, from the hub, or from torchvision.

    `new_head` allows an untrained classifier where the weights have none that fits.
    """
    if name in embedded.names():
        embedded.check_overrides(name, overrides)
        return embedded.load(name)
    model = entries.find(name)
    try:
        if isinstance(model.source, HubWeights):
            from sta.backbones.zoo.folders import Folder

            return Folder(model.source.name, overrides).load(new_head)
        if isinstance(model.source, TorchvisionWeights):
            return _from_torchvision(model, model.source, overrides)
    except OSError as error:
        raise Unreachable(model) from error
    raise Unreachable(model)


def _from_torchvision(
    model: ZooModel, source: TorchvisionWeights, overrides: dict[str, Any]
) -> nn.Module:
    from torchvision.models import get_weight

    state = get_weight(f"{source.enum}.{source.member}").get_state_dict(check_hash=True)
    network = build(model.name, overrides)
    network.load_state_dict(state)
    return network


def _advice(model: ZooModel, use_file: str, without: str) -> str:
    ways = []
    if model.source != model.official:
        ways.append(f"connect and try again ({model.source}: {model.source.url})")
    if model.official is not None:
        ways.append(
            f"download the official file {model.official.name} from {model.official.url} and "
            f"{use_file}"
        )
    return (
        f"the weights of {model.name} could not be downloaded: {', or '.join(ways)}. "
        f"{without} with random weights"
    )
