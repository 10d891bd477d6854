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
    times: int = 1,
) -> Callable[[], object] | None:
    """A matrix product, to be timed; None where OpenVINO has no such precision here.

    As inside a model: matrices lie in memory in the precision, nothing is copied in or out, and
    `times` of them follow each other without a call of their own, which would wake the threads for
    each. The right one, whose shape is as it lies in memory, is constant if it is `weights`: it can
    be prepacked.
    """
    op = require("openvino.opset13", "the openvino runtime")

    def one() -> tuple[Any, list[Any]]:
        first, a = _matrix(left, precision)
        if weights:
            return op.matmul(a, constant, False, transposed), [first]
        second, b = _matrix(right, precision, signed=True)
        return op.matmul(a, b, False, transposed), [first, second]

    constant = _weights(right, precision) if weights else None
    return _timed([one() for _ in range(times)], precision, threads)


def _matrix(shape: tuple[int, ...], precision: str, *, signed: bool = False) -> tuple[Any, Any]:
    """An input that lies in memory in the precision, and what to compute with.

    In int8 that is the input between its ends, which the plugin takes for the 8 bits themselves.
    """
    ov = require("openvino", "the openvino runtime")
    op = require("openvino.opset13", "the openvino runtime")
    if precision != "int8":
        given = op.parameter(list(shape), getattr(ov.Type, _HINTS[precision]))
        return given, given
    given = op.parameter(list(shape), ov.Type.i8 if signed else ov.Type.u8)
    low, high = (-128, 127) if signed else (0, 255)
    ends = [op.constant(np.float32(end)) for end in (low, high, low / 100, high / 100)]
    return given, op.fake_quantize(op.convert(given, ov.Type.f32), *ends, 256)


def _weights(shape: tuple[int, ...], precision: str) -> Any:
    ov = require("openvino", "the openvino runtime")
    op = require("openvino.opset13", "the openvino runtime")
    values = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    constant = op.constant(values, dtype=getattr(ov.Type, _HINTS[precision]))
    if precision != "int8":
        return constant
    return op.fake_quantize(constant, *(op.constant(np.float32(e)) for e in (-1, 1, -1, 1)), 255)


def attention(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    precision: str,
    *,
    threads: int | None = None,
    times: int = 1,
) -> Callable[[], object] | None:
    """A fused attention, to be timed as `multiplier` is; shapes are (clips, heads, n, width),
    values' as keys'."""
    op = require("openvino.opset13", "the openvino runtime")
    found = []
    for _ in range(times):
        inputs = [_matrix(shape, precision)[0] for shape in (queries, keys, keys)]
        found.append((op.scaled_dot_product_attention(*inputs), inputs))
    return _timed(found, precision, threads)


def _timed(
    operations: list[tuple[Any, list[Any]]], precision: str, threads: int | None
) -> Callable[[], object] | None:
    """Equal operations with the inputs of each, on the same ones in warm memory.

    None where OpenVINO has no such precision here.
    """
    ov = require("openvino", "the openvino runtime")
    results = [result for result, _ in operations]
    inputs = [given for _, own in operations for given in own]
    try:
        request = _compile(ov.Model(results, inputs), precision, threads)
    except ValueError:
        return None
    tensors = []
    for given in operations[0][1]:
        tensor = ov.Tensor(given.get_element_type(), given.shape)
        tensor.data[:] = 1
        tensors.append(tensor)
    for number in range(len(inputs)):
        request.set_input_tensor(number, tensors[number % len(tensors)])
    out = request.get_output_tensor(0)
    for number in range(1, len(results)):
        request.set_output_tensor(number, out)

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
