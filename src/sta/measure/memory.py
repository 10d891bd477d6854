"""Peak memory of a run, measured in a process of its own."""

from __future__ import annotations

import ctypes
import multiprocessing
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def peak_megabytes(setup: Callable[..., Callable[[], object]], *args: Any) -> float:
    """How much the run that `setup(*args)` returns adds to the process at its highest, in MB.

    A child process of its own starts from nothing, so earlier peaks do not hide this one. Model
    and input are made by `setup` before the count starts.

    Args:
        setup: A module-level function that prepares and returns the run.
        args: Passed on; must be picklable.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_measure, args=(send, setup, args))
    child.start()
    send.close()
    try:
        return float(receive.recv())
    except EOFError:
        raise RuntimeError(f"the measured run of {setup.__name__}{args} died") from None
    finally:
        child.join()


def _measure(send: Any, setup: Callable[..., Callable[[], object]], args: tuple[Any, ...]) -> None:
    run = setup(*args)
    _trim()
    before = _current()
    _reset_peak()
    run()
    send.send(max(0.0, _peak() - before))


def _trim() -> None:
    """Return what the set-up freed to the system, so that the run's use of it counts."""
    with suppress(OSError, AttributeError):  # glibc
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> None:
    """Let Linux reset the peak, so that the set-up's does not count."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


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
