"""The server of the page: Gradio and the results, behind the guard, on this machine only."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sta.runtime.extras import require
from sta.ui.curve import Rows

if TYPE_CHECKING:
    from sta.ui.guard import Guard
    from sta.ui.session import Result, Session

HOST = "127.0.0.1"
MEGABYTE = 2**20
# Before Gradio is imported: it must not call home, look for updates, or keep a history.
_QUIET = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_RUN_HISTORY": "False",
    "GRADIO_SHARE": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


@dataclass(frozen=True)
class PageServer:
    """A server that is ready to run."""

    server: Any  # uvicorn's
    address: str  # of the page, with its token
    # A file for the browser that leads to the address. Other users can see the arguments of a
    # browser's process, but they cannot read this file.
    launcher: Path
    guard: Guard  # decides who may use the page


@contextmanager
def page_server(
    models: Sequence[str],
    *,
    port: int = 0,
    max_megabytes: int = 100,
    curves: Mapping[str, Rows] | None = None,
    device: str = "cpu",
    precision: str = "float32",
    timeout: float = 60.0,
) -> Iterator[PageServer]:
    """A server that is ready to run. Its files are in a folder that is removed with it."""
    with ExitStack() as stack:
        private = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sta-ui-")))
        folder = private / "uploads"
        folder.mkdir()
        stack.enter_context(_environment(str(folder)))
        require("gradio", "the page", "ui")
        import uvicorn

        from sta.ui.guard import redirect_page
        from sta.ui.page import build
        from sta.ui.session import Session

        chosen = free_port(port)
        session = Session(
            models, folder, curves=curves, device=device, precision=precision, timeout=timeout
        )
        limit = max_megabytes * MEGABYTE
        guard = make_server(session, build(session, limit), folder, limit)
        address = f"http://{HOST}:{chosen}/?token={guard.token}"
        launcher = private / "open.html"
        launcher.write_text(redirect_page(address), encoding="utf-8")
        config = uvicorn.Config(
            guard,
            host=HOST,
            port=chosen,
            log_level="warning",
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=1,  # an open page keeps its connection
        )
        yield PageServer(uvicorn.Server(config), address, launcher, guard)


def make_server(session: Session, page: Any, folder: str | Path, max_bytes: int) -> Guard:
    """The ASGI app: Gradio's page, the results, and the guard in front of both."""
    import gradio
    from fastapi import FastAPI, Response

    from sta.ui.guard import Guard
    from sta.ui.page import CSS, theme

    base = f"/{secrets.token_hex(16)}"
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def answer(found: Result | None, part: str, kind: str) -> Response:
        if found is None:
            return Response("this result is no longer held; run it again\n", status_code=404)
        return Response(getattr(found, part), media_type=kind)

    @app.get(f"{base}/result/{{key}}/page.html")
    def result_page(key: str) -> Response:
        return answer(session.results.get(key), "page", "text/html")

    @app.get(f"{base}/result/{{key}}/film.mp4")
    def result_film(key: str) -> Response:
        return answer(session.results.get(key), "film", "video/mp4")

    app = gradio.mount_gradio_app(
        app,
        page,
        base,
        server_name=HOST,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        max_file_size=max_bytes,
        show_error=False,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=theme(),
        css=CSS,
    )
    # Gradio checks that a file in a request is in its upload folder, but only if the app was
    # launched, which a mounted app never is. The guard is stricter; this is the second check.
    page.has_launched = True
    return Guard(app, folder, max_bytes, f"{base}/")


def free_port(wanted: int) -> int:
    """The wanted port if it is free; 0 means any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise OSError(
                f"--port {wanted}: cannot be used ({error.strerror}); choose another, or 0 for any"
            ) from None
        return int(probe.getsockname()[1])


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
    """Call a function once the server answers."""

    def wait() -> None:
        pause = threading.Event()
        while not server.started and not server.should_exit:
            pause.wait(0.05)
        if server.started:
            call()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread
