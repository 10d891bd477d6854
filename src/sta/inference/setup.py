"""From what a user gives to a model under its methods, ready to run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sta.backbones.copies import copy_on
from sta.backbones.hooks import Hook, hooks_in
from sta.backbones.zoo.video_model import VideoModel, fingerprint, model_name, view_spec
from sta.inference.clip_model import Classifier, ClipModel
from sta.inference.run import Run
from sta.measure.auto import AUTO, check_runtime
from sta.measure.matching import Method, matched, methods_at, refusals
from sta.methods import Config, r_of
from sta.runtime.devices import choose_device
from sta.runtime.exported import ExportedModel, is_exported, open_model
from sta.version import __version__
from sta.video.clips import Videos, load_clips, read_samples
from sta.video.lists import Entry
from sta.video.views import ViewSpec

M = TypeVar("M", bound=ClipModel)
#: Clips that int8 takes its ranges from, at most.
CALIBRATED = 16


@dataclass
class Setup:
    """A model, the methods to run it with, and the views to show it."""

    name: str  # what the model was asked for as
    opened: VideoModel  # the model and what it tells about itself
    # Name and r of each method, and its settings; None is the model as it is.
    methods: dict[Method, Config | None]
    spec: ViewSpec  # the views of each video
    device: str  # where to run
    runtime: str = "torch"  # what runs it
    precision: str = "float32"  # what it computes in
    # Videos that int8 takes its ranges from; None takes the run's first.
    calibrate: Videos | None = None
    left_out: tuple[str, ...] = ()  # methods that the model does not take, beside others, and why

    @classmethod
    def make(
        cls,
        model: str | Path | nn.Module | VideoModel,
        *,
        methods: Sequence[str] = ("sta",),
        r: Sequence[int] = (0,),
        match_gflops: bool = False,
        config: Config | str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        random_weights: bool = False,
        device: str = "auto",
        runtime: str = "torch",
        precision: str = "float32",
        calibrate: Videos | None = None,
        bare: bool = False,
        **views: Any,
    ) -> Setup:
        """Load the model and check that everything fits, before any video is touched.

        Of several methods, those that the model does not take are left out. `match_gflops` gives
        every method but STA the r whose GFLOPs come closest to STA's at each r, and runs STA, too.
        `bare` takes a folder without a classifier for its encoder alone. `views` is what
        `view_spec` takes; the rest is `ModelOptions`.
        """
        chosen = methods_at(methods, r)
        read = Config.from_file(config) if isinstance(config, str | Path) else config
        exported = is_exported(model)
        where = "cpu" if exported and device == "auto" else choose_device(device, model)
        check_runtime(runtime, precision, where)  # before the model is loaded
        if calibrate is not None and precision != "int8":
            raise ValueError(f"calibrate is for precision int8, this is {precision}: leave it out")
        opened = open_model(
            model,
            overrides=overrides,
            random_weights=random_weights,
            bare=bare,
            precision=precision,
        )
        if isinstance(opened.model, ExportedModel):
            if any(r) or config is not None or match_gflops or list(methods) not in ([], ["sta"]):
                raise ValueError(f"{model_name(model)}: has its method in it: leave it and r out")
            return cls._of_file(model_name(model), opened, where, runtime, calibrate, views)
        if not isinstance(model, str | Path):
            opened = _copy_of(opened, where)
        name = model_name(model)
        reasons = refusals(opened, methods) if len(set(methods)) > 1 else {}
        left_out = tuple(f"{method}: {reason}" for method, reason in reasons.items())
        methods = [method for method in methods if method not in reasons]
        if left_out and not methods:
            raise ValueError(f"{name} takes none of these methods: {'; '.join(left_out)}")
        if left_out:
            chosen = methods_at(methods, r)
        if match_gflops:
            chosen = matched(opened, methods, r)
        if read is not None:
            chosen[read.name, r_of(read)] = read
        spec = view_spec(opened, **views)
        return cls(name, opened, chosen, spec, where, runtime, precision, calibrate, left_out)

    @classmethod
    def _of_file(
        cls,
        name: str,
        opened: VideoModel,
        device: str,
        runtime: str,
        calibrate: Videos | None,
        views: Mapping[str, Any],
    ) -> Setup:
        """An exported file: all but the views of a video is in it."""
        file = opened.model
        assert isinstance(file, ExportedModel)
        if runtime not in (AUTO, file.runtime) or device != "cpu":
            raise ValueError(
                f"{name}: runs in {file.runtime} on the CPU: leave runtime and device out"
            )
        if calibrate is not None:
            raise ValueError(f"{name}: is exported, and has its ranges: leave calibrate out")
        own, config = opened.clip.views, file.facts.config
        for side in ("frames", "size"):
            if views.get(side) not in (None, getattr(own, side)):
                raise ValueError(
                    f"{side}={views[side]}: {name} takes clips of {own.frames} frames of "
                    f"{own.size} pixels; leave it out"
                )
        chosen = {("sta" if config is None else config.method, r_of(config)): config}
        spec = view_spec(opened, **views)
        precision = file.asked or file.facts.precision
        return cls(name, opened, chosen, spec, device, file.runtime, precision)

    def run(self, *, logits: bool = False, **options: Any) -> Run:
        return Run(self.network(Classifier, logits=logits), self.spec, **options)

    def network(self, kind: type[M], **options: Any) -> M:
        how = (self.runtime, self.precision)
        if isinstance(self.opened.model, ExportedModel):
            how = ("torch", "float32")  # it brings its own
        methods = list(self.methods.values())
        return kind(self.opened.model, self.opened.clip, methods, self.device, *how, **options)

    def prepare(
        self, model: ClipModel, entries: Sequence[Entry], clips: int | None = None
    ) -> dict[str, Any]:
        """Tell a model what it is going to see, which int8 takes its ranges from; gives `about`."""
        model.clips = clips
        if model.precision == "int8" and model.calibration is None:
            model.calibration = self._calibration(entries)
        about = self.about()
        if model.calibration is not None:  # what int8's ranges were taken from
            about["calibration"] = hashlib.sha256(model.calibration.tobytes()).hexdigest()[:16]
        return about

    def _calibration(self, entries: Sequence[Entry]) -> NDArray[np.uint8]:
        spec = replace(self.spec, temporal=1, spatial=1)
        if self.calibrate is not None:
            return load_clips(self.calibrate, spec, CALIBRATED)[0]
        samples = read_samples(entries[:CALIBRATED], spec)
        found = [sample.clips for sample in samples if sample.clips is not None]
        if not found:
            raise ValueError(
                "int8 needs clips to take its ranges from, and none of the first "
                f"{min(len(entries), CALIBRATED)} videos can be read: name others with calibrate"
            )
        return np.concatenate(found)

    def about(self) -> dict[str, Any]:
        """Everything that the scores depend on, to be compared when a run is resumed."""
        settings = [config and asdict(config) for config in self.methods.values()]
        views = asdict(self.spec)
        if self.spec.decoder == "pyav":  # as in rows that were made before there was another
            del views["decoder"]
        return {
            "sta": __version__,
            "model": self.name,
            "weights": fingerprint(self.opened.model),
            "methods": [list(method) for method in self.methods],
            "settings": settings,
            "views": views,
            "runtime": self.runtime,
            "precision": self.precision,
        }


def _copy_of(opened: VideoModel, device: str) -> VideoModel:
    """A given model as inference may change it."""
    given = opened.model
    if any(True for _ in hooks_in(given, Hook)):
        raise ValueError(
            "the model has a method applied already: call sta.remove(model), and give the method "
            "here (config=..., or method and r)"
        )
    return replace(opened, model=copy_on(given, device))
