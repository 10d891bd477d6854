"""What the page does, without the page: clips in, results out."""

from __future__ import annotations

import html
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sta.backbones.zoo.video_model import VideoModel, load_video_model
from sta.explain import animation, captions, page
from sta.explain.clips import Clip, read_clip, single_view
from sta.explain.comparable import comparable_config, default_r, largest_r
from sta.explain.inspect import Inspection, inspect_clip
from sta.methods import STAConfig
from sta.ui.curve import Rows, draw_curve, embedded_curve
from sta.video.decode import VideoError
from sta.video.views import ViewSpec

DIGITS = 8  # clips that are offered to those who have none at hand
RESULTS = 16  # that are held at a time, for all who look

#: A clip in the views of every model that is offered.
Views = dict[ViewSpec, Clip]


class Refused(Exception):
    """Something that the user can put right; the text says how."""


@dataclass(frozen=True)
class Result:
    """What one run shows.

    Attributes:
        page: The page with the sliders.
        film: The clip with dropped patches white, MP4.
    """

    page: str
    film: bytes


class Desk:
    """The models, and the results that are on show.

    Args:
        models: What `sta.load` takes.
        folder: Where uploads are until they are read.
        curves: Accuracy against compute by model; what is embedded is known.
        device: Where to run.
        timeout: Seconds without a sign of life after which a video is given up.
    """

    def __init__(
        self,
        models: Sequence[str],
        folder: str | Path,
        *,
        curves: Mapping[str, Rows] | None = None,
        device: str = "cpu",
        timeout: float = 60.0,
    ) -> None:
        self.models: dict[str, VideoModel] = {name: load_video_model(name) for name in models}
        self.most = {name: largest_r(model) for name, model in self.models.items()}
        self.folder = Path(folder).resolve()
        self.curves = {name: embedded_curve(name) for name in models} | dict(curves or {})
        self.device, self.timeout = device, timeout
        self.results: OrderedDict[str, Result] = OrderedDict()

    def default_r(self, model: str) -> int:
        """A drop that about halves the work."""
        return default_r(self.models[model])

    def specs(self) -> list[ViewSpec]:
        """The different views that the models take."""
        return list(dict.fromkeys(single_view(model) for model in self.models.values()))

    def read(self, video: str, name: str | None = None) -> Views:
        """The clip of a video in the views of all models.

        Args:
            video: A file, or "digits:5".
            name: What the user calls it.

        Raises:
            Refused: It is no video that can be read, or fits no model.
        """
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
        """The clip of an uploaded file, which is removed whatever comes of it."""
        file = Path(path).resolve()
        if not file.is_relative_to(self.folder):  # what is removed must be ours
            raise Refused(f"{file.name}: not an upload")
        try:
            return self.read(str(file), file.name)
        finally:
            file.unlink(missing_ok=True)
            with suppress(OSError):  # others may have uploaded the same
                file.parent.rmdir()

    def run(
        self, views: Views | None, model: str, method: str, r: int, compare: Sequence[str] = ()
    ) -> str:
        """Run a clip and put the result on show; returns the HTML that shows it.

        Args:
            views: The clip.
            model: One of the models.
            method: How tokens are chosen.
            r: STA's; other methods are left with as many tokens.
            compare: More methods.

        Raises:
            Refused: There is no clip, or the settings do not fit it.
        """
        if not views:
            raise Refused("Upload a video or pick a clip first.")
        opened = self.models[model]
        clip = views.get(single_view(opened))
        if clip is None:
            raise Refused(f"{model} takes other clips than this one: upload a video file.")
        try:
            names = dict.fromkeys([method, *compare])  # each once
            seen = inspect_clip(
                opened,
                clip.frames,
                [comparable_config(opened.model, name, STAConfig(r=r)) for name in names],
                clip_name=clip.name,
                model_name=Path(model).name,
                frames=clip.display,
                device=self.device,
            )
        except ValueError as error:
            raise Refused(str(error)) from None
        key = secrets.token_urlsafe(16)
        self.results[key] = Result(page.page(seen), _film(seen))
        while len(self.results) > RESULTS:
            self.results.popitem(last=False)
        return _html(key, seen, self._curve(model, seen))

    def _curve(self, model: str, seen: Inspection) -> str:
        rows = self.curves.get(model)
        method = seen.methods[0]
        return draw_curve(rows, method.gflops, method.title) if rows else ""


def digit_clips() -> list[tuple[str, str]]:
    """Clips that are made on the fly: what they show, and their names."""
    from sta.video.digits import CLASS_NAMES, DigitActions

    labels = DigitActions("test", size=DIGITS).labels(range(DIGITS)).tolist()
    return [(f"digits: {CLASS_NAMES[k]}", f"digits:{i}") for i, k in enumerate(labels)]


def _film(seen: Inspection) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return animation.save(seen, Path(folder) / "film.mp4").read_bytes()


def _html(key: str, seen: Inspection, curve: str) -> str:
    method = seen.methods[0]
    told = f"{captions.predictions(seen, method)} {captions.cost(seen, method)}."
    parts = [
        f'<p class="sta-verdict" data-result="{key}">{html.escape(told)}</p>',
        f'<video class="sta-film" src="result/{key}/film.mp4" autoplay loop muted controls '
        f'playsinline aria-label="The clip with dropped patches white"></video>',
        f'<iframe class="sta-page" src="result/{key}/page.html" title="Step by step" '
        'onload="this.style.height = this.contentDocument.documentElement.scrollHeight + '
        "'px'\"></iframe>",
    ]
    if curve:
        parts.append(f'<img class="sta-curve" src="{curve}" alt="Accuracy against compute">')
    return "\n".join(parts)
