"""The page of `sta ui`, running, and raw requests to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sta.ui.app import PageServer, page_server

CURVE = [
    {"method": method, "r": r, "gflops": 1.0 - r / 50, "top1": 0.9 - r / 100}
    for method in ("sta", "random")
    for r in (0, 4, 8)
]


@dataclass(frozen=True)
class Running:
    """A running page.

    Attributes:
        page: The server.
        folder: Where uploads are until they are read.
        reached: Addresses outside this machine that the process tried to connect to.
        answers: Method, path, Sec-Fetch-Site and status of every request that came.
    """

    page: PageServer
    folder: Path
    reached: list[object] = field(default_factory=list)
    answers: list[tuple[str, str, str, int]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return urlsplit(self.page.address).port

    @property
    def base(self) -> str:
        """The path of the page."""
        return self.page.guard.base

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def held(self) -> list[Path]:
        """Files in the upload folder; Gradio leaves empty ones, too."""
        return [f for f in self.folder.rglob("*") if f.is_file() and f.stat().st_size]


@contextmanager
def running(model: str) -> Iterator[Running]:
    """Run the page for a model, with uploads of one megabyte at most."""
    reached: list[object] = []
    connect = socket.socket.connect

    def watched(self, address):
        local = ("127.0.0.1", "::1")
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in local:
            reached.append(address)
        return connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", watched)
        with page_server([model], max_megabytes=1, curves={model: CURVE}) as page:
            found = Running(page, Path(os.environ["GRADIO_TEMP_DIR"]), reached)
            page.server.config.app = _logged(page.guard, found.answers)
            thread = threading.Thread(target=page.server.run, daemon=True)
            thread.start()
            while not page.server.started:
                assert thread.is_alive()
                time.sleep(0.05)
            yield found
            page.server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
        assert not page.launcher.exists()
        assert not found.folder.exists()


def _logged(app, answers):
    async def logged(scope, receive, send):
        async def noting(message):
            if message["type"] == "http.response.start":
                site = dict(scope["headers"]).get(b"sec-fetch-site", b"").decode()
                answers.append((scope["method"], scope["path"], site, message["status"]))
            await send(message)

        await app(scope, receive, noting)

    return logged


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """Raw requests, with a session or without.

    Args:
        app: The running page.
        session: Whether to open the address with the token first.
    """

    def __init__(self, app: Running, session: bool = True) -> None:
        self.app = app
        self.cookie = ""
        if session:
            address = urlsplit(app.page.address)
            opened = self.ask("GET", f"{address.path}?{address.query}")
            assert opened.status == 200
            self.cookie = opened.headers["set-cookie"].partition(";")[0]

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send one request; the path goes out as it is."""
        sent = {"Cookie": self.cookie} if self.cookie else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.app.port, timeout=120)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Ask for something below the page's path."""
        return self.ask("GET", self.app.base + path, **headers)

    def join(self, function: int, data: list[object], name: str = "a", **headers: str) -> Answer:
        """Ask Gradio to call a function of the page."""
        body = {"data": data, "fn_index": function, "session_hash": name, "trigger_id": None}
        headers = {"Content_Type": "application/json", **headers}
        return self.ask(
            "POST", f"{self.app.base}gradio_api/queue/join", json.dumps(body), **headers
        )

    def outcome(self, name: str = "a") -> str:
        """What became of the calls, as Gradio's stream of events."""
        return self.get(f"gradio_api/queue/data?session_hash={name}").body.decode()

    def upload(self, content: bytes, name: str = "clip.mp4") -> Answer:
        """Upload a file as a form does."""
        head = f'--sep\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        body = head.encode() + content + b"\r\n--sep--\r\n"
        return self.ask(
            "POST",
            f"{self.app.base}gradio_api/upload",
            body,
            Content_Type="multipart/form-data; boundary=sep",
        )

    def functions(self) -> list[list[str]]:
        """The kinds of inputs of each function that the page has."""
        config = json.loads(self.get("config").body)
        kinds = {part["id"]: part["type"] for part in config["components"]}
        return [[kinds[i] for i in found["inputs"]] for found in config["dependencies"]]


def file_data(path: object) -> dict[str, object]:
    """A file in a request, as Gradio has it."""
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def cookie_attributes(answer: Answer) -> set[str]:
    """The attributes of the cookie that an answer sets."""
    return {part.strip().lower() for part in re.split(";", answer.headers["set-cookie"])[1:]}
