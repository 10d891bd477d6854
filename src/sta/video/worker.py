"""The process that decodes: reads requests from a socket, answers with pixels.

Damaged files can crash or hang FFmpeg, and a file system can hang a read. Here that costs one
process, which `sta.video.safe.SafeDecoder` replaces. It imports NumPy and PyAV but not torch, and
so starts in a quarter of a second; with torchcodec it takes some seconds.
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
from sta.video.gpu_decode import import_torchcodec
from sta.video.live import live_events
from sta.video.pixels import send_pixels
from sta.video.sources import LiveSource
from sta.video.views import Decoder, ViewSpec
from sta.video.windows import END, Cut, WindowSpec, window_events

#: Address space of the process: a header that asks for more is damaged (an 8K video needs 1 GB).
MEMORY_BYTES = 4 * 2**30
#: What torch and torchcodec take of it once they are imported: 3.6 GB, of which little is used.
TORCH_BYTES = 4 * 2**30
#: Seconds that torch may take to be imported, of which `SafeDecoder.timeout` knows nothing.
START_SECONDS = 60
#: Seconds between messages that say that decoding goes on.
HEARTBEAT_SECONDS = 0.2


def main(descriptor: int, niceness: int, decoder: Decoder) -> None:
    """Serve decoding requests on an inherited socket until the other end closes it."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends this process
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    connection: Connection[Any, Any] = Connection(descriptor)
    _limit_memory(MEMORY_BYTES if decoder == "pyav" else _start_torchcodec(connection))
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
        if error.kind == "killed":  # a GPU that gave up does so until its process has ended
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
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


def _start_torchcodec(connection: Connection[Any, Any]) -> int | None:
    """Import it, with signs of life meanwhile; gives the address space to decode in, if limited."""
    found: list[str] = []
    importing = threading.Thread(target=lambda: found.append(import_torchcodec()))
    importing.start()
    for _ in range(round(START_SECONDS / HEARTBEAT_SECONDS)):
        importing.join(HEARTBEAT_SECONDS)
        if not importing.is_alive():
            break
        connection.send(None)
    importing.join()
    # CUDA reserves more address space than there is memory.
    return None if found == ["cuda"] else MEMORY_BYTES + TORCH_BYTES


def _limit_memory(allowed: int | None) -> None:
    if allowed is None:
        return
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    except (ImportError, ValueError, OSError):
        pass  # not on this platform, or a lower limit is set already


def _exit_with_parent() -> None:
    """A process stuck in a read does not see its socket close, so look for the parent, too."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])  # type: ignore[arg-type]
