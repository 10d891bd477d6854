"""Starting processes that decode. Nothing slow is imported here: one can start before all else."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Pictures come and go: keep their memory instead of asking the kernel for each anew.
    "MALLOC_MMAP_THRESHOLD_": str(2**28),
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
}

#: What processes that are started early decode with.
PYAV = "pyav"


class DecodingProcess(NamedTuple):
    """A process that runs `sta.video.worker`, and this end of the line to it."""

    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]

    def close(self) -> None:
        """End it."""
        self.connection.close()
        self.process.kill()
        # A process inside a dead network file system cannot even be killed: leave it behind.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)


#: Processes that nobody has taken yet; one at most.
_early: list[DecodingProcess] = []


def start_process(
    niceness: int, stdin: int | None = subprocess.DEVNULL, decoder: str = PYAV
) -> DecodingProcess:
    """A new process; `stdin` None is this one's."""
    ours, theirs = multiprocessing.Pipe()
    # It inherits that Ctrl-C is not for it, and so says nothing of it while it imports either.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            # -P: modules in the working folder, which may be one of strangers' files, stay out.
            [
                *(sys.executable, "-P", "-m", "sta.video.worker"),
                *(str(theirs.fileno()), str(niceness), decoder),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": _import_path()},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return DecodingProcess(process, ours)


def start_early() -> None:
    """Start the process that the first `take` gets, which imports while this one does, too."""
    if not _early:
        with suppress(OSError):  # `take` says what is wrong, if still
            _early.append(start_process(0))
            atexit.register(close_early)


def take(
    niceness: int, stdin: int | None = subprocess.DEVNULL, decoder: str = PYAV
) -> DecodingProcess:
    """The process that was started early, if it is of use, or else a new one."""
    with suppress(IndexError):
        early = _early.pop()  # of several threads, one gets it
        if (stdin, decoder) == (subprocess.DEVNULL, PYAV) and _lives(early, niceness):
            return early
        early.close()
    return start_process(niceness, stdin, decoder)


def close_early() -> None:
    """End the process that nobody took."""
    while _early:
        _early.pop().close()


def _lives(early: DecodingProcess, niceness: int) -> bool:
    with suppress(OSError, AttributeError):  # gone, or a system without priorities
        if niceness:
            os.setpriority(os.PRIO_PROCESS, early.process.pid, niceness)
    return early.process.poll() is None


def _import_path() -> str:
    """Where this process imports from, for the other one; "" would mean the working folder."""
    folders = [*filter(None, sys.path), str(Path(__file__).resolve().parents[2])]
    return os.pathsep.join(dict.fromkeys(folders))
