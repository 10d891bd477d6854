"""What every adapter offers, and what the rest of the package may ask of a supported model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from sta.backbones.hooks import Placement, StepHook, hooks_in
from sta.core.tokens import Grid
from sta.core.tracing import is_fake
from sta.methods.base import Config, Layout, Step, r_of
from sta.methods.stepped import largest


class StepLayout(NamedTuple):
    """Where a step is, and the grid of tokens it chooses from."""

    after: str  # what it comes after: "input", "block 5" or "stage 2"
    grid: Grid  # positions for tokens: frames, rows and columns
    patch: tuple[int, int, int]  # frames, height and width of the pixels behind one token


class Adapter(ABC):
    """One family of backbones: where its blocks are, how its tokens lie, how to prune them."""

    family: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]  # names of the supported model classes, for messages
    model: nn.Module | None = None  # what the backbone was found in

    def __init__(self, backbone: nn.Module) -> None:
        self.backbone: Any = backbone  # torch types a module's attributes too loosely to use

    @classmethod
    @abstractmethod
    def matches(cls, module: nn.Module) -> bool:
        """Whether the module is a backbone of this family."""

    def reason_against(self, model: nn.Module) -> str | None:
        """Why the model around this backbone cannot work with fewer tokens; None if it can."""
        return None

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """What methods know of the backbone when they plan their steps."""

    @property
    def learned_home(self) -> tuple[nn.Module, int]:
        """The module that a method's own trained weights live in, and the width of its tokens."""
        raise ValueError(f"{self.family} has no place for weights of a method's own")

    def plan(self, config: Config) -> list[Placement]:
        """The hooks of a method and where they go. Checks the settings; changes nothing yet."""
        self.check(config)
        if config.learns and not hasattr(self.learned_home[0], config.method):
            raise ValueError(
                f"{type(config).__name__} needs a scorer of its own, trained with the model, which "
                f"this one does not have: train it with `sta train DATA --model MODEL --method "
                f"{config.method} --r {r_of(config) or 1} --out RUN`, then use RUN/model"
            )
        return self.place(config, config.plan(self.layout))

    def check(self, config: Config) -> None:
        """Refuse a method that needs what the backbone does not have."""
        for need, why in self.layout.refuses:
            if need in config.requires:
                name = type(config).__name__
                if need not in config.needs:  # but an option of it does
                    name += {
                        "clip": f'(budget="{config.budget}")',
                        "merge": "(merge=True)",
                        "windows": f'(fill="{config.fill}")',
                    }.get(need, "")
                raise ValueError(f"{name} cannot be applied to {self.family}: {why}")

    @abstractmethod
    def place(self, config: Config, steps: Sequence[Step]) -> list[Placement]:
        """The hooks of planned steps and where they go."""

    @abstractmethod
    def tokens_per_frame(self, size: int) -> list[int]:
        """Tokens that a step finds in each frame, given the side of a clip; per stage if staged."""

    def largest_r(self, config: Config, size: int) -> int:
        """The largest r with which a method leaves tokens at every step, given a clip's side."""
        layout, tokens = self.layout, self.tokens_per_frame(size)

        def fits(r: int) -> bool:
            try:
                steps = replace(config, r=r).plan(layout)  # type: ignore[call-arg]
            except ValueError:
                return False
            return not layout.staged or all(s.drop < tokens[s.after - 1] for s in steps)

        return largest(fits, layout.blocks * max(tokens) * 64) if config.drops else 0

    @abstractmethod
    def all_blocks(self) -> list[tuple[nn.Module, int]]:
        """The transformer blocks, and how often patches were merged before each."""

    @abstractmethod
    def token_pixels(self, merged: int = 0) -> tuple[int, int, int]:
        """Frames, height and width of the pixels behind a token, after this many patch mergings."""

    @abstractmethod
    def tokens_of(self, output: Any) -> Tensor:
        """The tokens that a block put out, as rows, (B, n, D), without class token."""

    def average(self, tokens: Tensor) -> Tensor:
        """The mean of the tokens of a clip that a block put out: (B, n, D) -> (B, D)."""
        return tokens.mean(1)

    @abstractmethod
    def step_layouts(self) -> list[StepLayout]:
        """Where the steps of the last forward are, in their order."""

    @abstractmethod
    def kept(self) -> list[Tensor]:
        """See `sta.kept`."""

    @abstractmethod
    def restore(self, tokens: Tensor) -> Tensor:
        """See `sta.restore`."""

    def restore_delta(self, tokens: Tensor) -> Tensor:
        """See `sta.restore` with `fill="delta"`."""
        raise TypeError(f'{self.family} has no fill="delta"; use nearest')

    @property
    def steps(self) -> list[StepHook]:
        """The installed steps, in the order of the forward."""
        return sorted(hooks_in(self.backbone, StepHook), key=lambda hook: hook.number)

    def last_forward(self) -> list[StepHook]:
        """The installed steps, each with what it kept in the last forward."""
        steps = self.steps
        if not steps:
            raise ValueError(
                "no method is applied to this model; call sta.apply(model, config) first"
            )
        # An export runs the model on fake tensors, which say nothing about a real clip; but while
        # it runs, they are what the graph is made of.
        exporting = torch.compiler.is_exporting()
        if any(s.kept is None or (is_fake(s.kept) and not exporting) for s in steps):
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
