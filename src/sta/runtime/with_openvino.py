"""OpenVINO models, and its CPU plugin to run them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from sta.runtime.extras import require
from sta.runtime.graph import FACTS, INPUT, plain_attention
from sta.runtime.probe import note_openvino

#: What the plugin computes in; without a word it may take bfloat16 for float32.
_HINTS = {"float32": "f32", "int8": "f32", "float16": "f16", "bfloat16": "bf16"}


@cache
def core() -> Any:
    """The process's only `Core`, which stays to the end.

    Its CPU plugin replaces the stack that signals are handled on, and puts back what it found. If
    one of two ends before the other, that is a stack that is gone, and the next signal, Ctrl-C or
    the end of a child process, kills the process.
    """
    return require("openvino", "the openvino runtime").Core()


def convert(program: ExportedProgram, names: list[str]) -> Any:
    """An OpenVINO model of the graph. From PyTorch's, where attention is still one operation."""
    ov = require("openvino", "the openvino runtime")
    with plain_attention():
        model = ov.convert_model(program)
    model.inputs[0].tensor.set_names({INPUT})
    if model.is_dynamic():  # in the batch alone: it forgets the other sizes
        pixels = next(node for node in program.graph.nodes if node.name == INPUT).meta["val"]
        model.reshape({INPUT: [-1, *pixels.shape[1:]]})
    for output, name in zip(model.outputs, names, strict=True):
        output.tensor.set_names({name})
    return model


def save(model: Any, path: Path, *, half: bool) -> None:
    """Write ``path`` (.xml) and the weights beside it (.bin), in float16 where `half`."""
    ov = require("openvino", "the openvino runtime")
    ov.save_model(model, str(path), compress_to_fp16=half)


def read(path: Path) -> tuple[Any, str | None]:
    """The model of a file, and what it says of itself."""
    model = core().read_model(str(path))
    return model, model.get_rt_info([FACTS]).astype(str) if model.has_rt_info([FACTS]) else None


def shapes(model: Any) -> tuple[list[Any], list[Any]]:
    """The shapes of a model's inputs and outputs; a size that may be any is None."""
    inputs, outputs = (
        [
            [None if size.is_dynamic else size.get_length() for size in one.partial_shape]
            for one in side
        ]
        for side in (model.inputs, model.outputs)
    )
    return inputs, outputs


def multiplier(
    left: tuple[int, ...],
    right: tuple[int, ...],
    precision: str,
    *,
    transposed: bool,
    weights: bool,
    threads: int | None = None,
) -> Callable[[], object] | None:
    """One matrix product, to be timed; None where OpenVINO has no such precision here.

    As inside a model: matrices lie in memory in the precision, and nothing is copied in or out. The
    right one, whose shape is as it lies in memory, is constant if it is `weights`: it can be
    prepacked.
    """
    ov = require("openvino", "the openvino runtime")
    op = require("openvino.opset13", "the openvino runtime")
    kind = getattr(ov.Type, _HINTS[precision])
    first, second = op.parameter(list(left), kind), op.parameter(list(right), kind)
    inputs = [first, second]
    if weights:
        values = np.random.default_rng(0).uniform(-1, 1, right).astype(np.float32)
        second = op.constant(values, dtype=kind)
        inputs = [first]
    return _timed(op.matmul(first, second, False, transposed), inputs, precision, threads)


def attention(
    queries: tuple[int, ...], keys: tuple[int, ...], precision: str, *, threads: int | None = None
) -> Callable[[], object] | None:
    """One fused attention, to be timed as `multiplier` is; shapes are (clips, heads, n, width),
    values' as keys'."""
    ov = require("openvino", "the openvino runtime")
    op = require("openvino.opset13", "the openvino runtime")
    kind = getattr(ov.Type, _HINTS[precision])
    inputs = [op.parameter(list(shape), kind) for shape in (queries, keys, keys)]
    return _timed(op.scaled_dot_product_attention(*inputs), inputs, precision, threads)


def _timed(
    result: Any, inputs: list[Any], precision: str, threads: int | None
) -> Callable[[], object] | None:
    """A graph on inputs of ones; None where OpenVINO has no such precision here."""
    ov = require("openvino", "the openvino runtime")
    try:
        request = _compile(ov.Model([result], inputs), precision, threads)
    except ValueError:
        return None
    for number, given in enumerate(inputs):
        tensor = ov.Tensor(given.get_element_type(), given.shape)
        tensor.data[:] = 1
        request.set_input_tensor(number, tensor)

    def run() -> None:
        request.start_async()
        request.wait()

    return run


def session(model: Any, precision: str, threads: int | None) -> Callable[..., list[Tensor]]:
    """A function from pixels to all outputs of an OpenVINO model, on the CPU."""
    request = _compile(model, precision, threads)

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = [tensor.detach().contiguous().numpy() for tensor in inputs]
        outputs = request.infer(arrays, share_inputs=True, share_outputs=False)
        return [torch.from_numpy(out) for out in outputs.values()]

    return run


def _compile(model: Any, precision: str, threads: int | None) -> Any:
    """A request of the compiled model; refuses a precision that the processor does not have."""
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
    }
    if threads is not None:
        settings["INFERENCE_NUM_THREADS"] = threads
    note_openvino()
    compiled = core().compile_model(model, "CPU", settings)
    taken = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if taken != settings["INFERENCE_PRECISION_HINT"]:
        raise ValueError(
            f"precision {precision!r}: OpenVINO has none on this processor, it would compute in "
            f"{taken}; use float32 or int8"
        )
    return compiled.create_infer_request()
