"""Memory that stays: without it, page faults are timed instead of the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(8 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
}


def keep_memory() -> None:
    """Start the program again with glibc told to keep freed memory, unless it already is.

    By default large tensors are fresh pages of the system each time, and given back when freed. The
    faults cost several percent, vary with the machine's load, and hit all contenders.
    """
    if sys.platform == "linux" and not all(name in os.environ for name in _SETTINGS):
        os.environ.update(_SETTINGS)
        os.execv(sys.executable, sys.orig_argv)


@contextmanager
def default_memory() -> Iterator[None]:
    """Processes started meanwhile handle memory as they do by default, so that a peak is a peak."""
    kept = {name: os.environ.pop(name) for name in _SETTINGS if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
