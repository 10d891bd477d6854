"""Starting and stopping the page."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sta.ui.curve import Rows

MEGABYTE = 2**20
# Before Gradio is imported: it must not call home, look for updates, or keep a history.
_QUIET = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_RUN_HISTORY": "False",
    "GRADIO_SHARE": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


@contextmanager
def prepared(
    models: Sequence[str],
    *,
    port: int = 0,
    max_megabytes: int = 100,
    curves: Mapping[str, Rows] | None = None,
    device: str = "cpu",
    timeout: float = 60.0,
) -> Iterator[tuple[Any, str]]:
    """A server that is ready to run, and its address. Uploads live in a folder that goes with it.

    Args:
        models: What `sta.load` takes.
        port: On this machine; 0 takes a free one.
        max_megabytes: Largest upload.
        curves: Accuracy against compute, by model.
        device: Where to run.
        timeout: Seconds without a sign of life after which a video is given up.
    """
    with tempfile.TemporaryDirectory(prefix="sta-ui-") as folder, _environment(folder):
        try:
            import gradio  # noqa: F401
            import uvicorn
        except ImportError as error:
            raise ImportError(
                f'the page needs Gradio ({error}); install it with: pip install "sta-video[ui]"'
            ) from error
        from sta.ui.desk import Desk
        from sta.ui.page import build
        from sta.ui.server import HOST, free_port, make_server

        chosen = free_port(port)
        desk = Desk(models, folder, curves=curves, device=device, timeout=timeout)
        limit = max_megabytes * MEGABYTE
        app = make_server(desk, build(desk, limit), folder, limit)
        config = uvicorn.Config(
            app,
            host=HOST,
            port=chosen,
            log_level="warning",
            ws="none",
            timeout_graceful_shutdown=1,  # an open page never hangs up by itself
        )
        yield uvicorn.Server(config), f"http://{HOST}:{chosen}/"


@contextmanager
def _environment(folder: str) -> Iterator[None]:
    settings = {**_QUIET, "GRADIO_TEMP_DIR": folder}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def when_ready(server: Any, call: Callable[[], object]) -> threading.Thread:
    """Calls something once the server answers."""

    def wait() -> None:
        pause = threading.Event()
        while not server.started and not server.should_exit:
            pause.wait(0.05)
        if server.started:
            call()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread
