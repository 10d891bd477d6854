"""The page of `sta show --html` and the app of `sta ui`, driven in headless Chromium."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import sta
from backbones import BACKBONES
from inference_runs import command, environment, save_model
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import VideoModel
from sta.explain import inspect_clip, page
from sta.ui.app import prepared
from sta.ui.curve import read_curve
from sta.video.views import ViewSpec
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
    with playwright_api.sync_playwright() as running:
        yield running


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
    """The running app, and the addresses outside this machine that its process reached for."""
    pytest.importorskip("gradio", reason="Gradio is not installed")
    reached: list[object] = []
    connect = socket.socket.connect

    def watched(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in (
            "127.0.0.1",
            "::1",
        ):
            reached.append(address)
        return connect(self, address)

    curve = [
        {"method": m, "r": r, "gflops": 1.0 - r / 50, "top1": 0.9 - r / 100}
        for m in ("sta", "random")
        for r in (0, 4, 8)
    ]
    model = save_model(tmp_path_factory.mktemp("tiny"))
    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", watched)
    with prepared([model], max_megabytes=1, curves={model: curve}) as (server, address):
        folder = Path(os.environ["GRADIO_TEMP_DIR"])
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield address, folder, reached
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
    patch.undo()
    assert not folder.exists()


def _held(folder: Path) -> list[Path]:
    """Uploads that are still there; Gradio leaves empty files beside them."""
    return [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]


def test_from_upload_to_result(browser, app, tmp_path):
    context, asked = browser
    address, folder, reached = app
    tab = context.new_page()
    tab.goto(address)
    upload = "#upload input[type=file]"
    tab.wait_for_selector(upload, state="attached")

    # A real clip.
    video = SAMPLE if SAMPLE.is_file() else make(tmp_path / "bars.mp4", 40)
    tab.set_input_files(upload, video)
    first = tab.wait_for_selector("#result [data-result]").get_attribute("data-result")
    assert video.name in tab.inner_text("#told")
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
    assert not _held(folder)

    # Another r and another method, without uploading again.
    tab.locator("#compare input").nth(1).check()
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
    alert = tab.wait_for_selector("#told [role=alert]").inner_text()
    assert "notes.mp4: not a video" in alert
    assert tab.locator("#result [data-result]").count() == 0
    assert not _held(folder)

    # One that is too large.
    large = tmp_path / "large.mp4"
    large.write_bytes(os.urandom(2 * 2**20))
    tab.set_input_files(upload, large)
    tab.wait_for_selector("text=exceed the maximum allowed size of 1.0 Mb")
    assert not _held(folder)

    # All the while, nobody else was asked for anything.
    outside = [url for url in asked if not url.startswith((address, "data:", "blob:", "about:"))]
    assert not outside
    assert not reached


def test_nothing_else_is_served(browser, app, tmp_path):
    context, _ = browser
    address, folder, reached = app
    secret = tmp_path / "secret.txt"
    secret.write_text("mine")
    for path in (
        f"gradio_api/file={secret}",
        "gradio_api/file=/etc/passwd",
        f"gradio_api/file={folder}/../{tmp_path.name}/secret.txt",
        "gradio_api/file=https://example.com/",
        "gradio_api/proxy=https://example.com/",
        "gradio_api/openapi.json",
        "gradio_api/vibe-code/",
        "monitoring",
        "docs",
    ):
        answer = context.request.get(address + path)
        assert answer.status == 403, path
        assert "mine" not in answer.text()
    assert context.request.get(f"{address}result/unknown/page.html").status == 404
    for name, value in (("Host", "evil.example"), ("Origin", "https://evil.example")):
        assert context.request.get(address, headers={name: value}).status == 403
    page_answer = context.request.get(address)
    assert page_answer.status == 200
    assert "default-src 'self'" in page_answer.headers["content-security-policy"]
    config = context.request.get(f"{address}config").text()
    assert json.loads(config)["analytics_enabled"] is False
    # The limit holds for those who do not use the page, too.
    part = {"name": "a.mp4", "mimeType": "video/mp4", "buffer": bytes(2 * 2**20)}
    too_large = context.request.post(f"{address}gradio_api/upload", multipart={"files": part})
    assert too_large.status == 413
    assert not _held(folder)
    assert not reached


def test_the_command_starts_and_ends(tmp_path):
    pytest.importorskip("gradio", reason="Gradio is not installed")
    model = save_model(tmp_path / "tiny")
    words = command("ui", "--model", model, "--port", 0, "--no-browser", "--device", "cpu")
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        address = running.stdout.readline().split()[0]
        for _ in range(200):
            try:
                assert b"gradio" in urllib.request.urlopen(address, timeout=10).read()
                break
            except OSError:  # not up yet
                time.sleep(0.1)
        else:
            pytest.fail(f"{address} does not answer")
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) in (0, 130, -signal.SIGINT)


def test_without_gradio_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ImportError, match=r'pip install "sta-video\[ui\]"'), prepared([]):
        pass


def test_a_curve_must_be_one(tmp_path):
    file = tmp_path / "c.json"
    with pytest.raises(FileNotFoundError, match="sta eval --json"):
        read_curve(file)
    file.write_text('[{"method": "sta"}]')
    with pytest.raises(ValueError, match="gflops"):
        read_curve(file)
