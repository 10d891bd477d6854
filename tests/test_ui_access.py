"""Who can use the page of `sta ui`: raw requests, as another user of the machine can send them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from inference_runs import save_model

pytest.importorskip("gradio", reason="Gradio is not installed")

from sta.ui import guard
from ui_server import Client, Running, cookie_attributes, file_data, running
from video_files import make

ROUTES = (
    *("", "config", "theme.css", "favicon.ico", "manifest.json", "monitoring", "docs"),
    *("static/img/logo.svg", "assets/index.js", "result/unknown/page.html", "login_check"),
    *("gradio_api/info", "gradio_api/openapi.json", "gradio_api/queue/data?session_hash=a"),
    *("gradio_api/heartbeat/a", "gradio_api/upload_progress?upload_id=a", "gradio_api/app_id"),
    *("gradio_api/file=/etc/passwd", "gradio_api/proxy=https://example.com/", "gradio_api/token"),
)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with running(save_model(tmp_path_factory.mktemp("tiny"))) as found:
        yield found


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret.svg"
    file.write_text("<svg>mine alone</svg>")
    file.chmod(0o600)
    return file


def test_only_the_token_starts_a_session(app: Running):
    stranger = Client(app, session=False)
    for path in ("/", "/?token=", "/?token=x", "/?token=%ff", f"{app.base}?token=x"):
        assert stranger.ask("GET", path).status == 403, path
    address = urlsplit(app.page.address)
    assert address.hostname == "127.0.0.1"
    assert stranger.ask("POST", f"/?{address.query}").status == 403
    opened = stranger.ask("GET", f"/?{address.query}")
    assert opened.status == 200
    # Browsers send cookies to all ports of a host: the path keeps it from other servers.
    assert cookie_attributes(opened) == {"httponly", "samesite=strict", f"path={app.base}"}
    assert len(app.base) > 32
    stranger.cookie = opened.headers["set-cookie"].partition(";")[0]
    assert b"gradio" in stranger.get("").body
    # A server on another port may have set a cookie of the same name.
    stranger.cookie = f"{guard.COOKIE}=other; {stranger.cookie}"
    assert stranger.get("").status == 200
    stranger.cookie = f"{guard.COOKIE}=other"
    assert stranger.get("").status == 403


def test_nothing_is_served_without_a_session(app: Running):
    stranger = Client(app, session=False)
    for path in (*(app.base + route for route in ROUTES), "/", "/config", "/gradio_api/info"):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            assert stranger.ask(method, path).status == 403, (method, path)
    assert stranger.upload(b"x").status == 403
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    assert stranger.get("", Sec_WebSocket_Key="eHh4eHh4eHh4eHh4eHh4eA==", **upgrade).status == 403
    assert not app.held()


def test_websockets_are_refused():
    sent = []

    async def send(message):
        sent.append(message)

    blocked = guard.Guard(None, "", 1, "/base/")  # type: ignore[arg-type]
    asyncio.run(blocked({"type": "websocket", "path": "/base/"}, None, send))  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize("session", [True, False])
def test_a_request_names_no_file(app: Running, secret, session):
    attacker, owner = Client(app, session), Client(app)
    functions = owner.functions()
    assert ["file"] in functions
    assert not any("html" in kinds for kinds in functions)
    upload = Client(app).upload(b"of another session")
    named = [str(secret), "/etc/passwd", "https://example.com/", "http://127.0.0.1:1/", 1, None]
    for path in (*named, [str(secret)], json.loads(upload.body)[0]):
        for index, kinds in enumerate(functions):
            nested = [{"deep": [file_data(path)]}]
            for data in ([file_data(path)] * len(kinds), [nested] * len(kinds)):
                assert attacker.join(index, data).status == 403
    # Whichever of two equal names a parser believes.
    file = next(i for i, kinds in enumerate(functions) if kinds == ["file"])
    twice = f'{{"path": {upload.body.decode()[1:-1]}, "path": {json.dumps(str(secret))}}}'
    body = f'{{"fn_index": {file}, "session_hash": "a", "data": [{twice}]}}'
    join = f"{app.base}gradio_api/queue/join"
    assert attacker.ask("POST", join, body, Content_Type="application/json").status == 403
    for path in ("run/predict", "api/predict", "call/run", "call/v2/run", "component_server"):
        refused = attacker.ask("POST", f"{app.base}gradio_api/{path}", body)
        assert refused.status == 403
    assert [f.read_bytes() for f in app.held()] == [b"of another session"]
    guard.remove_old(app.folder, -1)
    assert not app.reached


def test_gradio_itself_refuses_files_outside_the_upload_folder(app: Running, secret):
    """The second check, which Gradio skips in apps that it did not launch itself."""
    client = Client(app)
    app.page.guard.uploads[client.cookie.partition("=")[2]].add(str(secret))
    for index, kinds in enumerate(client.functions()):
        assert client.join(index, [file_data(str(secret))] * len(kinds), f"s{index}").status == 200
        outcome = client.outcome(f"s{index}")
        assert '"success":false' in outcome
        assert str(app.folder) not in outcome
    assert not app.held()


def test_an_upload_is_read_in_its_session_and_removed(app: Running):
    client = Client(app)
    (path,) = json.loads(client.upload(b"I am no video", "notes.mp4").body)
    assert [str(file) for file in app.held()] == [path]
    file = client.functions().index(["file"])
    assert client.join(file, [file_data(path)], "u").status == 200
    outcome = client.outcome("u")
    assert '"success":true' in outcome
    assert "notes.mp4: not a video" in outcome
    assert not app.held()


def test_a_clip_that_does_not_fit_or_is_not_offered_is_refused(app: Running):
    client = Client(app)
    pick = client.functions().index(["dropdown"])
    assert client.join(pick, ["digits:0"], "d").status == 200
    assert "digit actions have 16 frames of 64 pixels" in client.outcome("d")  # not for this model
    assert client.join(pick, ["/etc/passwd"], "e").status == 200
    assert "not in the list of choices" in client.outcome("e")


@pytest.mark.parametrize("name", ["list.m3u8", "list.mp4", "list.txt"])
def test_an_uploaded_playlist_opens_nothing(app: Running, tmp_path, name):
    video = make(tmp_path / "private.mp4", 40)
    client = Client(app)
    file = client.functions().index(["file"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        for entry in (str(video), video.as_uri(), f"http://127.0.0.1:{port}/a.ts"):
            text = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{entry}\n#EXT-X-ENDLIST\n"
            (path,) = json.loads(client.upload(text.encode(), name).body)
            assert client.join(file, [file_data(path)], "p").status == 200
            outcome = client.outcome("p")
            assert "sta-error" in outcome
            assert not app.held()
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_files_and_other_addresses_are_not_served(app: Running, secret):
    client = Client(app)
    (upload,) = json.loads(client.upload(b"private until read").body)
    up = "../" * 12
    for path in (
        *(f"gradio_api/file={name}" for name in (secret, "/etc/passwd", upload)),
        *(f"gradio_api/file/{name}" for name in (secret, upload)),
        *("gradio_api/file%3D/etc/passwd", "gradio_api%2Ffile=/etc/passwd"),
        *("/gradio_api/file=/etc/passwd", "./gradio_api/file=/etc/passwd"),
        *("gradio_api/file=https://example.com/", "gradio_api/proxy=https://example.com/"),
        *("gradio_api/vibe-code/", "gradio_api/deep_link?session_hash=a", "gradio_api/runs"),
        *(f"{place}/{up}etc/passwd" for place in ("static", "assets", "svelte", "result")),
        *(f"{place}/{up.replace('/', '%2f')}etc/passwd" for place in ("static", "assets")),
        *("static/%2e%2e/%2e%2e/routes.py", f"static/{secret}", f"assets/{upload}"),
    ):
        answer = client.get(path)
        assert answer.status in (403, 404), path
        for private in (b"mine alone", b"root:", b"private until read", b"import "):
            assert private not in answer.body
    assert client.ask("GET", "/gradio_api/file=/etc/passwd").status == 404
    for path in ("gradio_api/process_recording", "gradio_api/vibe-edit", "login", ""):
        assert client.ask("POST", app.base + path, b"{}").status == 403
    guard.remove_old(app.folder, -1)
    assert not app.reached


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:7860"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "["},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
def test_requests_of_other_pages_are_refused(app: Running, headers):
    client = Client(app)
    assert client.get("", **headers).status == 403
    assert client.join(0, [None], **headers).status == 403


def test_the_page_works_by_each_local_name(app: Running):
    client = Client(app)
    for host in (f"127.0.0.1:{app.port}", f"localhost:{app.port}", "localhost:1234"):  # ssh -L
        answer = client.get("", Host=host, Origin=f"http://{host}", Sec_Fetch_Site="same-origin")
        assert answer.status == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert json.loads(client.get("config").body)["analytics_enabled"] is False
    assert client.get("result/unknown/page.html").status == 404


def test_sizes_are_limited(app: Running):
    client = Client(app)
    join, upload = (f"{app.base}gradio_api/{name}" for name in ("queue/join", "upload"))
    large = client.ask("POST", join, json.dumps({"data": ["x" * 2**20]}))
    assert large.status == 413
    assert large.body == b"a request may have at most 1048576 bytes\n"
    chunked = client.ask("POST", join, iter([b"x" * 2**19] * 5))
    assert chunked.status == 413
    assert client.ask("POST", upload, iter([b"x" * 100])).status == 411
    refused = client.upload(bytes(2 * 2**20))
    assert refused.status == 413
    assert b"an upload may have at most 1048576 (--max-megabytes)" in refused.body
    assert client.upload(bytes(2**20 + 1)).status == 413  # Gradio counts the file itself
    for body in (b"no JSON", b"[" * 100_000, b"\xff", b""):
        assert client.ask("POST", join, body).status == 400
    guard.remove_old(app.folder, -1)


def test_the_sum_of_uploads_is_limited_and_old_ones_are_removed(app: Running):
    client = Client(app)
    for i in range(guard.UPLOADS):
        assert client.upload(bytes([i]) * 2**20).status == 200
    refused = client.upload(b"x" * 2**20)
    assert refused.status == 413
    assert b"uploads together may have at most 4194304" in refused.body
    for file in app.held()[:2]:
        before = time.time() - guard.UPLOAD_SECONDS - 1
        os.utime(file, (before, before))
    assert client.upload(b"x" * 2**20).status == 200
    assert len(app.held()) == guard.UPLOADS - 1
    guard.remove_old(app.folder, -1)
    assert not app.held()


def test_a_broken_upload_leaves_nothing(app: Running):
    client = Client(app)
    with socket.create_connection(("127.0.0.1", app.port)) as connection:
        head = (
            f"POST {app.base}gradio_api/upload HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Cookie: {client.cookie}\r\nContent-Length: 1000000\r\n"
            "Content-Type: multipart/form-data; boundary=sep\r\n\r\n--sep\r\n"
            'Content-Disposition: form-data; name="files"; filename="a.mp4"\r\n\r\n'
        )
        connection.sendall(head.encode() + bytes(500_000))
        _wait(lambda: any(app.folder.iterdir()))
    _wait(lambda: not any(file.is_file() for file in app.folder.iterdir()))


def _wait(true: Callable[[], bool]) -> None:
    for _ in range(1200):
        if true():
            return
        time.sleep(0.05)
    pytest.fail("waited for a minute in vain")


ANOTHER_USER = """
import http.client, json, sys
port, base, secret, launcher = int(sys.argv[1]), *sys.argv[2:]
found = []
for file in (secret, launcher):
    try:
        open(file).close()
        found.append(200)
    except OSError:
        found.append(403)
data = [{"path": secret, "meta": {"_type": "gradio.FileData"}}] * 6
body = json.dumps({"data": data, "fn_index": 1, "session_hash": "a"})
for method, path, sent in (
    ("POST", "gradio_api/queue/join", body),
    ("GET", "gradio_api/queue/data?session_hash=a", None),
    ("GET", "config", None),
    ("GET", "gradio_api/file=" + secret, None),
):
    for start in (base, "/"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, start + path, sent, {"Content-Type": "application/json"})
        found.append(connection.getresponse().status)
print(json.dumps(found))
"""


def test_another_system_user_gets_nothing(app: Running, secret):
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    if os.name != "posix" or os.geteuid() or python is None:
        pytest.skip("needs root, to become another user, and a Python that all users can run")
    words = [str(app.port), app.base, str(secret), str(app.page.launcher)]
    done = subprocess.run(
        [python, "-I", "-c", ANOTHER_USER, *words],
        user="nobody",
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert set(json.loads(done.stdout)) == {403}
    assert not app.held()
