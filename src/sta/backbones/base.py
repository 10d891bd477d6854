"""What every adapter offers, and what the rest of the package may ask of a supported model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from sta.backbones.hooks import Placement, StepPlug, plugs
from sta.methods import Config


class Grid(NamedTuple):
    """Places for tokens: frames x height x width."""

    frames: int
    height: int
    width: int

    @property
    def tokens(self) -> int:
        """Places per frame."""
        return self.height * self.width

    @property
    def frame(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height, self.width


class Adapter(ABC):
    """One family of backbones: where its blocks are, how its tokens lie, how to prune them."""

    family: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]  # names of the supported model classes, for messages

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone: Any = backbone  # torch types a module's attributes too loosely to use

    @classmethod
    @abstractmethod
    def matches(cls, module: nn.Module) -> bool:
        """Whether the module is a backbone of this family."""

    def reason_against(self, model: nn.Module) -> str | None:
        """Why the model around this backbone cannot work with fewer tokens; None if it can."""
        return None

    @abstractmethod
    def plan(self, config: Config) -> list[Placement]:
        """The plugs of a method and their places. Checks the settings; changes nothing yet."""

    @abstractmethod
    def kept(self) -> list[Tensor]:
        """See `sta.kept`."""

    @abstractmethod
    def restore(self, tokens: Tensor) -> Tensor:
        """See `sta.restore`."""

    @property
    def steps(self) -> list[StepPlug]:
        """The installed steps, in the order of the forward."""
        return sorted(plugs(self.backbone, StepPlug), key=lambda plug: plug.step)

    def last_forward(self) -> list[StepPlug]:
        """The installed steps, each with what it kept in the last forward."""
        steps = self.steps
        if not steps:
            raise ValueError(
                "no method is applied to this model; call sta.apply(model, config) first"
            )
        # An export runs the model on fake tensors, which say nothing about a real clip; but while
        # it runs, they are what the graph is made of.
        fake = () if torch.compiler.is_exporting() else FakeTensor
        if any(s.kept is None or isinstance(s.kept, fake) for s in steps):
            raise RuntimeError("the model has not seen a clip since sta.apply; run a forward first")
        return steps

    @staticmethod
    def rows_of_last_forward(tokens: Tensor, batch: int) -> Tensor:
        """Tokens that a user gives, as rows, (B, n, D); refuses those of another batch."""
        if tokens.ndim < 3 or tokens.shape[0] != batch:
            raise ValueError(
                f"tokens is {tuple(tokens.shape)}; expected (B, n, D) or (B, T, K, D) of the last "
                f"forward, which had B={batch}, such as its last_hidden_state"
            )
        return tokens.flatten(1, -2)

    def refuse(self, config: Config, why: str) -> ValueError:
        """An error for a method that cannot work on this family."""
        preset = ".released" if getattr(config, "program", None) == "released" else ""
        name = f"{type(config).__name__}{preset}"
        return ValueError(f"{name} cannot be applied to {self.family}: {why}")
