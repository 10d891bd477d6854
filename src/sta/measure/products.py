"""How fast could a forward be if it did nothing but its matrix products?

The products are recorded from the real forward, for any backbone, method and attention. Each then
runs alone, in warm buffers of its shape, by `torch.mm` or `torch.bmm`; their sum is the limit that
the forward is compared with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sta.measure.timing import Timing

#: Multiply-accumulates that one timed run has at least: small products run several times over, so
#: that neither the clock's resolution nor cold caches are measured.
_ENOUGH = 50_000_000
_MOST_REPEATS = 200


@dataclass(frozen=True)
class Product:
    """A matrix product, (batch, rows, inner) by (batch, inner, columns).

    Attributes:
        batch: Independent products in one call.
        rows: Of the left matrix.
        inner: What is summed over.
        columns: Of the right matrix.
        transposed: Whether the right matrix lies in memory as its transpose does, like the weights
            of a linear layer and the keys of an attention.
    """

    batch: int
    rows: int
    inner: int
    columns: int
    transposed: bool

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.batch * self.rows * self.inner * self.columns

    @property
    def repeats(self) -> int:
        """How often it runs each time it is timed."""
        return max(1, min(_MOST_REPEATS, _ENOUGH // max(1, self.macs)))


def record(forward: Callable[[], object]) -> Counter[Product]:
    """The matrix products of one forward, and how often each occurs."""
    recorder = _Recorder()
    # Not inference mode, in which linear layers would not come apart into products.
    with torch.no_grad(), recorder:
        forward()
    return recorder.found


def runs(
    products: Iterable[Product], *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> dict[Product, Callable[[], object]]:
    """Each product, ready to be timed. All share their buffers, which are as large as needed."""
    chosen = list(dict.fromkeys(products))
    if not chosen:
        return {}
    left, right, out = (
        torch.ones(max(size), dtype=dtype, device=device)
        for size in zip(*(_sizes(product) for product in chosen), strict=True)
    )
    return {product: _run(product, left, right, out) for product in chosen}


def limit(products: Mapping[Product, int], timings: Mapping[Product, Timing]) -> float:
    """Seconds of all products of a forward, each as fast as it was alone."""
    return sum(
        count * timings[product].median / product.repeats for product, count in products.items()
    )


def _sizes(product: Product) -> tuple[int, int, int]:
    batch = product.batch
    return (
        batch * product.rows * product.inner,
        batch * product.inner * product.columns,
        batch * product.rows * product.columns,
    )


def _run(product: Product, left: Tensor, right: Tensor, out: Tensor) -> Callable[[], object]:
    p = product
    sizes = _sizes(p)
    a = left[: sizes[0]].view(p.batch, p.rows, p.inner)
    if p.transposed:
        b = right[: sizes[1]].view(p.batch, p.columns, p.inner).transpose(1, 2)
    else:
        b = right[: sizes[1]].view(p.batch, p.inner, p.columns)
    c = out[: sizes[2]].view(p.batch, p.rows, p.columns)
    multiply: Callable[..., Tensor] = torch.bmm
    if p.batch == 1:
        a, b, c, multiply = a[0], b[0], c[0], torch.mm

    def run() -> None:
        for _ in range(p.repeats):
            multiply(a, b, out=c)

    return run


# From what torch calls to products. Each reader gets the result and the arguments of a call.


def _matrices(_: Tensor, a: Tensor, b: Tensor, *__: Any, **___: Any) -> list[Product]:
    if a.ndim == 2:
        a, b = a[None], b[None]
    transposed = b.stride(-1) != 1 and b.stride(-2) == 1
    return [Product(a.shape[0], a.shape[1], a.shape[2], b.shape[2], transposed)]


def _added(out: Tensor, _: Tensor, a: Tensor, b: Tensor, *__: Any, **___: Any) -> list[Product]:
    return _matrices(out, a, b)


def _convolution(out: Tensor, *args: Any, **_: Any) -> list[Product]:
    """As a product over unfolded patches, which it is where patches do not overlap."""
    weight, groups = args[1], args[8]
    patches = out.shape[0] * math.prod(out.shape[2:])
    return [
        Product(groups, patches, math.prod(weight.shape[1:]), weight.shape[0] // groups, True),
    ]


def _attention(_: Any, q: Tensor, k: Tensor, v: Tensor, *__: Any, **___: Any) -> list[Product]:
    """Queries by keys, then weights by values; (B, heads, n, C) each."""
    batch, queries, width, keys = q.shape[0] * q.shape[1], q.shape[2], q.shape[3], k.shape[2]
    return [
        Product(batch, queries, width, keys, True),
        Product(batch, queries, keys, v.shape[3], False),
    ]


#: PyTorch's names of what multiplies, and how to read the products off a call. The attention
#: kernels are private: a release may lack some, and one that is not listed is an error.
_READERS: dict[str, Callable[..., list[Product]]] = {
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


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Product] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        library, _, name = func._schema.name.partition("::")
        reader = _READERS.get(name) if library == "aten" else None
        if reader is not None:
            self.found.update(reader(out, *args, **(kwargs or {})))
        elif "attention" in name:
            raise NotImplementedError(
                f"{func._schema.name} of torch {torch.__version__}: the products of this attention "
                f"kernel are not known; use gemm=False (--no-gemm), or eager attention"
            )
        return out
