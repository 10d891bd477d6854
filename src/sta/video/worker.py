"""The process that decodes: reads requests from a socket, answers with pixels.

Damaged files can crash or hang FFmpeg, and a file system can hang a read. Here that costs one
process, which `sta.video.safe.SafeDecoder` replaces. It imports NumPy and PyAV but not torch, and
so starts in a quarter of a second.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from sta.video.decode import read_views
from sta.video.errors import VideoError
from sta.video.live import live_events
from sta.video.pixels import send_pixels
from sta.video.sources import LiveSource
from sta.video.views import ViewSpec
from sta.video.windows import END, Cut, WindowSpec, window_events

#: Address space of the process: a header that asks for more is damaged (an 8K video needs 1 GB).
MEMORY_BYTES = 4 * 2**30
#: Seconds between messages that say that decoding goes on.
HEARTBEAT_SECONDS = 0.2


def main(descriptor: int, niceness: int) -> None:
    """Serve decoding requests on an inherited socket until the other end closes it."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends this process
    _limit_memory()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    connection: Connection[Any, Any] = Connection(descriptor)
    while True:
        try:
            path, spec = connection.recv()
        except EOFError:
            return
        _answer(connection, path, spec)


def _answer(connection: Connection[Any, Any], path: str, spec: ViewSpec | WindowSpec) -> None:
    last = time.monotonic()

    def heartbeat() -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > HEARTBEAT_SECONDS:
            last = now
            connection.send(None)

    try:
        if isinstance(spec, WindowSpec):
            _send_windows(connection, path, spec, heartbeat)
            return
        views = read_views(path, spec, heartbeat)
    except VideoError as error:
        connection.send(error)
        return
    connection.send((views.frames.shape, views.index, views.offsets))
    send_pixels(connection, views.frames)


def _send_windows(
    connection: Connection[Any, Any],
    path: str | LiveSource,
    spec: WindowSpec,
    heartbeat: Callable[[], None],
) -> None:
    """Frames and windows as they come; sending waits for whoever reads, so nothing piles up."""
    live = isinstance(path, LiveSource)
    events = live_events(path, spec, heartbeat) if live else window_events(path, spec, heartbeat)  # type: ignore[arg-type]
    for event in events:
        if isinstance(event, Cut):
            connection.send(event)
            continue
        number, picture = event
        connection.send((number, picture.shape))
        send_pixels(connection, picture)
    connection.send(END)


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    except (ImportError, ValueError, OSError):
        pass  # not on this platform, or a lower limit is set already


def _exit_with_parent() -> None:
    """A process stuck in a read does not see its socket close, so look for the parent, too."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
