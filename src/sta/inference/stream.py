"""`sta.Stream`: frames in, a result when one is due."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import av
import numpy as np
from numpy.typing import NDArray
from torch import nn

from sta.backbones.zoo.video_model import VideoModel
from sta.inference.clip_model import Classifier, Encoder
from sta.inference.options import ModelOptions
from sta.inference.rows import Row, best_classes
from sta.inference.scoring import NOT_NUMBERS
from sta.inference.setup import Setup
from sta.measure.auto import AUTO
from sta.methods import Config
from sta.runtime.exported import is_exported
from sta.video.decode import Canvas
from sta.video.windows import Cut, Cutter, WindowSpec, assemble, seconds_of


class StreamModel:
    """A model that makes a row of one window; what `sta.Stream` and `sta watch` share.

    Arguments as `sta.Stream` has them.
    """

    def __init__(
        self,
        model: str | Path | nn.Module | VideoModel = "vit-digits",
        config: Config | str | Path | None = None,
        *,
        every: float | str | None = 1.0,
        windows: float | str | None = None,
        features: bool = False,
        top_k: int = 5,
        **options: Unpack[ModelOptions],
    ) -> None:
        if top_k < 1:
            raise ValueError(f"top_k={top_k}: use 1 or more")
        between = None if every is None else seconds_of(every, "every")
        length = None if windows is None else seconds_of(windows, "windows")
        chosen: ModelOptions = {"runtime": AUTO if is_exported(model) else "torch", **options}
        setup = Setup.make(
            model,
            methods=["sta"] if config is None else [],
            config=config,
            bare=features,
            **chosen,
        )
        self.spec = WindowSpec(setup.spec, between, length)
        self.top_k = top_k
        self.names = setup.opened.class_names
        self.features = features
        self._model: Any
        self._model = setup.network(Encoder if features else Classifier)
        setup.prepare(self._model, ())

    def warm_up(self) -> None:
        """One forward: the first takes longest, and a compiled model is made in it."""
        view = self.spec.view
        self._model(np.zeros((1, view.frames, view.size, view.size, 3), np.uint8))

    def row(self, clip: NDArray[np.uint8], start: float, end: float) -> Row:
        """The row of a window, (T, size, size, 3): `start`, `end`, `predictions` or `vector`, and
        `error`."""
        result = self._model(clip[None])[0][0, 0]
        error = None if np.isfinite(result).all() else NOT_NUMBERS
        row: Row = {"start": round(start, 6), "end": round(end, 6)}
        if self.features:
            row["vector"] = result if error is None else None
        else:
            found = best_classes(result, self.names, self.top_k) if error is None else []
            row["predictions"] = found
        return {**row, "error": error}


class Stream:
    """Frames in, a result when one is due.

    >>> stream = sta.Stream("vit-b-k400", sta.STAConfig(r=64), every=1.0, fps=30)
    >>> for frame in camera:  # (H, W, 3) uint8 RGB
    ...     if (row := stream.push(frame)) is not None:
    ...         print(row["end"], row["predictions"])

    A frame is resized once, however many windows share it, and kept no longer than they need it.

    Args:
        model: What `sta.load` takes, a model, or a `VideoModel`; for features also a bare encoder.
            A model is left as it is.
        config: A method's settings, or a file of them; None runs the model as it is.
        every: Seconds from the start of a window to that of the next.
        windows: Seconds that a window spans, the clip's frames evenly spread; None is the model's
            own clip, frames x stride frames of the stream.
        fps: Frames per second of the stream.
        features: Give the window's features instead of its classes.
        top_k: Classes per row.
        options: How the model is loaded and run: see `ModelOptions`. Default runtime: torch.
            int8 needs `calibrate`.

    Attributes:
        frames: Pushed so far.
        results: Given so far.
    """

    def __init__(
        self,
        model: str | Path | nn.Module | VideoModel = "vit-digits",
        config: Config | str | Path | None = None,
        *,
        every: float | str | None = 1.0,
        windows: float | str | None = None,
        fps: float = 25.0,
        features: bool = False,
        top_k: int = 5,
        **options: Unpack[ModelOptions],
    ) -> None:
        if not 0 < fps < np.inf:
            raise ValueError(f"fps={fps}: give the stream's frames per second, above 0")
        self._model = StreamModel(
            model,
            config,
            every=every,
            windows=windows,
            features=features,
            top_k=top_k,
            **options,
        )
        self._cutter = Cutter(self._model.spec, fps)
        self._canvas = Canvas(self._model.spec.view, 1)
        self._held: dict[int, NDArray[np.uint8]] = {}
        self.frames = 0
        self.results = 0

    def push(self, frame: NDArray[np.uint8], time: float | None = None) -> Row | None:
        """The next frame; the row of the window that it completes, None if there is none.

        Args:
            frame: ``(H, W, 3)`` uint8 RGB, of any size.
            time: When it was taken, in seconds; None counts frames.

        Returns:
            `start` and `end` in seconds from the first frame, and `predictions` (best first, each
            with `label` and `score`) or `vector`; `error` says why there are none, or is None.
        """
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3 or not frame.size:
            raise ValueError(
                f"a frame of shape {frame.shape}, {frame.dtype}: give (height, width, 3) uint8 RGB"
            )
        self.frames += 1
        row = None
        for event in self._cutter.push(time, lambda: self._prepared(frame)):
            if not isinstance(event, Cut):
                self._held[event[0]] = event[1]
                continue
            (window,) = assemble([*self._held.items(), event])
            for number in [number for number in self._held if number < event.keep]:
                del self._held[number]
            row = self._model.row(window.clip, window.start, window.end)
            self.results += 1
        return row

    def _prepared(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        return self._canvas.prepare(picture)
