"""From what a user gives to a model under its methods, ready to run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sta.backbones.copies import meta_copy, shared_copy
from sta.backbones.hooks import Hook, hooks_in
from sta.backbones.patch import apply
from sta.backbones.zoo.video_model import (
    VideoModel,
    fingerprint,
    model_name,
    view_spec,
)
from sta.inference.classifier import Classifier
from sta.inference.run import Run
from sta.measure.flops import gflops
from sta.methods import Config, make_config, r_of
from sta.runtime.devices import choose_device
from sta.version import __version__
from sta.video.views import ViewSpec

Method = tuple[str, int]  # name and r


def methods_at(names: Sequence[str], r: Sequence[int]) -> dict[Method, Config | None]:
    """Every method at every r; without tokens dropped they are one and the same, listed once."""
    found: dict[Method, Config | None] = {}
    if 0 in r and (dropping := [name for name in names if make_config(name, 0).drops]):
        found[dropping[0], 0] = None
    for name in names:
        for config in (make_config(name, count) for count in r):
            if r_of(config) or not config.drops:
                found[name, r_of(config)] = config
    return found


def matched(
    opened: VideoModel, names: Sequence[str], r: Sequence[int]
) -> dict[Method, Config | None]:
    """The same, but every other method gets the r whose GFLOPs come closest to STA's at each r."""
    from sta.measure.matching import match_gflops

    fixed = [name for name in names if not make_config(name, 0).drops]
    found = methods_at(["sta", *fixed], r)
    skeleton, shape = meta_copy(opened.model), opened.clip.shape()
    targets = [gflops(apply(skeleton, make_config("sta", count)), shape) for count in r if count]
    for name in names:
        for target in targets if name not in ("sta", *fixed) else ():
            config = match_gflops(skeleton, shape, target, name)
            found[name, r_of(config)] = config
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
        protocol: str | None = None,
        views: str | None = None,
        frames: int | None = None,
        stride: int | None = None,
        size: int | None = None,
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
            protocol: Take this data set's published views.
            views: Clips x crops per video, e.g. "5x3".
            frames: Frames per clip.
            stride: Distance between the frames of a clip.
            size: Side of a clip.
        """
        chosen = methods_at(methods, r)
        read = Config.from_file(config) if isinstance(config, str | Path) else config
        where = choose_device(device, model)
        opened = VideoModel.open(model, overrides=overrides, random_weights=random_weights)
        if not isinstance(model, str | Path):
            opened = _copy_of(opened, where)
        if match_gflops:
            chosen = matched(opened, methods, r)
        if read is not None:
            chosen[read.method, r_of(read)] = read
        spec = view_spec(
            opened, data_set=protocol, views=views, frames=frames, stride=stride, size=size
        )
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
    # On another device the weights cannot be shared.
    same = next(given.parameters()).device == torch.device(device)
    return replace(opened, model=shared_copy(given) if same else copy.deepcopy(given))
