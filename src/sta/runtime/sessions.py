"""Graphs that run: from a model, or from a file that `sta export` wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sta.runtime.graph import output_names, trace

#: From pixels to all outputs of a graph: logits, then what each step kept.
Session = Callable[[Tensor], list[Tensor]]


@dataclass
class Prepared:
    """A model that is ready to run: pixels to logits.

    Attributes:
        forward: From pixels to logits.
        kept: What each step kept in the last call, as `sta.kept` gives it.
    """

    forward: Callable[[Tensor], Tensor]
    kept: Callable[[], list[Tensor]]

    def __call__(self, pixels: Tensor) -> Tensor:
        return self.forward(pixels)


def of_session(session: Session) -> Prepared:
    """A graph that remembers what its steps kept."""
    last: list[Tensor] = []

    def forward(pixels: Tensor) -> Tensor:
        logits, *last[:] = session(pixels)
        return logits

    return Prepared(forward, lambda: last)


def from_model(
    model: nn.Module,
    clip: Tensor,
    runtime: str,
    precision: str,
    calibration: Sequence[Tensor],
    threads: int | None,
) -> Session:
    """The graph of a model on ONNX Runtime or OpenVINO."""
    from sta.runtime import with_onnx, with_openvino

    program, names = trace(model, clip), output_names(model)
    if runtime == "onnxruntime":
        return with_onnx.direct(with_onnx.convert(program, names), threads)
    converted = with_openvino.convert(program, names)
    if precision == "int8":
        from sta.runtime.quantize import quantize

        converted = quantize(converted, calibration)
    return with_openvino.session(converted, precision, threads)


def open_file(
    path: str | Path, *, precision: str = "float32", threads: int | None = None
) -> Session:
    """Run an exported file: ``.onnx``, ``.xml`` (OpenVINO) or ``.pt2``.

    Args:
        path: The file.
        precision: What OpenVINO computes in; an int8 file has its own.
        threads: Of the CPU; None leaves it to the runtime.

    Returns:
        A function from pixels to all outputs: logits, then what each step kept.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; sta export writes one")
    match path.suffix:
        case ".onnx":
            from sta.runtime import with_onnx

            return with_onnx.session(path, threads)
        case ".xml":
            from sta.runtime import with_openvino

            return with_openvino.session(path, precision, threads)
        case ".pt2":
            from sta.runtime.with_torch import limited

            module = torch.export.load(path).module()

            def run(pixels: Tensor) -> list[Tensor]:
                with torch.no_grad(), limited(threads):
                    return list(module(pixels))

            return run
    raise ValueError(f"{path}: an exported model ends with .onnx, .xml or .pt2")
