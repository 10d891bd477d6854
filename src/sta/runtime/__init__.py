"""Models on other runtimes: compiled, exported to ONNX or OpenVINO, in low precision.

    run = sta.runtime.prepare(model, clip, "openvino")
    logits = run(clip)

A graph has a static shape: the clip's, batch included.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sta.core.options import check_option
from sta.runtime.extras import RUNTIMES, available
from sta.runtime.probe import make_safe
from sta.runtime.sessions import FORMATS, Prepared, from_model, of_session, open_file, write_file

PRECISIONS = ("float32", "float16", "bfloat16", "int8")

#: What each runtime can compute in.
ALLOWED: dict[str, tuple[str, ...]] = {
    "torch": ("float32", "float16", "bfloat16"),
    "compile": ("float32", "float16", "bfloat16"),
    "onnxruntime": ("float32",),
    "openvino": ("float32", "float16", "bfloat16", "int8"),
}

#: Runtimes that also run on a GPU.
ANY_DEVICE = ("torch", "compile")

__all__ = [
    "ALLOWED",
    "ANY_DEVICE",
    "FORMATS",
    "PRECISIONS",
    "RUNTIMES",
    "Prepared",
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
) -> Prepared:
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
        A function from pixels shaped like `clip` to logits (B, classes), float32; its `kept()` is
        what `sta.kept` says of its last call.

    Raises:
        ValueError: The runtime or the precision is unknown, or they do not go together.
        ImportError: The runtime is not installed; the message has the line that installs it.
    """
    check_choice(runtime, precision, clip.device.type)
    model.eval()
    if clip.device.type == "cpu":
        make_safe(runtime, precision)
    if runtime in ("torch", "compile"):
        from sta.runtime.with_torch import run_compiled, run_eager

        make = run_eager if runtime == "torch" else run_compiled
        return make(model, clip, precision, threads)
    if precision == "int8" and not calibration:
        raise ValueError("int8 needs real clips to take its ranges from: give some as calibration")
    return of_session(from_model(model, clip, runtime, precision, calibration, threads))


def check_choice(runtime: str, precision: str, device: str = "cpu") -> None:
    """Refuse what is unknown, not installed, does not go together or not on this device."""
    check_option("runtime", runtime, RUNTIMES)
    check_option("precision", precision, PRECISIONS)
    on_cpu = device.partition(":")[0] == "cpu"
    if not on_cpu and runtime not in ANY_DEVICE:
        raise ValueError(
            f'runtime {runtime!r} runs on the CPU, not on {device}: use device="cpu", or '
            + (
                f"one of {', '.join(ANY_DEVICE)}"
                if precision in ALLOWED["torch"]
                else f"one of {', '.join(ALLOWED['torch'])} instead of {precision}"
            )
        )
    if precision not in ALLOWED[runtime]:
        able = [name for name, allowed in ALLOWED.items() if precision in allowed]
        able = [name for name in able if on_cpu or name in ANY_DEVICE]
        hint = f"for {precision} use {', '.join(able)}" if able else f"{device} has no {precision}"
        raise ValueError(
            f"runtime {runtime!r} cannot compute in {precision}, only in "
            f"{', '.join(ALLOWED[runtime])}; {hint}"
        )
    if (why := available()[runtime]) is not None:
        raise ImportError(f"runtime {runtime!r} cannot be used here: {why}")
