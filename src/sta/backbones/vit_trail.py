"""What goes beside the steps: features overheard, word to later blocks, and a guard at the door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sta.backbones.hooks import Plug, Relay
from sta.core.features import mean_over_heads

if TYPE_CHECKING:
    from sta.backbones.vit import ViTAdapter
    from sta.backbones.vit_steps import FrameDifferenceStep

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Trail:
    """What one forward has kept so far, for the blocks that need to know.

    Every forward makes its own and hands it to its blocks as the keyword argument `trail`, so
    blocks never ask the model about other blocks. That matters when gradient checkpointing runs a
    block again after another clip has passed, and when threads share a model.

    Attributes:
        places: Per step, where on the clip's grid the tokens it left belong, (B, K).
        sizes: Per merging step, how many original tokens each token stands for, (B, K, 1).
    """

    def __init__(self) -> None:
        self.places: dict[int, Tensor] = {}
        self.sizes: dict[int, Tensor] = {}

    def add(self, step: int, kept: Tensor) -> None:
        """Note which of the tokens it received a step kept, (B, K)."""
        before = self.places.get(step - 1)
        self.places[step] = kept if before is None else before.gather(1, kept)


class StartTrail(Plug):
    """Gives a forward its trail, before the module that runs the blocks.

    Attributes:
        at_input: A step on the embedding, which is not handed the trail: what it keeps is noted
            here. Only for encoders that receive the clip itself.
        clip: Name of the clip among that module's arguments.
    """

    def __init__(self, at_input: FrameDifferenceStep | None, clip: str) -> None:
        self.at_input = at_input
        self.clip = clip

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        trail = Trail()
        if self.at_input is not None:
            trail.add(0, self.at_input.changed(args[0] if args else kwargs[self.clip]))
        return args, {**kwargs, "trail": trail}


class TellPlaces(Plug):
    """Tells a block where on the grid its tokens belong.

    Attributes:
        after: Number of the step that left the tokens.
        argument: Which positional argument of the block takes their places, (B, n).
    """

    def __init__(self, after: int, argument: int) -> None:
        self.after = after
        self.argument = argument

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        places = kwargs["trail"].places[self.after].to(args[0].device)
        return (*args[: self.argument], places, *args[self.argument + 1 :]), kwargs


class Withhold(Plug):
    """Keeps from a block an argument that speaks of tokens it no longer has.

    Attributes:
        argument: Which positional argument; the block gets None.
    """

    def __init__(self, argument: int) -> None:
        self.argument = argument

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return (*args[: self.argument], None, *args[self.argument + 1 :]), kwargs


class Overhear(Plug):
    """Keeps what a block's projection puts out until the step at the block's end asks for it.

    The block makes its keys anyway. Compilers get no such side effect to follow: there a step makes
    its features itself, and what is made twice is merged.

    Attributes:
        heads: Of the attention.
        heard: The mean over heads, (B, n, head dim).
    """

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self.heard = Relay()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        # Whoever replaces the module may hang the hook up again in its form without kwargs.
        if not torch.compiler.is_compiling():
            self.heard.put(mean_over_heads(rest[-1].detach(), self.heads))

    def last(self, projection: nn.Module) -> Tensor | None:
        """What the projection said last in this forward; None if this did not sit on it."""
        if torch.compiler.is_compiling() or self not in projection._forward_hooks.values():
            return None
        return self.heard.get()


class Guard(Plug):
    """Refuses calls that a model with fewer tokens cannot serve.

    Attributes:
        family: The adapter class, which knows which.
        names: Of the backbone's arguments, in order.
    """

    def __init__(self, family: type[ViTAdapter], names: tuple[str, ...]) -> None:
        self.family = family
        self.names = names

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        if (why := self.family.reason_against_call(module, given)) is not None:
            raise ValueError(f"this {self.family.family} model is pruned, and {why}")
