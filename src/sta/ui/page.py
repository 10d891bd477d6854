"""The page: Gradio's components and events."""

from __future__ import annotations

import html
from typing import Any

from sta.methods import METHODS
from sta.ui.session import Refused, Session, Views, digit_clips

CSS = """
.sta-head h1 { font-size: 1.5rem; margin: 0; }
.sta-head p { color: var(--body-text-color-subdued); margin: 2px 0 0; }
.sta-film { width: 100%; max-width: 1120px; background: #fff; border-radius: 8px;
  border: 1px solid var(--border-color-primary); }
.sta-page { width: 100%; height: 900px; border: 0; margin-top: 12px; }
.sta-curve { max-width: 640px; width: 100%; border-radius: 8px; margin-top: 12px; }
.sta-verdict { font-size: 1.05rem; margin: 0 0 10px; }
.sta-status { margin: 0; }
.sta-error { margin: 0; padding: 10px 14px; border-radius: 8px; color: #7a1f1f;
  background: #fdecea; border: 1px solid #f3c2bd; }
"""


def theme() -> Any:
    """Gradio's default theme with the system's fonts, so that none is fetched."""
    import gradio

    plain = ("system-ui", "-apple-system", "Segoe UI", "Helvetica Neue", "Arial", "sans-serif")
    mono = ("ui-monospace", "Consolas", "monospace")
    return gradio.themes.Default(
        primary_hue="indigo", neutral_hue="slate", font=plain, font_mono=mono
    )


def build(session: Session, max_bytes: int) -> Any:
    """Gradio's blocks."""
    import gradio

    names = list(session.models)
    first = names[0]
    methods = [(method.title, name) for name, method in METHODS.items()]

    def settings(model: str) -> tuple[Any, ...]:
        """What can be set: nothing of an exported file, which has its method in it."""
        most = session.most[model]
        free = {"interactive": most > 0}
        start = session.models[model].default_r if most else 0
        return (
            gradio.Slider(maximum=max(most, 1), value=start, **free),
            gradio.Radio(**free),
            gradio.CheckboxGroup(value=[], **free),
        )

    def read_upload(path: str | None) -> tuple[Any, ...]:
        """Read the uploaded file and remove it."""
        if path is None:
            return (gradio.skip(),) * 4
        try:
            views = session.read_upload(path)
        except Refused as refused:
            return None, None, _error(refused), ""
        return None, views, _status(views), gradio.skip()

    def pick(name: str | None) -> tuple[Any, ...]:
        if name is None:
            return gradio.skip(), gradio.skip()
        try:
            views = session.read(name, {value: label for label, value in digit_clips()}[name])
        except Refused as refused:
            return None, _error(refused)
        return views, _status(views)

    def run(views: Views | None, model: str, method: str, r: float, compare: list[str]) -> Any:
        if not views:
            return "", gradio.skip()  # the status says why there is no clip
        try:
            return session.run(views, model, method, int(r), compare), _status(views)
        except Refused as refused:
            return "", _error(refused)

    with gradio.Blocks(
        title="sta: what is kept", analytics_enabled=False, delete_cache=(60, 600)
    ) as blocks:
        gradio.HTML(
            "<h1>What is kept</h1><p>Video transformers with fewer tokens: which ones stay, what "
            "the model predicts before and after, and what it saves on this machine.</p>",
            elem_classes="sta-head",
        )
        views = gradio.State(None, time_to_live=3600)
        with gradio.Row():
            with gradio.Column(scale=1, min_width=280):
                file = gradio.File(
                    label=f"A video, up to {max_bytes / 2**20:.0f} MB; it is removed once read",
                    type="filepath",
                    elem_id="upload",
                )
                clip = gradio.Dropdown(
                    digit_clips(), value=None, label="Or a generated clip", elem_id="clip"
                )
                model = gradio.Dropdown(names, value=first, label="Model", elem_id="model")
                method = gradio.Radio(
                    methods,
                    value="sta",
                    label="Method",
                    interactive=session.most[first] > 0,
                    elem_id="method",
                )
                r = gradio.Slider(
                    0,
                    max(session.most[first], 1),
                    session.models[first].default_r if session.most[first] else 0,
                    step=1,
                    interactive=session.most[first] > 0,
                    label="r: tokens dropped per frame at the first step",
                    info="Methods other than STA keep as many tokens in the end.",
                    elem_id="r",
                )
                compare = gradio.CheckboxGroup(
                    methods,
                    value=[],
                    label="Compare with",
                    interactive=session.most[first] > 0,
                    elem_id="compare",
                )
                again = gradio.Button("Run", variant="primary", elem_id="run")
            with gradio.Column(scale=3, min_width=480):
                status = gradio.HTML(_status(None), elem_id="status")
                result = gradio.HTML("", elem_id="result")
        inputs, outputs = [views, model, method, r, compare], [result, status]
        # One run at a time, so that runs do not disturb each other's timing.
        exclusive = {"concurrency_limit": 1, "concurrency_id": "model", "api_visibility": "private"}
        silent = {"api_visibility": "private", "show_progress": "hidden"}
        uploaded = file.upload(read_upload, file, [file, views, status, result], **exclusive)
        uploaded.then(run, inputs, outputs, **exclusive)
        clip.input(pick, clip, [views, status], **silent).then(run, inputs, outputs, **exclusive)
        chosen = model.input(settings, model, [r, method, compare], **silent)
        chosen.then(run, inputs, outputs, **exclusive)
        for event in (method.input, compare.input, r.release, again.click):
            event(run, inputs, outputs, **exclusive)
    return blocks


def _status(views: Views | None) -> str:
    if not views:
        return '<p class="sta-status">Upload a video or pick a clip.</p>'
    clip = next(iter(views.values()))
    frames = len(clip.frames)
    return f'<p class="sta-status"><b>{html.escape(clip.name)}</b>, {frames} frames</p>'


def _error(refused: Refused) -> str:
    return f'<p class="sta-error" role="alert">{html.escape(str(refused))}</p>'
