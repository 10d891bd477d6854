"""The page of `sta show --html` and the app of `sta ui`, driven in headless Chromium."""

from __future__ import annotations

import http.server
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import numpy as np
import pytest

import sta
from backbones import BACKBONES
from inference_runs import command, environment, save_model
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import VideoModel
from sta.explain import inspect_clip, page
from sta.ui.app import page_server
from sta.ui.curve import read_curve
from sta.video.views import ViewSpec
from ui_server import running
from video_files import make

playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here; scripts/install-browser installs it"
)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SAMPLE = Path(__file__).parents[2] / "shared" / "videos" / "samples" / "basketball.mp4"
PATIENCE = 120_000  # milliseconds; the machine may be busy


@pytest.fixture(scope="module")
def playwright():
    with playwright_api.sync_playwright() as driver:
        yield driver


@pytest.fixture
def browser(playwright, tmp_path):
    """A fresh browser, and the addresses that its pages asked for."""
    context = playwright.chromium.launch_persistent_context(
        tmp_path / "profile",
        executable_path=BROWSER,
        headless=True,
        args=list(FLAGS),
        viewport={"width": 1280, "height": 1000},
    )
    context.set_default_timeout(PATIENCE)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    yield context, asked
    context.close()


# The page of `sta show --html`


def _inspect(name: str, size: int, configs: list[sta.Config]):
    backbone = next(b for b in BACKBONES if b.name == name)
    model = backbone.make()
    layout = "TCHW" if hasattr(model, "config") else "CTHW"
    opened = VideoModel(
        model, ClipSpec(ViewSpec(frames=8, size=size), layout), tuple(map(str, range(400))), "vit"
    )
    clip = np.random.default_rng(0).integers(0, 200, (8, size, size, 3), dtype=np.uint8)
    shown = clip.repeat(4, axis=1).repeat(4, axis=2)
    return inspect_clip(opened, clip, configs, clip_name="noise </script>", frames=shown, rounds=1)


def _set(tab, slider: str, value: int) -> None:
    tab.locator(slider).evaluate(
        "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def _white(tab, card: int, step) -> list[list[bool]]:
    """Which patches of the large picture are white in their middle."""
    return tab.evaluate(
        """([card, rows, columns]) => {
          const canvas = document.querySelectorAll("article .picture canvas")[card];
          const context = canvas.getContext("2d");
          const at = (i, j) => context.getImageData(
            Math.floor((j + 0.5) * canvas.width / columns),
            Math.floor((i + 0.5) * canvas.height / rows), 1, 1).data;
          return [...Array(rows).keys()].map((i) => [...Array(columns).keys()].map(
            (j) => at(i, j).every((value) => value === 255)));
        }""",
        [card, *step.kept.shape[1:]],
    )


@pytest.mark.parametrize(("name", "size"), [("videomae", 32), ("swin", 64)])
def test_page_works_offline_and_its_sliders_change_the_picture(browser, tmp_path, name, size):
    context, asked = browser
    methods = [sta.STAConfig(r=6), sta.RandomConfig(r=6)]
    inspection = _inspect(name, size, methods)
    file = page.save(inspection, tmp_path / "page.html")
    context.set_offline(True)
    tab = context.new_page()
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(file.as_uri())
    tab.wait_for_selector("body[data-ready]")
    assert "noise </script>" in tab.title()
    # Every time and step shows exactly its own kept patches, for each method.
    pictures = set()
    for time_at in (0, 3, 7):
        _set(tab, "#time", time_at)
        assert tab.inner_text("#time-text") == f"frame {time_at + 1} of 8"
        for position in range(1, 4):
            _set(tab, "#step", position)
            for card, method in enumerate(inspection.methods, 1):
                step = method.steps[position - 1]
                expected = ~step.kept[time_at // step.patch[0]]
                assert _white(tab, card, step) == expected.tolist()
            canvas = tab.locator("article:nth-child(2) .picture canvas")
            pictures.add(canvas.evaluate("e => e.toDataURL()"))
        _set(tab, "#step", 0)
        assert not np.any(_white(tab, 1, inspection.methods[0].steps[0]))
    assert len(pictures) == 9
    # The keyboard moves the slider, too.
    tab.focus("#time")
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#time-text") == "frame 2 of 8"
    _heat_maps_and_numbers(tab, inspection)
    assert not errors
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


def _heat_maps_and_numbers(tab, inspection) -> None:
    """Pointing at a small map lays it over the picture, at a patch tells its numbers."""
    _set(tab, "#step", 1)
    canvas = tab.locator("article:nth-child(2) .picture canvas")
    plain = canvas.evaluate("e => e.toDataURL()")
    maps = tab.locator("article:nth-child(2) .maps button")
    assert maps.all_inner_texts() == ["Kept", "F", "A", "Score"]
    laid = set()
    for i in range(4):
        maps.nth(i).hover()
        laid.add(canvas.evaluate("e => e.toDataURL()"))
    tab.mouse.move(0, 0)
    assert canvas.evaluate("e => e.toDataURL()") == plain
    assert len(laid | {plain}) == 5
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] / 2 + 3, "y": box["height"] / 2 + 3})
    tip = tab.locator("article:nth-child(2) .tip")
    step = inspection.methods[0].steps[0]
    row, column = step.kept.shape[1] // 2, step.kept.shape[2] // 2
    at = (int(tab.locator("#time").input_value()) // step.patch[0], row, column)
    lines = tip.inner_text().splitlines()
    assert lines[0] == ("kept" if step.kept[at] else "dropped here")
    for line, name in zip(lines[1:], ("semantic", "accumulation", "score"), strict=True):
        assert float(line.split()[-1]) == pytest.approx(step.scores[name][at], rel=2e-2, abs=1e-4)
    explained = tab.inner_text("#semantic")
    assert "mean token of its frame" in explained  # the default; not the norm
    assert "L1 norm" not in explained
    assert tab.locator("article").count() == 3
    assert tab.locator("article:nth-child(2) .bars i").count() == 5


# The app of `sta ui`


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    pytest.importorskip("gradio", reason="Gradio is not installed")
    with running(save_model(tmp_path_factory.mktemp("tiny"))) as found:
        yield found


def test_from_upload_to_result(browser, app, tmp_path):
    from sta.ui import guard

    context, asked = browser
    refused: list[str] = []
    context.on("response", lambda r: refused.append(r.url) if r.status >= 400 else None)
    tab = context.new_page()
    tab.goto(app.page.launcher.as_uri())
    tab.wait_for_url(app.origin + app.base)
    upload = "#upload input[type=file]"
    tab.wait_for_selector(upload, state="attached")

    # A real clip.
    video = SAMPLE if SAMPLE.is_file() else make(tmp_path / "bars.mp4", 40)
    tab.set_input_files(upload, video)
    first = tab.wait_for_selector("#result [data-result]").get_attribute("data-result")
    assert video.name in tab.inner_text("#status")
    assert "the model says" in tab.inner_text("#result")
    assert "as fast" in tab.inner_text("#result")
    inside = tab.frame_locator("iframe.sta-page")
    inside.locator("body[data-ready]").wait_for()
    assert inside.locator("article").count() == 2
    assert tab.locator("img.sta-curve").count() == 1
    film = tab.locator("video.sta-film")
    film.evaluate(
        "e => e.readyState >= 2 || new Promise(done => e.addEventListener('loadeddata', done))"
    )
    assert film.evaluate("e => e.videoWidth") > 100
    assert not app.held()

    # Another r and another method, without uploading again.
    tab.locator("#compare label", has_text="Random").locator("input").check()
    tab.wait_for_selector(f"#result [data-result]:not([data-result='{first}'])")
    tab.frame_locator("iframe.sta-page").locator("article >> nth=2").wait_for()
    titles = tab.frame_locator("iframe.sta-page").locator("h2").all_inner_texts()
    assert titles == ["Unpruned", "STA, r = 5", "Random, r = 5"]
    slider = tab.locator("#r input[type=range]")
    slider.focus()
    slider.press("ArrowLeft")
    tab.locator("#run").click()
    tab.frame_locator("iframe.sta-page").locator("h2:text-is('STA, r = 4')").wait_for()

    # A file that is not a video.
    notes = tmp_path / "notes.mp4"
    notes.write_text("I am no video.")
    tab.set_input_files(upload, notes)
    alert = tab.wait_for_selector("#status [role=alert]").inner_text()
    assert "notes.mp4: not a video" in alert
    assert tab.locator("#result [data-result]").count() == 0
    assert not app.held()

    # One that is too large.
    large = tmp_path / "large.mp4"
    large.write_bytes(os.urandom(2 * 2**20))
    tab.set_input_files(upload, large)
    tab.wait_for_selector("text=exceed the maximum allowed size of 1.0 Mb")
    assert not app.held()

    # No other machine was asked for anything.
    local = (app.origin, app.page.launcher.as_uri(), "data:", "blob:", "about:")
    assert not [url for url in asked if not url.startswith(local)]
    assert not app.reached
    # The guard lets through what the page needs of Gradio's API, and no more.
    # Browsers ask for a manifest without cookies; the page has none.
    assert [url for url in refused if not url.endswith("/manifest.json")] == []
    api = f"{app.origin}{app.base}gradio_api/"
    calls = {urlsplit(url).path.partition("gradio_api/")[2] for url in asked if url.startswith(api)}
    needed = {"heartbeat" if call.startswith("heartbeat/") else call for call in calls}
    assert needed == {*guard.READS, *guard.WRITES}


class OtherServer(http.server.BaseHTTPRequestHandler):
    """A server of someone else, on another port of the same machine."""

    cookies: ClassVar[list[str | None]] = []

    def do_GET(self):
        self.cookies.append(self.headers.get("Cookie"))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>other</title>")

    def log_message(self, *_):
        pass


@pytest.fixture
def other_port():
    OtherServer.cookies.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


ATTACK = """async ([page, secret]) => {
  const file = {path: secret, meta: {_type: "gradio.FileData"}};
  const body = JSON.stringify({data: [file], fn_index: 0, session_hash: "x"});
  const read = [];
  const ask = async (path, options) => {
    try {
      const answer = await fetch(page + path, {credentials: "include", ...options});
      read.push(answer.type === "opaque" ? "" : await answer.text());
    } catch { read.push(""); }
  };
  for (const mode of ["cors", "no-cors"]) {
    await ask("", {mode});
    await ask("config", {mode});
    await ask("gradio_api/queue/data?session_hash=x", {mode});
    await ask("gradio_api/file=" + secret, {mode});
    await ask("gradio_api/queue/join", {mode, method: "POST", body});
    const form = new FormData();
    form.append("files", new Blob(["x"]), "x.mp4");
    await ask("gradio_api/upload", {mode, method: "POST", body: form});
  }
  const load = (tag, attribute, url) => new Promise((done) => {
    const element = document.createElement(tag);
    element.onload = () => done(true);
    element.onerror = () => done(false);
    element[attribute] = url;
    document.body.append(element);
  });
  return {
    read,
    picture: await load("img", "src", page + "favicon.ico"),
    script: await load("script", "src", page + "config"),
  };
}"""


def test_a_page_on_another_port_gets_nothing(browser, app, other_port, tmp_path):
    from sta.ui import guard

    context, _ = browser
    secret = tmp_path / "secret.txt"
    secret.write_text("mine alone")
    mine = context.new_page()
    mine.goto(app.page.address)
    mine.wait_for_selector("#upload input[type=file]", state="attached")
    assert guard.COOKIE in {cookie["name"] for cookie in context.cookies(app.origin + app.base)}

    theirs = context.new_page()
    theirs.goto(other_port)
    before = len(app.answers)
    # Even if it knew the path of the page, which nobody tells it.
    for page_address in (app.origin + app.base, f"{app.origin}/"):
        found = theirs.evaluate(ATTACK, [page_address, str(secret)])
        assert found == {"read": [""] * 12, "picture": False, "script": False}
        theirs.evaluate(
            """(action) => {
              const form = document.createElement("form");
              Object.assign(form, {action, method: "post", enctype: "text/plain"});
              document.body.append(form);
              form.submit();
            }""",
            page_address + "gradio_api/queue/join",
        )
        theirs.wait_for_url(f"{app.origin}/**")
        theirs.goto(other_port)
    answers = [answer for answer in app.answers[before:] if answer[2] != "same-origin"]
    assert len(answers) >= 2 * 15
    assert {status for *_, status in answers} == {403}
    # Browsers send cookies to all ports of a host; this one is bound to its path.
    assert len(OtherServer.cookies) >= 3
    assert set(OtherServer.cookies) == {None}
    assert not app.held()
    assert mine.reload().status == 200


def test_the_command_starts_and_ends(tmp_path):
    pytest.importorskip("gradio", reason="Gradio is not installed")
    model = save_model(tmp_path / "tiny")
    words = command("ui", "--model", model, "--port", 0, "--no-browser", "--device", "cpu")
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as started:
        address = started.stdout.readline().split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", address)
        for _ in range(200):
            try:
                assert b"Open the page" in urllib.request.urlopen(address, timeout=10).read()
                break
            except OSError:  # not up yet
                time.sleep(0.1)
        else:
            pytest.fail(f"{address} does not answer")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address.partition("?")[0], timeout=10)
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=60) in (0, 130, -signal.SIGINT)


def test_without_gradio_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=r'pip install "sta-video\[ui\]"'), page_server([]):
        pass


def test_a_curve_must_be_one(tmp_path):
    file = tmp_path / "c.json"
    with pytest.raises(FileNotFoundError, match="sta eval --json"):
        read_curve(file)
    file.write_text('[{"method": "sta"}]')
    with pytest.raises(ValueError, match="gflops"):
        read_curve(file)
