"""The server of the page: Gradio and the results, behind the guard, on this machine only."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Any

from sta.ui.guard import Guard
from sta.ui.session import Result, Session

HOST = "127.0.0.1"


def make_server(session: Session, page: Any, folder: str | Path, max_bytes: int) -> Guard:
    """The ASGI app: Gradio's page, the results, and the guard in front of both."""
    import gradio
    from fastapi import FastAPI, Response

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
