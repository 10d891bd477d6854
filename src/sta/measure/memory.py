"""Peak memory of a run, measured in a process of its own; and memory that stays while timing."""

from __future__ import annotations

import ctypes
import json
import pickle
import resource
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

#: A program of its own and not `multiprocessing`: that would run the caller's script again where it
#: has no ``if __name__ == "__main__"``.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from sta.measure.memory import measure_stdin
measure_stdin()
"""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MOST = 2**31 - 1  # mallopt takes an int


def peak_megabytes(setup: Callable[..., Callable[[], object]], *args: Any) -> float:
    """How much the run that `setup(*args)` returns adds to the process at its highest, in MB.

    A child process of its own starts from nothing, so earlier peaks do not hide this one. Model and
    input are made by `setup`, a function at the top of a module, before the count starts; `args`
    must be picklable.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    home = script if setup.__module__ == "__main__" else None
    with NamedTemporaryFile() as result:
        child = subprocess.run(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
            input=pickle.dumps((home, setup.__module__, setup.__name__, args, result.name)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        measured = result.read()
    if not measured:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {child.returncode}"
        raise RuntimeError(f"measuring the memory of {setup.__name__} failed: {why}")
    return float(measured)


def measure_stdin() -> None:
    """The child: measures the run that is described on its standard input."""
    script, module, name, args, result = pickle.load(sys.stdin.buffer)
    if script is None:
        setup = getattr(import_module(module), name)
    else:
        setup = runpy.run_path(script, run_name="__measured__")[name]
    run = setup(*args)
    with suppress(OSError, AttributeError):  # what the set-up freed goes back to the system (glibc)
        ctypes.CDLL(None).malloc_trim(0)
    before = _current()
    with suppress(OSError):  # Linux resets the peak, so that the set-up's does not count
        Path("/proc/self/clear_refs").write_text("5")
    run()
    Path(result).write_text(str(max(0.0, _peak() - before)))


def _peak() -> float:
    with suppress(OSError):  # Linux; getrusage's peak there is at least the parent's
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 2**10
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**20 if sys.platform == "darwin" else used / 2**10


def _current() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * resource.getpagesize() / 2**20


def keep_memory() -> None:
    """Let glibc keep freed memory for the rest of this process; elsewhere, do nothing.

    By default large tensors are fresh pages of the system each time, and given back when freed. On
    the activations of a ViT-S MLP that was 30,000 page faults and 115 ms a round, instead of none
    and 50 ms. Child processes do not inherit it, so that their peak memory is the usual one.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MOST)
        libc.mallopt(_M_TRIM_THRESHOLD, _MOST)
