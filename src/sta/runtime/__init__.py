"""Models on other runtimes: compiled, exported to ONNX or OpenVINO, in low precision.

    run = sta.runtime.prepare(model, clip, "openvino")
    logits = run(clip)

A graph has a static shape: the clip's, batch included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from sta.core.options import check_option
from sta.runtime.extras import RUNTIMES, available
from sta.runtime.files import FORMATS, write_file
from sta.runtime.probe import make_safe
from sta.runtime.sessions import from_model, open_file

PRECISIONS = ("float32", "float16", "bfloat16", "int8")

#: What each runtime can compute in.
ALLOWED: dict[str, tuple[str, ...]] = {
    "torch": ("float32", "float16", "bfloat16"),
    "compile": ("float32", "float16", "bfloat16"),
    "onnxruntime": ("float32",),
    "openvino": ("float32", "float16", "bfloat16", "int8"),
}

__all__ = [
    "ALLOWED",
    "FORMATS",
    "PRECISIONS",
    "RUNTIMES",
    "available",
    "check_choice",
    "open_file",
    "prepare",
    "write_file",
]


def prepare(
    model: nn.Module,
    clip: Tensor,
    runtime: str = "torch",
    *,
    precision: str = "float32",
    calibration: Sequence[Tensor] = (),
    threads: int | None = None,
) -> Callable[[Tensor], Tensor]:
    """Get a model ready on a runtime, once, to be run often.

    Args:
        model: A classifier, pruned or not. "torch" runs it as it is when called; the others keep
            what is applied to it now.
        clip: Pixels in the model's layout; others must have the same shape, batch included.
        runtime: One of `RUNTIMES`.
        precision: One of `PRECISIONS`; int8 is OpenVINO's alone.
        calibration: Real clips of the same shape, which int8 takes its ranges from.
        threads: Of the CPU; None leaves it to the runtime.

    Returns:
        A function from pixels shaped like `clip` to logits (B, classes), float32.

    Raises:
        ValueError: The runtime or the precision is unknown, or they do not go together.
        ImportError: The runtime is not installed; the message has the line that installs it.
    """
    check_choice(runtime, precision)
    model.eval()
    if runtime in ("torch", "compile"):
        from sta.runtime.with_torch import run_compiled, run_eager

        if clip.device.type == "cpu":
            make_safe(runtime, precision)
        make = run_eager if runtime == "torch" else run_compiled
        return make(model, clip, precision, threads)
    if clip.device.type != "cpu":
        raise ValueError(
            f"runtime {runtime!r} runs on the CPU here, but the clip is on {clip.device}; "
            f"use 'torch' or 'compile' there"
        )
    if precision == "int8" and not calibration:
        raise ValueError("int8 needs real clips to take its ranges from: give some as calibration")
    make_safe(runtime, precision)
    session = from_model(model, clip, runtime, precision, calibration, threads)
    return lambda pixels: session(pixels)[0]


def check_choice(runtime: str, precision: str) -> None:
    """Refuse what is unknown, not installed, or does not go together."""
    check_option("runtime", runtime, RUNTIMES)
    check_option("precision", precision, PRECISIONS)
    if precision not in ALLOWED[runtime]:
        able = ", ".join(name for name, allowed in ALLOWED.items() if precision in allowed)
        raise ValueError(
            f"runtime {runtime!r} cannot compute in {precision}, only in "
            f"{', '.join(ALLOWED[runtime])}; for {precision} use {able}"
        )
    if (why := available()[runtime]) is not None:
        raise ImportError(f"runtime {runtime!r} cannot be used here: {why}")
