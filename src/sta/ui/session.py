"""What the page does, without Gradio: reads clips, runs models, holds the results."""

from __future__ import annotations

import html
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sta.backbones.zoo.video_model import VideoModel
from sta.explain import animation, captions, page
from sta.explain.clips import Clip, read_clip, single_view
from sta.explain.comparable import comparable_config
from sta.explain.inspect import Inspection, inspect_clip
from sta.methods import STAConfig
from sta.runtime.exported import ExportedModel, is_exported, open_model
from sta.runtime.probe import make_safe
from sta.ui.curve import Rows, draw_curve, embedded_curve
from sta.video.decode import VideoError
from sta.video.views import ViewSpec

DIGITS = 8  # generated clips to choose from
RESULTS = 16  # results held at a time

#: One clip, as each kind of model expects it.
Views = dict[ViewSpec, Clip]


class Refused(Exception):
    """An error that the user can correct; the message says how."""


@dataclass(frozen=True)
class Result:
    """The result of one run."""

    page: str  # the HTML page with the sliders
    film: bytes  # MP4 of the clip with dropped patches in white


class Session:
    """The loaded models, by what `sta.load` takes or exported files; and the latest results.

    `folder` is where uploads are until they are read. `curves` are accuracy against compute by
    model; embedded models have theirs. `most` is the largest r of each model; 0 of an exported
    file, which has its method in it.
    """

    def __init__(
        self,
        models: Sequence[str],
        folder: str | Path,
        *,
        curves: Mapping[str, Rows] | None = None,
        device: str = "cpu",
        precision: str = "float32",
        timeout: float = 60.0,
    ) -> None:
        self.precision = precision
        if precision == "int8" and not all(map(is_exported, models)):
            raise ValueError(
                "precision int8: models are shown in float32, float16 or bfloat16; for int8 write "
                "one with sta export --format openvino --precision int8, and give the file"
            )
        if device == "cpu" and not all(map(is_exported, models)):
            make_safe("torch", precision)  # before anything is computed
        self.models = {name: open_model(name, precision=precision) for name in models}
        self.most = {name: _largest_r(name, model) for name, model in self.models.items()}
        self.folder = Path(folder).resolve()
        self.curves = {name: embedded_curve(name) for name in models} | dict(curves or {})
        self.device, self.timeout = device, timeout
        self.results: OrderedDict[str, Result] = OrderedDict()

    def specs(self) -> list[ViewSpec]:
        return list(dict.fromkeys(single_view(model) for model in self.models.values()))

    def read(self, video: str, name: str | None = None) -> Views:
        """Read one clip of a video, as each model expects it; refuses one that fits none."""
        found: Views = {}
        reasons = []
        for spec in self.specs():
            try:
                clip = read_clip(video, spec, timeout=self.timeout)
            except (VideoError, ValueError) as error:
                reasons.append(str(error))
                continue
            found[spec] = Clip(name or clip.name, clip.frames, clip.display, clip.label)
        if not found:
            raise Refused(f"{name or video}: {reasons[0]}")
        return found

    def read_upload(self, path: str) -> Views:
        """Read one clip of an uploaded file. The file is removed in any case."""
        file = Path(path).resolve()
        if not file.is_relative_to(self.folder):  # it will be removed
            raise Refused(f"{file.name}: not an upload")
        try:
            return self.read(str(file), file.name)
        finally:
            file.unlink(missing_ok=True)
            with suppress(OSError):  # another tab uploaded the same content
                file.parent.rmdir()

    def run(
        self, views: Views | None, model: str, method: str, r: int, compare: Sequence[str] = ()
    ) -> str:
        """Run a clip and hold the result; returns the HTML that shows it."""
        if not views:
            raise Refused("Upload a video or pick a clip first.")
        opened = self.models[model]
        clip = views.get(single_view(opened))
        if clip is None:
            raise Refused(f"{model} takes other clips than this one: upload a video file.")
        try:
            names = dict.fromkeys([method, *compare])  # each once
            if is_exported(opened):
                names = {}  # its own is in it
            inspection = inspect_clip(
                opened,
                clip.frames,
                [comparable_config(opened.model, name, STAConfig(r=r)) for name in names],
                clip_name=clip.name,
                model_name=Path(model).name,
                frames=clip.display,
                device=self.device,
                precision=self.precision,
            )
        except ValueError as error:
            raise Refused(str(error)) from None
        key = secrets.token_urlsafe(16)
        self.results[key] = Result(page.page(inspection), _film(inspection))
        while len(self.results) > RESULTS:
            self.results.popitem(last=False)
        rows, found = self.curves.get(model), inspection.methods[0]
        curve = draw_curve(rows, found.gflops, found.title) if rows else ""
        return _html(key, inspection, curve)


def _largest_r(name: str, opened: VideoModel) -> int:
    if not isinstance(opened.model, ExportedModel):
        return opened.largest_r
    if opened.model.facts.config is None:
        raise ValueError(f"{name}: was exported without a method, so that it drops no tokens")
    return 0


def digit_clips() -> list[tuple[str, str]]:
    """The generated clips: what they show, and their names."""
    from sta.video.digits import CLASS_NAMES, DigitActions

    labels = DigitActions("test", size=DIGITS).labels(range(DIGITS)).tolist()
    return [(f"digits: {CLASS_NAMES[k]}", f"digits:{i}") for i, k in enumerate(labels)]


def _film(inspection: Inspection) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return animation.save(inspection, Path(folder) / "film.mp4").read_bytes()


def _html(key: str, inspection: Inspection, curve: str) -> str:
    method = inspection.methods[0]
    summary = f"{captions.predictions(inspection, method)} {captions.cost(inspection, method)}."
    parts = [
        f'<p class="sta-verdict" data-result="{key}">{html.escape(summary)}</p>',
        f'<video class="sta-film" src="result/{key}/film.mp4" autoplay loop muted controls '
        f'playsinline aria-label="The clip with dropped patches white"></video>',
        f'<iframe class="sta-page" src="result/{key}/page.html" title="Step by step" '
        'onload="this.style.height = this.contentDocument.documentElement.scrollHeight + '
        "'px'\"></iframe>",
    ]
    if curve:
        parts.append(f'<img class="sta-curve" src="{curve}" alt="Accuracy against compute">')
    return "\n".join(parts)
