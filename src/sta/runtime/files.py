"""Files that other programs run: ONNX, OpenVINO, PyTorch's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from sta.core.options import check_option
from sta.runtime.graph import FACTS, output_names, trace

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
