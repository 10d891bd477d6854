"""Models as graphs that run, and files that other programs run: ONNX, OpenVINO, PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sta.core.options import check_option
from sta.runtime.graph import FACTS, output_names, trace
from sta.runtime.probe import make_safe

#: Formats, the ending of each and the precisions that its files can have.
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "onnx": (".onnx", ("float32",)),
    "openvino": (".xml", ("float32", "float16", "int8")),
    "pt2": (".pt2", ("float32",)),
}


def check_format(file_format: str, precision: str, path: str | Path) -> None:
    """Refuse a format that is unknown, or does not go with the precision or the file's name."""
    check_option("format", file_format, tuple(FORMATS))
    ending, precisions = FORMATS[file_format]
    if precision not in precisions:
        able = ", ".join(name for name, (_, has) in FORMATS.items() if precision in has)
        raise ValueError(
            f"{file_format} files are written in {', '.join(precisions)}, not in {precision}"
            + (f"; for {precision} use {able}" if able else "; choose it when the file is run")
        )
    if Path(path).suffix != ending:
        raise ValueError(f"{path}: {file_format} files end with {ending}")


def files_of(path: Path) -> list[Path]:
    """The files of an exported model: OpenVINO's has its weights beside it."""
    return [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]


def write_file(
    model: nn.Module,
    clip: Tensor,
    path: str | Path,
    *,
    file_format: str = "onnx",
    precision: str = "float32",
    any_batch: bool = False,
    calibration: Sequence[Tensor] = (),
    facts: str | None = None,
) -> None:
    """Write a model, pruned or not, for other programs to run.

    The file takes `pixels`, shaped like `clip`, and gives `logits` and, for each step of a method,
    `kept_1`, `kept_2` ...: what `sta.kept` returns.

    Args:
        model: A classifier.
        clip: Pixels in the model's layout; the file takes no other shape.
        path: The file: ``.onnx``, ``.xml`` (its weights go beside it as ``.bin``) or ``.pt2``.
        file_format: "onnx", "openvino" or "pt2".
        precision: "float32"; for OpenVINO also "float16" (of the stored weights) and "int8".
        any_batch: Whether the file takes any number of clips, not only as many as `clip` has.
        calibration: Real clips of the same shape, which int8 takes its ranges from.
        facts: What the file is to say of itself, so that it can be used as a model: the text of
            `sta.runtime.exported.FileFacts`.

    Raises:
        FixedBatch: `any_batch`, and the model or its method does not allow it.
    """
    path = Path(path)
    check_format(file_format, precision, path)
    model.eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    program, names = trace(model, clip, any_batch=any_batch), output_names(model)
    if file_format == "pt2":
        torch.export.save(program, path, extra_files={} if facts is None else {FACTS: facts})
    elif file_format == "onnx":
        from sta.runtime import with_onnx

        with_onnx.save(with_onnx.convert(program, names), path, facts)
    else:
        from sta.runtime import with_openvino

        converted = with_openvino.convert(program, names)
        if precision == "int8":
            from sta.runtime.quantize import quantize

            converted = quantize(converted, calibration)
        if facts is not None:
            converted.set_rt_info(facts, [FACTS])
        with_openvino.save(converted, path, half=precision == "float16")


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
