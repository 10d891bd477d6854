"""The server around the page: on this machine only, with a list of what it may serve."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sta.ui.desk import Desk, Result

HOST = "127.0.0.1"
_HOSTS = {"127.0.0.1", "localhost", "::1"}

# All that the page needs of Gradio. What is not listed is not served: no proxy, no API pages, no
# editing of the app.
_WHOLE = {"/", "/config", "/theme.css", "/favicon.ico", "/manifest.json"}
_UNDER = ("/assets/", "/static/", "/svelte/")
_API = (
    *("upload", "upload_progress", "queue/join", "queue/data", "heartbeat/", "startup-events"),
    *("info", "reset", "cancel", "theme.css", "app_id", "login_check", "user", "token"),
)
_FILE, _UPLOAD = "/gradio_api/file=", "/gradio_api/upload"
_AROUND = 64 * 1024  # what a form adds to its file

# The page may ask nobody but this server; Gradio's own program is partly inline.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; frame-ancestors 'self'; "
    "form-action 'self'; base-uri 'self'; object-src 'none'"
)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


class Guard:
    """Answers 403 to everything that is not on the list, and sets what browsers may do.

    Args:
        app: The server behind it.
        folder: Where uploads are until they are read; the only folder whose files are served.
        max_bytes: Largest upload.
    """

    def __init__(self, app: App, folder: str | Path, max_bytes: int) -> None:
        self.app = app
        self.folder = Path(folder).resolve()
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        if not self.allows(scope):
            await _refuse(send, 403, "not served here")
            return
        if self._too_large(scope):
            await _refuse(send, 413, f"more than {self.max_bytes} bytes are not taken")
            return

        async def send_with_policy(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"content-security-policy", _POLICY.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                ]
            await send(message)

        await self.app(scope, receive, send_with_policy)

    def allows(self, scope: Scope) -> bool:
        """Whether a request may pass."""
        headers = dict(scope["headers"])
        # Another site can make its name mean this machine, or send its visitors' browsers here,
        # but it cannot change these headers.
        origin = headers.get(b"origin", b"http://localhost").decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        if {urlsplit(origin).hostname, urlsplit(f"//{host}").hostname} - _HOSTS:
            return False
        path = scope["path"]
        if path.startswith(_FILE):
            return self._is_upload(unquote(path.removeprefix(_FILE)))
        if path.startswith("/gradio_api/"):
            return path.removeprefix("/gradio_api/").startswith(_API)
        return path in _WHOLE or path.startswith((*_UNDER, "/result/"))

    def _too_large(self, scope: Scope) -> bool:
        """Whether an upload is too large by its own word, or gives none; before any is kept."""
        if scope["path"] != _UPLOAD:
            return False
        length = dict(scope["headers"]).get(b"content-length", b"")
        return not length.isdigit() or int(length) > self.max_bytes + _AROUND

    def _is_upload(self, name: str) -> bool:
        if "://" in name or name.startswith("//"):
            return False
        return Path(name).resolve().is_relative_to(self.folder)


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})


def make_server(desk: Desk, page: Any, folder: str | Path, max_bytes: int) -> App:
    """The ASGI app: Gradio's page, the results, and the guard before both.

    Args:
        desk: Holds the results.
        page: Gradio's blocks.
        folder: Where uploads are until they are read.
        max_bytes: Largest upload.
    """
    import gradio
    from fastapi import FastAPI, Response

    from sta.ui.page import CSS, theme

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def _answer(found: Result | None, part: str, kind: str) -> Response:
        if found is None:
            return Response("this result is no longer held; run it again\n", status_code=404)
        return Response(getattr(found, part), media_type=kind)

    @app.get("/result/{key}/page.html")
    def result_page(key: str) -> Response:
        return _answer(desk.results.get(key), "page", "text/html")

    @app.get("/result/{key}/film.mp4")
    def result_film(key: str) -> Response:
        return _answer(desk.results.get(key), "film", "video/mp4")

    app = gradio.mount_gradio_app(
        app,
        page,
        "/",
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
    return Guard(app, folder, max_bytes)


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
