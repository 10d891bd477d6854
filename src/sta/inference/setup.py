"""From what a user gives to a model under its methods, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from sta.backbones.copies import copy_on
from sta.backbones.hooks import Hook, hooks_in
from sta.backbones.zoo.video_model import (
    VideoModel,
    fingerprint,
    model_name,
    view_spec,
)
from sta.inference.classifier import Classifier
from sta.inference.run import Run
from sta.measure.matching import Method, matched, methods_at
from sta.methods import Config, r_of
from sta.runtime.devices import choose_device
from sta.version import __version__
from sta.video.views import ViewSpec


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
        bare: bool = False,
        **views: Any,
    ) -> Setup:
        """Load the model and check that everything fits, before any video is touched.

        Args:
            model: What `sta.load` takes; or a model, which is left as it is.
            methods: Methods by name.
            r: Tokens to drop per frame at first, each for every method.
            match_gflops: Give every method but STA the r whose GFLOPs come closest to STA's at each
                r, and run STA, too.
            config: A method's settings, or a file of them, to be run as well.
            overrides: Passed on to `sta.load`.
            random_weights: Build the model without loading weights.
            device: Where to run; "auto" is where a given model is, or a GPU if there is one.
            runtime: What runs it: one of `sta.measure.fastest.CHOICES`.
            bare: Take a folder without a classifier for its encoder alone.
            views: What `view_spec` takes: protocol, views, frames, stride and size.
        """
        chosen = methods_at(methods, r)
        read = Config.from_file(config) if isinstance(config, str | Path) else config
        where = choose_device(device, model)
        opened = VideoModel.open(
            model, overrides=overrides, random_weights=random_weights, bare=bare
        )
        if not isinstance(model, str | Path):
            opened = _copy_of(opened, where)
        if match_gflops:
            chosen = matched(opened, methods, r)
        if read is not None:
            chosen[read.method, r_of(read)] = read
        spec = view_spec(opened, **views)
        return cls(model_name(model), opened, chosen, spec, where, runtime)

    def run(self, *, logits: bool = False, **options: Any) -> Run:
        """The run that does it.

        Args:
            logits: Give logits beside the probabilities.
            options: Fields of `Run`.
        """
        classifier = Classifier(
            self.opened.model,
            self.opened.clip,
            list(self.methods.values()),
            self.device,
            self.runtime,
            logits,
        )
        return Run(classifier, self.spec, **options)

    def about(self) -> dict[str, Any]:
        """Everything that the scores depend on, to be compared when a run is resumed."""
        settings = [config and asdict(config) for config in self.methods.values()]
        return {
            "sta": __version__,
            "model": self.name,
            "weights": fingerprint(self.opened.model),
            "methods": [list(method) for method in self.methods],
            "settings": settings,
            "views": asdict(self.spec),
            "runtime": self.runtime,
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
