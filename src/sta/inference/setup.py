"""From the names that a user gives to a model under its methods, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sta
from sta.backbones.zoo.video_model import VideoModel, fingerprint, load_video_model, view_spec
from sta.inference.classifier import Classifier
from sta.inference.run import Run
from sta.methods import Config, make_config
from sta.video.views import ViewSpec

Method = tuple[str, int]  # name and r


def methods(names: Sequence[str], drops: Sequence[int]) -> dict[Method, Config | None]:
    """Every method at every r; without tokens dropped they are one and the same, listed once."""
    found: dict[Method, Config | None] = {}
    if 0 in drops and (plain := [name for name in names if name != "dense"]):
        found[plain[0], 0] = None
    for name in names:
        for r in drops if name != "dense" else (0,):
            if r or name == "dense":
                found[name, r] = make_config(name, r)
    return found


def matched(
    opened: VideoModel, names: Sequence[str], drops: Sequence[int]
) -> dict[Method, Config | None]:
    """The same, but every other method gets the r whose GFLOPs come closest to STA's at each r."""
    from sta.backbones.copies import meta_copy
    from sta.measure.matching import match_gflops

    found = methods(["sta", *(name for name in names if name == "dense")], drops)
    skeleton, shape = meta_copy(opened.model), opened.clip.shape()
    targets = [
        sta.gflops(sta.apply(skeleton, make_config("sta", r)), shape) for r in drops if r > 0
    ]
    for name in names:
        for target in targets if name not in ("sta", "dense") else ():
            config = match_gflops(skeleton, shape, target, name)
            found[name, int(getattr(config, "r", 0))] = config
    return found


@dataclass
class Setup:
    """A model, the methods to run it with, and the views to show it.

    Attributes:
        name: What the model was asked for as.
        opened: The model and what it tells about itself.
        methods: Name and r of each method, and its settings; None is the model as it is.
        spec: The views of each video.
        device: Where to run.
        runtime: What runs it.
    """

    name: str
    opened: VideoModel
    methods: dict[Method, Config | None]
    spec: ViewSpec
    device: str
    runtime: str = "torch"

    @classmethod
    def make(
        cls,
        model: str,
        *,
        names: Sequence[str] = ("sta",),
        drops: Sequence[int] = (0,),
        match: bool = False,
        config: str | Path | None = None,
        overrides: Mapping[str, Any] | None = None,
        random_weights: bool = False,
        device: str = "cpu",
        runtime: str = "torch",
        data_set: str | None = None,
        views: str | None = None,
        frames: int | None = None,
        stride: int | None = None,
        size: int | None = None,
    ) -> Setup:
        """Load the model and check that everything fits, before any video is touched.

        Args:
            model: What `sta.load` takes.
            names: Methods by name.
            drops: Tokens to drop per frame at first, each for every method.
            match: Give every method but STA the r whose GFLOPs come closest to STA's at each of
                `drops`, and run STA, too.
            config: A file with a method's settings, to be run as well.
            overrides: Passed on to `sta.load`.
            random_weights: Build the model without loading weights.
            device: Where to run.
            runtime: What runs it: one of `sta.measure.fastest.CHOICES`.
            data_set: Take this data set's published views.
            views: Clips x crops per video, e.g. "5x3".
            frames: Frames per clip.
            stride: Distance between the frames of a clip.
            size: Side of a clip.
        """
        chosen = methods(names, drops)
        read = None if config is None else Config.from_file(config)
        opened = load_video_model(model, random_weights=random_weights, **(overrides or {}))
        if match:
            chosen = matched(opened, names, drops)
        if read is not None:
            chosen[read.method, int(getattr(read, "r", 0))] = read
        spec = view_spec(
            opened, data_set=data_set, views=views, frames=frames, stride=stride, size=size
        )
        return cls(model, opened, chosen, spec, device, runtime)

    def run(self, **options: Any) -> Run:
        """The run that does it; `options` are fields of `Run`."""
        classifier = Classifier(
            self.opened.model,
            self.opened.clip,
            list(self.methods.values()),
            self.device,
            self.runtime,
        )
        return Run(classifier, self.spec, **options)

    def about(self) -> dict[str, Any]:
        """Everything that the scores depend on, to be compared when a run is resumed."""
        settings = [config and asdict(config) for config in self.methods.values()]
        return {
            "sta": sta.__version__,
            "model": self.name,
            "weights": fingerprint(self.opened.model),
            "methods": [list(method) for method in self.methods],
            "settings": settings,
            "views": asdict(self.spec),
            "runtime": self.runtime,
        }
