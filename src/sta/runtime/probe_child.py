"""A small product in low precision, run as a program of its own: if it dies, only it does.

python probe_child.py RUNTIME PRECISION
"""

from __future__ import annotations

import sys
from typing import Any

SIZE = 256  # enough for the kernels that large products get


def openvino(precision: str) -> None:
    """A product of OpenVINO's CPU plugin."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op

    def levels(x: Any) -> Any:
        low, high = (op.constant(np.float32(edge)) for edge in (-1.28, 1.27))
        return op.fake_quantize(x, low, high, low, high, 256)

    x: Any = op.parameter([SIZE, SIZE], np.float32)
    rng = np.random.default_rng(0)
    weight: Any = op.constant(rng.uniform(-1, 1, (SIZE, SIZE)).astype(np.float32))
    sides = (levels(x), levels(weight)) if precision == "int8" else (x, weight)
    model = ov.Model([op.matmul(*sides, False, False)], [x])
    hint = {"bfloat16": "bf16", "float16": "f16"}.get(precision, "f32")
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})
    compiled([rng.uniform(-1, 1, (SIZE, SIZE)).astype(np.float32)])


def torch(precision: str) -> None:
    """A product of PyTorch on the CPU."""
    import torch as library

    dtype = getattr(library, precision)
    x = library.randn(SIZE, SIZE).to(dtype)
    library.nn.functional.linear(x, x, x[0])
    heads = x.view(1, 4, SIZE, -1)
    library.nn.functional.scaled_dot_product_attention(heads, heads, heads)


if __name__ == "__main__":
    {"openvino": openvino, "torch": torch, "compile": torch}[sys.argv[1]](sys.argv[2])
