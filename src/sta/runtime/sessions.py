"""Graphs that run: from a model, or from a file that `sta export` wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sta.runtime.graph import FACTS, output_names, trace
from sta.runtime.probe import make_safe

#: From pixels to all outputs of a graph: logits, then what each step kept.
Session = Callable[[Tensor], list[Tensor]]


@dataclass
class Prepared:
    """A model that is ready to run: pixels to logits."""

    forward: Callable[[Tensor], Tensor]  # from pixels to logits
    kept: Callable[[], list[Tensor]]  # what each step kept in the last call, as `sta.kept` gives it

    def __call__(self, pixels: Tensor) -> Tensor:
        return self.forward(pixels)


class Shapes(NamedTuple):
    """What goes into a graph and comes out of it."""

    pixels: tuple[int, ...]  # shape of its input; -1 where a size may be any
    classes: int  # how many logits it gives of a clip
    steps: int  # how many outputs of kept tokens it has


class OpenedFile(NamedTuple):
    """An exported file, ready to run; and what it says of itself, None of files of other origin."""

    session: Session
    shapes: Shapes
    facts: str | None


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
    return read_file(path, precision=precision, threads=threads).session


def read_file(
    path: str | Path, *, precision: str = "float32", threads: int | None = None
) -> OpenedFile:
    """`open_file`, with what the file says of itself."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; sta export writes one")
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: an exported model ends with {', '.join(_READERS)}")
    try:
        return _READERS[path.suffix](path, precision, threads)
    except (ImportError, ValueError):
        raise
    except Exception as error:  # each runtime has its own kinds
        beside = f" with {path.with_suffix('.bin').name}" if path.suffix == ".xml" else ""
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(
            f"{path}: damaged or incomplete; copy it again{beside}, or export it again ({why})"
        ) from error


def _read_onnx(path: Path, precision: str, threads: int | None) -> OpenedFile:
    from sta.runtime import with_onnx

    session, shapes, facts = with_onnx.session(path, threads)
    return OpenedFile(session, _shapes(*shapes), facts)


def _read_openvino(path: Path, precision: str, threads: int | None) -> OpenedFile:
    from sta.runtime import with_openvino

    model, facts = with_openvino.read(path)
    quantized = any(op.get_type_name() == "FakeQuantize" for op in model.get_ops())
    make_safe("openvino", "int8" if quantized else precision)
    shapes = _shapes(*with_openvino.shapes(model))
    return OpenedFile(with_openvino.session(model, precision, threads), shapes, facts)


def _read_pt2(path: Path, precision: str, threads: int | None) -> OpenedFile:
    from sta.runtime.with_torch import check_pt2, limited

    check_pt2(path)
    extra = {FACTS: ""}
    program = torch.export.load(path, extra_files=extra)
    nodes, signature = {node.name: node for node in program.graph.nodes}, program.graph_signature
    names = (signature.user_inputs, signature.user_outputs)
    shapes = _shapes(*([nodes[str(name)].meta["val"].shape for name in side] for side in names))
    module = program.module(check_guards=False)

    def run(pixels: Tensor) -> list[Tensor]:
        with torch.no_grad(), limited(threads):
            return list(module(pixels))

    return OpenedFile(run, shapes, extra[FACTS] or None)


def _shapes(inputs: Sequence[Sequence[object]], outputs: Sequence[Sequence[object]]) -> Shapes:
    """Of the shapes of all inputs and outputs; a size that may be any is no number in them."""
    pixels = tuple(size if isinstance(size, int) else -1 for size in inputs[0])
    classes = outputs[0][-1]
    return Shapes(pixels, classes if isinstance(classes, int) else -1, len(outputs) - 1)


_READERS = {".onnx": _read_onnx, ".xml": _read_openvino, ".pt2": _read_pt2}
