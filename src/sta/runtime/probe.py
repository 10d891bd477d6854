"""Low precision without being killed by it.

Some processors, virtual ones above all, announce instructions that they then do not have (AMX is
the usual one): the first product in bfloat16 or int8 ends the program with an illegal instruction.
So a small product is tried in a process of its own. Where that dies, oneDNN, which does these
products for PyTorch and OpenVINO alike, is kept from the instructions by an environment variable.
It reads the variable once, at its first product. So commands probe before they compute anything;
a program that has computed must be started again, which is left to its user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"
#: The largest set of instructions without AMX that has the precision.
LIMITS = {
    "int8": "AVX512_CORE_VNNI",
    "bfloat16": "AVX512_CORE_BF16",
    "float16": "AVX512_CORE_FP16",
}
PROBE = Path(__file__).with_name("probe_child.py")
_SECONDS = 120

_compiled_openvino = False


class RestartNeeded(RuntimeError):
    """`VARIABLE` must be set to `limit` when the program starts: now it is too late."""

    def __init__(self, runtime: str, precision: str, limit: str) -> None:
        super().__init__(
            f"{precision} on {runtime} crashes here unless {VARIABLE}={limit} is set before Python "
            f"starts; set it and run the program again"
        )
        self.limit = limit


def note_openvino() -> None:
    """OpenVINO is about to compile a model; it reads the variable at the first one only."""
    global _compiled_openvino
    _compiled_openvino = True


@cache
def failure(runtime: str, precision: str, limit: str | None) -> str | None:
    """How a small product fails in a process of its own under a limit; None if it does not."""
    environment = dict(os.environ) if limit is None else {**os.environ, VARIABLE: limit}
    # -P: the program's folder is no place to import from.
    command = [sys.executable, "-P", str(PROBE), runtime, precision]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"it hung for {_SECONDS} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"signal {-done.returncode}"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def make_safe(runtime: str, precision: str, *, report: Callable[[str], None] | None = None) -> None:
    """Make sure that a precision can be used on the CPU.

    Where the instructions must be limited for it, `report` (default: stderr) gets a line; where it
    is too late for that in this process, `RestartNeeded` is raised.
    """
    if precision == "float32":
        return
    first = failure(runtime, precision, None)
    if first is None:
        return
    limit = LIMITS[precision]
    second = failure(runtime, precision, limit)
    if second is not None:
        raise ValueError(
            f"precision {precision!r} cannot be used on {runtime} here: a trial in a process of "
            f"its own ended ({first}), and so it did with {VARIABLE}={limit} ({second}); "
            f"use float32"
        )
    if runtime != "openvino" or _compiled_openvino:
        raise RestartNeeded(runtime, precision, limit)
    os.environ[VARIABLE] = limit
    (report or partial(print, file=sys.stderr))(
        f"{precision} on {runtime} fails with this processor's newest instructions ({first}); "
        f"going on with {VARIABLE}={limit}"
    )
