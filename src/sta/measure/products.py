"""How fast could a forward be if it did nothing but its matrix products?

The products are recorded from the real forward, for any backbone, method and attention. Each then
runs alone, in warm buffers of its shape, by every library that is installed: PyTorch's `mm`, `bmm`,
`linear` and fused attention, and OpenVINO, which like PyTorch's own oneDNN multiplies by prepacked
weights. The sum of the fastest of each is the limit that the forward is compared with. It is one
also for a runtime that would fuse: products of the same matrix by several weights, as those that
make queries, keys and values, count as one by all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from sta.measure.timing import Timing
from sta.runtime.extras import available
from sta.runtime.with_openvino import attention, multiplier

#: Multiply-accumulates that one timed run has at least: products run several times over, so that
#: neither the clock's resolution nor cold caches nor waking threads are measured.
_ENOUGH = 4_000_000_000
_MOST_REPEATS = 32
#: Operations that OpenVINO is compiled for, the largest ones. Pruned windows of Video Swin make
#: thousands of small ones, each of them a model that takes megabytes.
_MOST_COMPILED = 64
#: What PyTorch multiplies in. It has no int8 to compare with; in such a forward some products, the
#: choice of tokens above all, stay in float32, so that it takes part with that.
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.float32,
}

Run = Callable[[], object]


@dataclass(frozen=True)
class Product:
    """A matrix product, (batch, rows, inner) by (batch, inner, columns)."""

    batch: int  # independent products in one call
    rows: int  # of the left matrix
    inner: int  # what is summed over
    columns: int  # of the right matrix
    # Whether the right matrix lies in memory as its transpose does, like the weights of a linear
    # layer and the keys of an attention.
    transposed: bool

    @property
    def macs(self) -> int:
        return self.batch * self.rows * self.inner * self.columns

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers in the left matrix, the right one and the result."""
        rows, inner, columns = self.rows, self.inner, self.columns
        return self.batch * rows * inner, self.batch * inner * columns, self.batch * rows * columns


@dataclass(frozen=True)
class Attention:
    """Fused attention: queries by keys, softmax, weights by values."""

    batch: int  # clips times heads
    queries: int  # how many
    keys: int  # how many, and as many values
    width: int  # of each

    @property
    def macs(self) -> int:
        """Multiply-accumulates of its two products."""
        return 2 * self.batch * self.queries * self.keys * self.width

    @property
    def products(self) -> tuple[Product, Product]:
        return (
            Product(self.batch, self.queries, self.width, self.keys, True),
            Product(self.batch, self.queries, self.keys, self.width, False),
        )


Operation = Product | Attention


def repeats(operation: Operation) -> int:
    """How often an operation runs each time it is timed."""
    return max(1, min(_MOST_REPEATS, _ENOUGH // max(1, operation.macs)))


def record(forward: Callable[[], object]) -> Counter[Operation]:
    """The matrix products of one forward, and how often each occurs."""
    recorder = _Recorder()
    # Not inference mode, in which linear layers would not come apart into products.
    with torch.no_grad(), recorder:
        forward()
    return recorder.found


def runs(
    operations: Iterable[Operation],
    precision: str = "float32",
    *,
    device: str = "cpu",
    threads: int | None = None,
) -> dict[tuple[Operation, str], Run]:
    """Each operation by each library, ready to be timed.

    PyTorch's share their buffers, which are as large as needed.
    """
    chosen = list(dict.fromkeys(operations))
    if not chosen:
        return {}
    dtype = _DTYPES[precision]
    parts = [p for o in chosen for p in (o.products if isinstance(o, Attention) else (o,))]
    buffers = tuple(
        torch.ones(max(size), dtype=dtype, device=device)
        for size in zip(*(part.sizes for part in parts), strict=True)
    )
    made: dict[tuple[Operation, str], Run] = {}
    largest = set(sorted(chosen, key=lambda one: one.macs, reverse=True)[:_MOST_COMPILED])
    for operation in chosen:
        for library, run in _by_torch(operation, buffers).items():
            made[operation, library] = partial(_repeat, run, repeats(operation))
        if operation in largest and device == "cpu" and available()["openvino"] is None:
            for library, ready in _by_openvino(operation, precision, threads).items():
                made[operation, library] = ready
    return made


def limit(
    operations: Mapping[Operation, int], timings: Mapping[tuple[Operation, str], Timing]
) -> float:
    """Seconds of all products of a forward, each as fast as any library ever did it alone."""
    fastest: dict[Operation, float] = {}
    for (operation, _), timing in timings.items():
        seconds = min(timing.seconds) / repeats(operation)
        fastest[operation] = min(seconds, fastest.get(operation, math.inf))
    return sum(count * fastest[operation] for operation, count in operations.items())


def _repeat(run: Run, times: int) -> None:
    for _ in range(times):
        run()


def _by_torch(operation: Operation, buffers: tuple[Tensor, ...]) -> dict[str, Run]:
    if isinstance(operation, Attention):
        o = operation
        shapes = ((o.batch, o.queries, o.width), *((o.batch, o.keys, o.width),) * 2)
        q, k, v = (
            torch.ones(shape, dtype=buffers[0].dtype, device=buffers[0].device)[None]
            for shape in shapes
        )
        both = [_multiply(product, buffers) for product in o.products]
        return {
            "torch.bmm": lambda: [run() for run in both],
            "torch.sdpa": partial(F.scaled_dot_product_attention, q, k, v),
        }
    found = {"torch.mm": _multiply(operation, buffers)}
    if operation.batch == 1 and operation.transposed:
        sizes = operation.sizes
        x = buffers[0][: sizes[0]].view(operation.rows, operation.inner)
        weight = buffers[1][: sizes[1]].view(operation.columns, operation.inner)
        found["torch.linear"] = partial(F.linear, x, weight)
    return found


def _multiply(product: Product, buffers: tuple[Tensor, ...]) -> Run:
    """One product by `mm` or `bmm`, into a buffer."""
    p = product
    left, right, out = (buffer[:size] for buffer, size in zip(buffers, p.sizes, strict=True))
    a = left.view(p.batch, p.rows, p.inner)
    if p.transposed:
        b = right.view(p.batch, p.columns, p.inner).transpose(1, 2)
    else:
        b = right.view(p.batch, p.inner, p.columns)
    c = out.view(p.batch, p.rows, p.columns)
    if p.batch == 1:
        return partial(torch.mm, a[0], b[0], out=c[0])
    return partial(torch.bmm, a, b, out=c)


def _by_openvino(operation: Operation, precision: str, threads: int | None) -> dict[str, Run]:
    """The operation in OpenVINO, as often as it is repeated; without what it does not have."""
    precisions = dict.fromkeys([precision, "float32"] if precision == "int8" else [precision])
    found: dict[str, Run | None] = {}
    for kind in precisions:
        name = "openvino" if kind == precision else f"openvino.{kind}"
        if isinstance(operation, Product):
            found[name] = _multiplier(operation, kind, threads, repeats(operation))
            continue
        both = [_multiplier(p, kind, threads, repeats(operation)) for p in operation.products]
        made = [run for run in both if run is not None]  # one after the other
        found[name] = partial(_each, made) if len(made) == 2 else None
        if kind != "int8":  # which the fused one, that writes nothing in between, does not have
            queries = (1, operation.batch, operation.queries, operation.width)
            keys = (1, operation.batch, operation.keys, operation.width)
            times = repeats(operation)
            fused = attention(queries, keys, kind, threads=threads, times=times)
            found[f"{name}.sdpa"] = fused
    return {name: run for name, run in found.items() if run is not None}


def _each(runs: Iterable[Run]) -> None:
    for run in runs:
        run()


def _multiplier(product: Product, precision: str, threads: int | None, times: int) -> Run | None:
    left = (product.batch, product.rows, product.inner)
    right = (product.batch, product.inner, product.columns)
    if product.transposed:
        right = (product.batch, product.columns, product.inner)
    return multiplier(
        left,
        right,
        precision,
        transposed=product.transposed,
        # Of one product the right matrix is a layer's weights, of several it is computed as well.
        weights=product.batch == 1,
        threads=threads,
        times=times,
    )


# From what torch calls to operations. Each reader gets the result and the arguments of a call.


def _matrices(_: Tensor, a: Tensor, b: Tensor, *__: Any, **___: Any) -> Operation:
    if a.ndim == 2:
        a, b = a[None], b[None]
    transposed = b.stride(-1) != 1 and b.stride(-2) == 1
    return Product(a.shape[0], a.shape[1], a.shape[2], b.shape[2], transposed)


def _added(out: Tensor, _: Tensor, a: Tensor, b: Tensor, *__: Any, **___: Any) -> Operation:
    return _matrices(out, a, b)


def _convolution(out: Tensor, *args: Any, **_: Any) -> Operation:
    """As a product over unfolded patches, which it is where patches do not overlap."""
    weight, groups = args[1], args[8]
    patches = out.shape[0] * math.prod(out.shape[2:])
    return Product(groups, patches, math.prod(weight.shape[1:]), weight.shape[0] // groups, True)


def _attention(_: Any, q: Tensor, k: Tensor, v: Tensor, *__: Any, **___: Any) -> Operation:
    return Attention(q.shape[0] * q.shape[1], q.shape[2], k.shape[2], q.shape[3])


#: PyTorch's names of what multiplies, and how to read the products off a call. The attention
#: kernels are private: a release may lack some, and one that is not listed is an error.
_READERS: dict[str, Callable[..., Operation]] = {
    "mm": _matrices,
    "bmm": _matrices,
    "addmm": _added,
    "baddbmm": _added,
    "convolution": _convolution,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
}
#: Where the left matrix is among the arguments, of what a layer's weights are multiplied by.
_LEFT = {"mm": 0, "addmm": 1}


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Operation] = Counter()
        self._last: tuple[Tensor, Product] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        library, _, name = func._schema.name.partition("::")
        reader = _READERS.get(name) if library == "aten" else None
        if reader is not None:
            operation = reader(out, *args, **(kwargs or {}))
            self._add(operation, args[_LEFT[name]] if name in _LEFT else None)
        elif "attention" in name:
            raise NotImplementedError(
                f"{func._schema.name} of torch {torch.__version__}: the products of this attention "
                f"kernel are not known; use gemm=False, or eager attention"
            )
        return out

    def _add(self, operation: Operation, left: Tensor | None) -> None:
        """Count an operation; one more product of the last one's matrix makes that wider."""
        if left is None or not isinstance(operation, Product) or not operation.transposed:
            self.found[operation] += 1
            self._last = None
            return
        if self._last is not None and _same(self._last[0], left):
            before = self._last[1]
            self.found -= Counter([before])
            operation = replace(before, columns=before.columns + operation.columns)
        self.found[operation] += 1
        self._last = left, operation  # it stays, so that no other matrix comes to lie where it is


def _same(one: Tensor, other: Tensor) -> bool:
    place = (one.data_ptr(), one.shape, one.stride())
    return place == (other.data_ptr(), other.shape, other.stride())
