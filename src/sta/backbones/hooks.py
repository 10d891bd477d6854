"""How sta sits in a model: hooks, found again by their type, so nothing else remembers them.

A hook is a forward hook of torch, or the companion of a module whose class was swapped for a
subclass. Being part of the model, hooks follow it through `copy.deepcopy` and pickling;
`remove_hooks` takes all out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from sta.methods.base import Choice, Config, Site, Step


class Hook:
    """Base of everything that sta puts into a model."""


def _traced_by_hand() -> bool:
    """Whether torch.jit.trace or torch.onnx.export runs the model, also through a compiler."""
    exporting = "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export()
    return bool(torch.jit.is_tracing() or exporting)  # type: ignore[attr-defined]


# What torch.compiler.assume_constant_result sets; that would import the whole compiler.
_traced_by_hand._dynamo_marked_constant = True  # type: ignore[attr-defined]


def in_float32(tokens: Tensor) -> AbstractContextManager[Any]:
    """Without autocast inside: a choice that rounding changes is another input to what follows."""
    kind = tokens.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


class StepHook(Hook):
    """A step of a method, which remembers what stayed in the last forward."""

    observe: Callable[[Site], object] | None = None  # called with each site before the choice
    pixels: ThreadLocalTensor | None = None  # the clip, (B, F, C, H, W), if the method needs it
    tubelet = (1, 1, 1)  # frames, height and width of the pixels behind one token

    def __init__(self, number: int, steps: int, config: Config, step: Step) -> None:
        self.number = number  # 0, 1, ... in the order of the forward
        self.steps = steps  # how many there are
        self.config = config
        self.after = step.after  # 0 for the patch embedding, else a block or stage
        self.drop = step.drop
        self.kept: Tensor | None = None  # in the last forward; each adapter stores it in its way

    def choose(self, site: Site) -> Choice:
        """What the method says about a site.

        Raises:
            RuntimeError: A tracer that would freeze this clip's choice, or cannot follow it.
            TypeError: The method's answer is no choice of tokens of this site.
        """
        if _traced_by_hand():
            raise RuntimeError(
                "a pruned model cannot go through torch.jit.trace or torch.onnx.export by hand; "
                "sta.export(model, 'model.onnx') writes it for ONNX, OpenVINO and PyTorch"
            )
        with in_float32(site.tokens):
            if self.observe is not None:
                self.observe(site)
            choice = self.config.choose(site)
        name = type(self.config).__name__
        if not isinstance(choice, Choice):
            raise TypeError(f"{name}.choose must return a Choice, not a {type(choice).__name__}")
        expected = (site.tokens.shape[0], site.grid.frames)[: choice.kept.ndim - 1]
        if choice.kept.ndim not in (2, 3) or choice.kept.shape[:-1] != expected:
            raise TypeError(
                f"{name}.choose kept {tuple(choice.kept.shape)}; expected (B, T, K) or (B, K) with "
                f"B={site.tokens.shape[0]} clips and T={site.grid.frames} frames"
            )
        return choice

    def __getstate__(self) -> dict[str, Any]:
        # What the last forward saw is not part of the model: copies and files go without it.
        return {k: None if isinstance(v, Tensor) else v for k, v in self.__dict__.items()}


class RecordedTokens:
    """An observer of a step that holds its tokens of the last forward, without class token."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None  # what it received, (B, n, D)
        self.left: Tensor | None = None  # what it left, (B, K, D), where it merged

    def __call__(self, site: Site) -> None:
        self.tokens = site.tokens

    def __getstate__(self) -> dict[str, Any]:
        return {"tokens": None, "left": None}  # copies and files go without it


def recorded_input(step: StepHook) -> Tensor:
    """The tokens that a step received in the last forward."""
    if not isinstance(step.observe, RecordedTokens) or step.observe.tokens is None:
        raise RuntimeError(
            'fill="delta" needs what dropped tokens were before: call sta.record(model) after '
            "sta.apply, and run the forward after that"
        )
    return step.observe.tokens


def recorded_output(step: StepHook) -> Tensor:
    """The tokens that a step that merges left in the last forward; see `recorded_input`."""
    values = step.observe
    assert isinstance(values, RecordedTokens)
    assert values.left is not None
    return values.left


T = TypeVar("T")


class ThreadLocal(Generic[T]):
    """Hands a value from one hook to a later one of the same forward.

    Threads may share a model, so each has a place of its own. In a compiled graph a tensor is
    just a value, and a plain attribute is all that the compiler needs to follow it.
    """

    def __init__(self) -> None:
        self._by_thread: dict[int, T] = {}
        self._traced: T | None = None

    def put(self, value: T) -> None:
        """Hold a value for the hooks that this forward comes to."""
        if torch.compiler.is_compiling():
            self._traced = value
        else:
            self._by_thread[get_ident()] = value

    def get(self) -> T | None:
        """What this thread put here last; None if nothing."""
        if torch.compiler.is_compiling():
            return self._traced
        return self._by_thread.get(get_ident())

    def clear(self) -> None:
        if torch.compiler.is_compiling():
            self._traced = None
        else:
            self._by_thread.pop(get_ident(), None)

    def __getstate__(self) -> dict[str, Any]:
        return {"_by_thread": {}, "_traced": None}  # copies and files go without it


class ThreadLocalTensor(ThreadLocal[Tensor]):
    """A tensor for a later hook of the same forward."""


class Swapped(nn.Module):
    """Mixin of a module whose class was swapped; `hook` is its companion."""

    hook: Hook

    if TYPE_CHECKING:  # the attributes of the class that it is mixed into

        def __getattr__(self, name: str) -> Any: ...


P = TypeVar("P", bound=Hook)


@dataclass(frozen=True)
class Placement:
    """Where a hook goes.

    Attributes:
        module: The module it sits on.
        hook: What goes there.
        how: "after" the module's forward, ahead of anyone else's hooks, called as
            `hook(module, args, kwargs, output)`; "before" it, called as
            `hook(module, args, kwargs)`; or a subclass of the module's class and `Swapped`, which
            the module becomes, with the hook as its companion.
    """

    module: nn.Module
    hook: Hook
    how: Literal["after", "before"] | type[Swapped] = "after"

    def put(self) -> None:
        if self.how == "after":
            self.module.register_forward_hook(self.hook, prepend=True, with_kwargs=True)  # type: ignore[arg-type]
        elif self.how == "before":
            self.module.register_forward_pre_hook(self.hook, with_kwargs=True)  # type: ignore[arg-type]
        else:
            self.module.__class__ = self.how
            self.module.__dict__["hook"] = self.hook


def hooks_in(model: nn.Module, kind: type[P]) -> Iterator[P]:
    """All hooks of a kind in the model."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for hook in hooks.values():
                if isinstance(hook, kind):
                    yield hook
        companion = module.__dict__.get("hook")
        if isinstance(module, Swapped) and isinstance(companion, kind):
            yield companion


@contextmanager
def captured(modules: Iterable[nn.Module], *, before: bool = False) -> Iterator[list[Any]]:
    """What modules put out, or receive, in the forwards meanwhile; after the hooks of steps."""
    seen: list[Any] = []
    if before:
        handles = [m.register_forward_pre_hook(lambda _, a: seen.append(a[0])) for m in modules]
    else:
        handles = [m.register_forward_hook(lambda _, a, out: seen.append(out)) for m in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class _Asked(Exception):
    """What comes after the first step is not needed."""


@torch.no_grad()
def ask_first_step(model: nn.Module, pixels: Tensor, ask: Callable[[Site], T]) -> T:
    """What is said of the site of the first step; the forward ends there."""
    step, said = next(hooks_in(model, StepHook)), []

    def observe(site: Site) -> None:
        said.append(ask(site))
        raise _Asked

    step.observe = observe
    try:
        with suppress(_Asked):
            model(pixels)
    finally:
        step.observe = None
    return said[0]


def remove_hooks(model: nn.Module) -> None:
    """Take every hook out of the model, leaving it as it was."""
    for name, module in model.named_modules():
        if isinstance(module, Swapped) and Swapped not in type(module).__bases__:
            raise TypeError(
                f"{name} became a {type(module).__name__} while sta was applied (was it "
                f"parametrised or wrapped?); undo that first, or call sta.remove before it"
            )
    for module in model.modules():
        for hooks, flags in (
            (module._forward_pre_hooks, (module._forward_pre_hooks_with_kwargs,)),
            (
                module._forward_hooks,
                (module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
            ),
        ):
            for key in [k for k, h in hooks.items() if isinstance(h, Hook)]:
                del hooks[key]
                for flag in flags:
                    flag.pop(key, None)
        if isinstance(module, Swapped):
            module.__class__ = next(c for c in type(module).__mro__[1:] if c is not Swapped)
            del module.__dict__["hook"]
