"""What a forward of a columnar backbone carries from part to part, and the hooks that do so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sta.backbones.hooks import Hook, ThreadLocalTensor
from sta.backbones.site import mean_over_heads
from sta.core.merge import weighted_mean
from sta.methods.base import Config

if TYPE_CHECKING:
    from sta.backbones.vit import ViTAdapter
    from sta.backbones.vit_step import TokenStep

Call = tuple[tuple[Any, ...], dict[str, Any]]


class ForwardState:
    """What one forward has kept so far, for the blocks that need to know.

    Every forward makes its own and hands it to its blocks as the keyword argument `state`, so
    blocks never ask the model about other blocks. That matters when gradient checkpointing runs a
    block again after another clip has passed, and when threads share a model.
    """

    def __init__(self) -> None:
        self.frames = 0  # of tokens, in this clip
        # Per step, where on the clip's grid the tokens it left belong, (B, K); and how many
        # original tokens each stands for, (B, K, 1), unless one each.
        self.positions: dict[int, Tensor] = {}
        self.sizes: dict[int, Tensor] = {}

    def add(self, step: int, kept: Tensor, sizes: Tensor | None = None) -> None:
        """Note which of the tokens it received a step kept, (B, K), and their sizes."""
        before = self.positions.get(step - 1)
        self.positions[step] = kept if before is None else before.gather(1, kept)
        if sizes is not None:
            self.sizes[step] = sizes


class WeighAttention(Hook):
    """Companion of a block after the last step, whose tokens still weigh by their size."""

    def __init__(self, after: int, config: Config, prefix: int) -> None:
        self.after = after
        self.config = config
        self.prefix = prefix

    def attention_bias(self, state: ForwardState) -> Tensor | None:
        return size_bias(state, self.after, self.config, self.prefix)

    def between(self, block: nn.Module, normed: Tensor, x: Tensor, state: ForwardState) -> Tensor:
        """No step: all tokens go on."""
        return x


def size_bias(state: ForwardState, step: int, config: Config, prefix: int) -> Tensor | None:
    """What is added to attention logits so that tokens weigh by size, (B, 1, 1, n); or None."""
    sizes = state.sizes.get(step)
    if not config.weighs_attention or sizes is None:
        return None
    log = sizes.squeeze(-1).log()
    log = torch.cat([log.new_zeros(log.shape[0], prefix), log], 1)
    return log[:, None, None, :]


class StartForward(Hook):
    """Gives a forward its state, before the module that runs the blocks."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return args, {**kwargs, "state": ForwardState()}


class RemoveState(Hook):
    """Keeps the state from a part of a block that takes no further keyword arguments."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return args, {name: value for name, value in kwargs.items() if name != "state"}


class ReceiveInputStep(Hook):
    """Notes in the state what a step at the input kept: the embedding is not handed the state."""

    def __init__(self, step: TokenStep) -> None:
        self.step = step

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        state: ForwardState = kwargs["state"]
        assert self.step.input_kept is not None
        assert self.step.input_sizes is not None
        assert self.step.input_frames is not None
        kept, frames = self.step.input_kept.get(), self.step.input_frames.get()
        if 0 in state.positions or kept is None or frames is None:
            return  # the block runs again, for its gradients
        state.add(0, kept, self.step.input_sizes.get())
        state.frames = frames


class CaptureTokens(Hook):
    """Keeps the tokens, (B, n, D), that a backbone puts out, for the head."""

    def __init__(self) -> None:
        self.tokens = ThreadLocalTensor()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.tokens.put(output[0])


class WeighAverage(Hook):
    """Gives the module after a model's average the one in which tokens weigh by their size."""

    def __init__(self, captured: CaptureTokens, sizes: ThreadLocalTensor) -> None:
        self.captured = captured
        self.sizes = sizes

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        tokens, sizes = self.captured.tokens.get(), self.sizes.get()
        self.captured.tokens.clear()
        self.sizes.clear()
        if tokens is None or sizes is None:
            return None
        return (weighted_mean(tokens, sizes.to(tokens.device)), *args[1:]), kwargs


class WeighPooling(Hook):
    """Lets a head that pools by attention weigh tokens by their size."""

    def __init__(self, sizes: ThreadLocalTensor) -> None:
        self.sizes = sizes

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        sizes = self.sizes.get()
        if sizes is None:
            return None
        bias = sizes.log().to(args[0]).squeeze(-1)[:, None, None]  # (B, 1, 1, n)
        return args, {**kwargs, "attention_mask": bias}


class PassPositions(Hook):
    """Tells a block where on the grid the tokens that step `after` left belong, (B, n)."""

    def __init__(self, after: int, argument: int) -> None:
        self.after = after
        self.argument = argument

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        positions = kwargs["state"].positions[self.after].to(args[0].device)
        return (*args[: self.argument], positions, *args[self.argument + 1 :]), kwargs


class ClearArgument(Hook):
    """Keeps from a block a positional argument that speaks of tokens it no longer has."""

    def __init__(self, argument: int) -> None:
        self.argument = argument

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return (*args[: self.argument], None, *args[self.argument + 1 :]), kwargs


class CaptureProjection(Hook):
    """Keeps what a block's projection puts out until the step at the block's end asks for it.

    The block makes its keys anyway. Compilers get no such side effect to follow: there a step makes
    its features itself, and what is made twice is merged.
    """

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self.features = ThreadLocalTensor()  # the mean over heads, (B, n, head dim)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        # Code that replaces the module may register the hook again without kwargs.
        if not torch.compiler.is_compiling():
            self.features.put(mean_over_heads(rest[-1].detach(), self.heads))

    def last(self, projection: nn.Module) -> Tensor | None:
        """What the projection gave last in this forward; None if this did not sit on it."""
        if torch.compiler.is_compiling() or self not in projection._forward_hooks.values():
            return None
        return self.features.get()


class CaptureEmbeddings(Hook):
    """Keeps what the patch convolution puts out, (B, T * N, D), for the steps of this forward."""

    def __init__(self) -> None:
        self.tokens = ThreadLocalTensor()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        self.tokens.put(output.flatten(2).transpose(1, 2))


class CheckCall(Hook):
    """Refuses calls that a model with fewer tokens cannot serve."""

    def __init__(self, family: type[ViTAdapter], names: tuple[str, ...]) -> None:
        self.family = family
        self.names = names

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        if (why := self.family.reason_against_call(module, given)) is not None:
            raise ValueError(f"this {self.family.family} model is pruned, and {why}")
