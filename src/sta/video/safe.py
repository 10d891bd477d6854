"""Decoding that cannot be stopped by a bad file: another process does it, and may die."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from sta.video.errors import VideoError
from sta.video.pixels import receive_pixels
from sta.video.process import DecodingProcess, take
from sta.video.sources import LiveSource
from sta.video.views import Views, ViewSpec
from sta.video.windows import END, Cut, Event, Window, WindowSpec, assemble

#: Seconds; longer waits overflow the system's timers.
MAX_TIMEOUT = 1e6


class SafeDecoder:
    """Decodes one video at a time in a process of its own.

    Whatever happens in that process becomes a `VideoError`, and the next video gets a new process
    if need be. A crash, a kill by hand and a kill by a system out of memory look the same from
    here: they have the kind "killed", which says nothing against the file.

    A file is given up after `timeout` seconds without a decoded frame or a read packet. A
    `niceness` from 0 to 19 lets others go first: 10 where the model needs the same cores.
    """

    def __init__(self, spec: ViewSpec, timeout: float = 60.0, niceness: int = 0) -> None:
        if not 0 < timeout <= MAX_TIMEOUT:
            raise ValueError(
                f"timeout={timeout} is not possible: use a number of seconds above 0, "
                f"{MAX_TIMEOUT:.0f} at most"
            )
        self.spec = spec
        self.timeout = timeout
        self.niceness = niceness
        self.stdin: int | None = subprocess.DEVNULL  # of the process; None is this one's
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None

    def __call__(self, path: str) -> Views:
        """The views of one video, or a `VideoError` whose `kind` says why there are none."""
        connection = self.ready()
        with self.failures_named():
            connection.send((path, self.spec))
            return self._views(connection)

    @contextmanager
    def failures_named(self) -> Iterator[None]:
        """Turn the silence or death of the process into a `VideoError`."""
        try:
            yield
        except TimeoutError:
            self.close()
            raise VideoError(
                f"given up: nothing was read or decoded for {self.timeout:g} s", "timeout"
            ) from None
        except (EOFError, OSError):
            raise VideoError(
                f"the decoding process died ({self._exit_reason()})", "killed"
            ) from None

    def receive(self, connection: Connection[Any, Any]) -> Any:
        while True:
            if not connection.poll(self.timeout):
                raise TimeoutError
            answer = connection.recv()
            if answer is not None:  # None: still at work
                return answer

    def _views(self, connection: Connection[Any, Any]) -> Views:
        answer = self.receive(connection)
        if isinstance(answer, VideoError):
            raise answer
        shape, index, offsets = answer
        return Views(receive_pixels(connection, shape), index, offsets, self.spec.size)

    def ready(self) -> Connection[Any, Any]:
        if self._connection is not None and self._process is not None:
            if self._process.poll() is None:
                return self._connection
            self.close()
        found = take(self.niceness, self.stdin, self.spec.decoder)
        self._process, self._connection = found
        return found.connection

    def _exit_reason(self) -> str:
        process = self._process
        code: int | None = None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=1)
        self.close()
        if code is not None and code < 0:
            known = {number.value: number.name for number in signal.Signals}
            return known.get(-code, f"signal {-code}")
        return f"exit code {code}"

    def close(self) -> None:
        """End the process. The decoder can be used again and then starts another."""
        # Taken first: the thread that waits for this process may close it at the same moment.
        connection, process = self._connection, self._process
        self._connection = self._process = None
        if connection is not None and process is not None:
            DecodingProcess(process, connection).close()

    def __enter__(self) -> SafeDecoder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SafeWindows:
    """Decodes the windows of one video at a time in a process of its own; see `SafeDecoder`."""

    def __init__(self, spec: WindowSpec, timeout: float = 60.0, niceness: int = 0) -> None:
        self.spec = spec
        self._decoder = SafeDecoder(spec.view, timeout, niceness)

    def __call__(self, path: str | LiveSource) -> Iterator[Window]:
        """The windows of one video, or of a live source, as they are decoded.

        The process waits when they are not taken: no more than a few frames lie in between.
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
        self._decoder.close()
