"""Windows from a process that may die; see `sta.video.safe`."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from sta.video.errors import VideoError
from sta.video.live import LiveSource
from sta.video.pixels import receive_pixels
from sta.video.safe import SafeDecoder
from sta.video.windows import END, Cut, Event, Window, WindowSpec, assemble


class SafeWindows:
    """Decodes the windows of one video at a time in a process of its own.

    Args:
        spec: The windows.
        timeout: Seconds without a decoded frame or a read packet after which a file is given up.
        niceness: See `SafeDecoder`.
    """

    def __init__(self, spec: WindowSpec, timeout: float = 60.0, niceness: int = 0) -> None:
        self.spec = spec
        self._decoder = SafeDecoder(spec.view, timeout, niceness)

    def __call__(self, path: str | LiveSource) -> Iterator[Window]:
        """The windows of one video, or of a live source, as they are decoded.

        The process waits when they are not taken: no more than a few frames lie in between.

        Raises:
            VideoError: The video cannot be read, or not to its end; its `kind` says why.
        """
        if isinstance(path, LiveSource) and path.kind == "pipe":
            self._decoder.stdin = None
        return assemble(self._events(path))

    def _events(self, path: str | LiveSource) -> Iterator[Event]:
        connection = self._decoder.ready()
        whole = False
        try:
            with self._decoder.failures_named():
                connection.send((path, self.spec))
                while (answer := self._receive(connection)) != END:
                    if isinstance(answer, VideoError):
                        whole = True  # the process has said all, and can take the next video
                        raise answer
                    yield answer
            whole = True
        finally:
            if not whole:
                self.close()  # it would go on with this video

    def _receive(self, connection: Connection[Any, Any]) -> Any:
        answer = self._decoder.receive(connection)
        if isinstance(answer, Cut) or not isinstance(answer, tuple):
            return answer
        number, shape = answer
        return number, receive_pixels(connection, shape)

    def close(self) -> None:
        """End the process. The decoder can be used again and then starts another."""
        self._decoder.close()
