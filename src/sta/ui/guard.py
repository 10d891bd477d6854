"""Access control for the page: one ASGI middleware in front of everything that is served.

Other users of the machine, and pages on other local ports, can reach the port too. So a request
passes only with a session cookie, and only the address with the token gives one. The cookie is
limited to a random path, because browsers send cookies to every port of a host: without it, a
server on another port would receive the cookie.
"""

from __future__ import annotations

import html
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "sta-ui"
HOSTS = {"127.0.0.1", "localhost", "[::1]"}
JSON_BYTES = 2**20  # largest request that is not an upload
FORM_BYTES = 64 * 1024  # what a form adds to its file
UPLOADS = 4  # as many uploads of the largest size are held at a time
UPLOAD_SECONDS = 600  # after which an upload that nobody read is removed

# Gradio's API offers far more than the page uses: files by name, a proxy, FFmpeg on recordings,
# editing of the app. These are the calls that the page makes; the browser test compares the list
# with what the browser asks for.
READS = ("queue/data", "heartbeat", "upload_progress")
WRITES = ("queue/join", "upload")

# The page may connect to this server only. Gradio's own program is partly inline.
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' "
        "'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' data: blob:; "
        "font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
        "frame-ancestors 'self'; form-action 'self'; base-uri 'self'; object-src 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """Passes on the requests of those who opened the page with its token; refuses all others.

    All routes of the server behind it are under `base`, e.g. "/4f0c.../". Uploads lie in `folder`
    until they are read. The address must carry `token` to start a session; `uploads` are the files
    of each.
    """

    def __init__(self, app: ASGIApp, folder: str | Path, max_bytes: int, base: str) -> None:
        self.app = app
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.base = base
        self.token = secrets.token_urlsafe(32)
        self.uploads: dict[str, set[str]] = {}
        self._arriving = 0  # bytes of the uploads that are on their way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI asks for it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            body = _Body(receive)
            try:
                await self._answer(scope, body, _with_headers(send))
            except ClientDisconnect:
                return
            except HTTPException as refused:
                await body.discard(2 * self.max_bytes)
                response = PlainTextResponse(
                    f"{refused.detail}\n", refused.status_code, headers={"connection": "close"}
                )
                await response(scope, receive, _with_headers(send))
        else:  # the page uses no websockets
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        _check_origin(request)
        path = scope["path"]
        if path == "/" and request.method == "GET" and "token" in request.query_params:
            await self._start_session(request)(scope, receive, send)
            return
        session = self._session(request)
        if not path.startswith(self.base):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"{path}: nothing here")
        call = self._gradio_call(request)
        if call == "upload":
            await self._upload(request, session, send)
        elif request.method == "POST":
            body = await self._checked_body(request, session)
            headers = MutableHeaders(scope=scope)
            del headers["transfer-encoding"]
            headers["content-type"], headers["content-length"] = "application/json", str(len(body))
            await self.app(scope, _replay(body, receive), send)
        else:
            await self.app(scope, receive, send)

    def _start_session(self, request: Request) -> Response:
        if not secrets.compare_digest(request.query_params["token"].encode(), self.token.encode()):
            raise HTTPException(HTTPStatus.FORBIDDEN, "wrong token: use the address from sta ui")
        session = secrets.token_urlsafe(32)
        self.uploads[session] = set()
        # Not a redirect: after a click on another site the browser would count it as that site's
        # request, and leave out the cookie.
        response = HTMLResponse(redirect_page(self.base))
        response.set_cookie(COOKIE, session, path=self.base, httponly=True, samesite="strict")
        return response

    def _session(self, request: Request) -> str:
        # Other ports of the host can set cookies of the same name: any of them may be ours.
        for cookie in request.headers.get("cookie", "").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == COOKIE and value in self.uploads:
                return value
        raise HTTPException(
            HTTPStatus.FORBIDDEN, "no session: open the address that sta ui printed, with its token"
        )

    def _gradio_call(self, request: Request) -> str:
        """Which call of Gradio's API a request is; empty if it is none."""
        path = request.scope["path"]
        allowed: tuple[str, ...] = {"GET": READS, "POST": WRITES}.get(request.method, ())
        call = path.partition(f"{self.base}gradio_api/")[2]
        restricted = "gradio_api" in path or request.method not in ("GET", "HEAD")
        if restricted and not any(f"{call}/".startswith(f"{name}/") for name in allowed):
            raise HTTPException(HTTPStatus.FORBIDDEN, f"{request.method} {path}: not served")
        return call.rstrip("/")

    async def _checked_body(self, request: Request, session: str) -> bytes:
        """The body as JSON that names no file but uploads of the session.

        It is written anew, so that what was checked is what Gradio reads.
        """
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > JSON_BYTES:
                raise _too_large(f"a request may have at most {JSON_BYTES} bytes")
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise HTTPException(HTTPStatus.BAD_REQUEST, "the body must be JSON") from None
        for entry in _objects(content):
            # Gradio copies the file or address of any such object, for every kind of input.
            if "path" in entry and str(entry["path"]) not in self.uploads[session]:
                raise HTTPException(
                    HTTPStatus.FORBIDDEN, f"{entry['path']!r}: not an upload of this session"
                )
        return json.dumps(content).encode()

    async def _upload(self, request: Request, session: str, send: Send) -> None:
        length = request.headers.get("content-length", "")
        if not length.isdecimal() or "transfer-encoding" in request.headers:
            raise HTTPException(HTTPStatus.LENGTH_REQUIRED, "an upload must have a Content-Length")
        size, most = int(length), self.max_bytes
        if size > most + FORM_BYTES:
            raise _too_large(f"{size} bytes: an upload may have at most {most} (--max-megabytes)")
        remove_old(self.folder, UPLOAD_SECONDS)
        held = self._arriving + sum(bytes_ for _, bytes_, _ in _files(self.folder))
        if held + size > UPLOADS * most + FORM_BYTES:
            raise _too_large(
                f"{size} bytes: uploads together may have at most {UPLOADS * most}, and {held} are "
                "held; wait until they are read"
            )
        self._arriving += size
        del MutableHeaders(scope=request.scope)["accept-encoding"]  # the answer is read here, too
        try:
            await self.app(request.scope, request.receive, self._recording(session, send))
        finally:
            self._arriving -= size
            if not self._arriving:  # complete uploads are in folders; these were broken off
                remove_old(self.folder, 0, "*")

    def _recording(self, session: str, send: Send) -> Send:
        """Notes the files that Gradio names in its answer to an upload."""
        body = bytearray()

        async def record(message: Message) -> None:
            if message["type"] == "http.response.body":
                body.extend(message.get("body", b""))
                if not message.get("more_body"):
                    with suppress(ValueError):  # an error as text
                        answer = json.loads(body)
                        if isinstance(answer, list):
                            self.uploads[session].update(map(str, answer))
            await send(message)

        return record


def redirect_page(address: str) -> str:
    """A page that leads to an address at once."""
    to = html.escape(address)
    return (
        '<!doctype html><meta charset="utf-8"><title>sta</title><link rel="icon" href="data:,">'
        f'<meta http-equiv="refresh" content="0; url={to}"><a href="{to}">Open the page</a>\n'
    )


def remove_old(folder: Path, seconds: float, pattern: str = "**/*") -> None:
    """Remove the files of a folder that have not changed for this many seconds."""
    for file, _, changed in _files(folder, pattern):
        if time.time() - changed >= seconds:
            file.unlink(missing_ok=True)
            if file.parent != folder:
                with suppress(OSError):  # other files are in it
                    file.parent.rmdir()


def _files(folder: Path, pattern: str = "**/*") -> Iterator[tuple[Path, int, float]]:
    for path in list(folder.glob(pattern)):
        with suppress(FileNotFoundError):  # removed meanwhile
            found = path.stat()
            if path.is_file():
                yield path, found.st_size, found.st_mtime


class _Body:
    """Receives a request, and knows when its body has ended."""

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.ended = False

    async def __call__(self) -> Message:
        message = await self.receive()
        self.ended = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def discard(self, most: int) -> None:
        """Read on for a while: many clients read the answer only after they sent everything."""
        seen = 0
        while not self.ended and seen <= most:
            seen += len((await self()).get("body", b""))


def _check_origin(request: Request) -> None:
    """Refuse what another site or port sent.

    Other sites can give their name this machine's address, or make their visitors' browsers send
    requests here, but they cannot change these headers.
    """
    host = request.headers.get("host", "")
    if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
        raise HTTPException(HTTPStatus.FORBIDDEN, f"host {host!r}: use 127.0.0.1 or localhost")
    origin = request.headers.get("origin", f"http://{host}")
    if origin != f"http://{host}":
        raise HTTPException(HTTPStatus.FORBIDDEN, f"origin {origin!r}: not this page")
    # Pictures and scripts are asked for without an origin.
    site = request.headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin") and request.scope["path"] != "/":
        raise HTTPException(HTTPStatus.FORBIDDEN, "a request of another page")


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_HEADERS)
        await send(message)

    return send_with_headers


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read already, then whatever follows."""
    messages: Iterator[Message] = iter([{"type": "http.request", "body": body}])

    async def replay() -> Message:
        return next(messages, None) or await receive()

    return replay


def _objects(content: Any) -> Iterator[dict[str, Any]]:
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _too_large(text: str) -> HTTPException:
    return HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
