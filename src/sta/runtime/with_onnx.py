"""ONNX files, and ONNX Runtime to run them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from sta.runtime.extras import require
from sta.runtime.graph import FACTS, INPUT, plain_attention

OPSET = 20


def convert(program: ExportedProgram, names: list[str]) -> Any:
    """An ONNX program of the graph, whose outputs have these names."""
    require("onnxscript", "export to ONNX")
    require("onnx", "export to ONNX")
    with plain_attention():
        return torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=names,
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
        )


def _stable_sort(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """A stable sort as TopK of all elements, which breaks ties towards the lower index."""
    from onnxscript import opset20 as op

    axis = dim % len(x.shape)
    count: Any = op.Constant(value_ints=[x.shape[axis]])
    return op.TopK(x, count, axis=axis, largest=int(descending), sorted=1)


def save(onnx_program: Any, path: Path, facts: str | None = None) -> None:
    """Write the file; weights go into it unless they pass the 2 GB that the format allows."""
    if facts is not None:
        onnx_program.model.metadata_props[FACTS] = facts
    weights = sum(v.const_value.nbytes for v in onnx_program.model.graph.initializers.values())
    onnx_program.save(path, external_data=weights > 1.9e9)


def direct(onnx_program: Any, threads: int | None) -> Callable[[Tensor], list[Tensor]]:
    """`session` of a program that is not kept in a file."""
    with tempfile.TemporaryDirectory() as folder:  # also where it is too large for one message
        path = Path(folder) / "model.onnx"
        save(onnx_program, path)
        return session(path, threads)[0]


def session(
    path: Path, threads: int | None
) -> tuple[Callable[[Tensor], list[Tensor]], tuple[list[Any], list[Any]], str | None]:
    """A function from pixels to all outputs of an ONNX file, on the CPU.

    Returns:
        The function, the shapes of the inputs and outputs, and what the file says of itself.
    """
    ort = require("onnxruntime", "the onnxruntime runtime")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    made = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = made.get_inputs()[0].name

    def run(pixels: Tensor) -> list[Tensor]:
        outputs = made.run(None, {name: pixels.detach().contiguous().numpy()})
        return [torch.from_numpy(out) for out in outputs]

    shapes = ([one.shape for one in made.get_inputs()], [one.shape for one in made.get_outputs()])
    return run, shapes, made.get_modelmeta().custom_metadata_map.get(FACTS)
