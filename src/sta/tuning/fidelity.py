"""How close a pruned model stays to the unpruned one, on clips without labels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sta.backbones.zoo.video_model import VideoModel
from sta.inference.clip_model import Classifier
from sta.measure.stats import divergence, wilson, wilson_low
from sta.methods import Config


@dataclass(frozen=True)
class Fidelity:
    """Agreement with the unpruned model on some clips; or on videos, by the mean of their views."""

    clips: int  # how many; of several views each, how many videos
    agree: int  # on how many the best class is the same
    kl: float  # mean divergence of the probabilities, KL(unpruned || pruned), in nats

    @property
    def agreement(self) -> float:
        """Share of the clips on which the best class is the same."""
        return self.agree / self.clips

    @property
    def low(self) -> float:
        """What the agreement on all videos is at least, with 95 % confidence."""
        return wilson_low(self.agree, self.clips)

    @property
    def interval(self) -> tuple[float, float]:
        """The two-sided 95 % interval of the agreement."""
        return wilson(self.agree, self.clips)


@dataclass
class FidelityMeter:
    """Compares methods with the unpruned model on the same clips, each clip once per method.

    Views of one video say much the same, so what is compared and counted are videos, by the mean of
    their views' probabilities, as `sta.predict` gives it.
    """

    opened: VideoModel  # the model
    # (n, T, H, W, 3) uint8, or pixels as the model itself takes them.
    clips: NDArray[np.uint8] | Tensor
    batch_size: int = 8  # clips per forward
    device: str = "cpu"  # where to run
    views: int = 1  # clips of each video, which stand together
    _probabilities_of: dict[Config | None, NDArray[np.float64]] = field(
        default_factory=dict, init=False
    )
    _classifier: Classifier = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._classifier = Classifier(self.opened.model, self.opened.clip, device=self.device)

    def __call__(
        self, config: Config, videos: int | None = None, allowed: int | None = None
    ) -> Fidelity:
        """Compare one method on the first videos, until more than `allowed` of them disagree."""
        there = len(self.clips) // self.views
        wanted = there if videos is None else min(videos, there)
        done = 0
        while done < wanted:
            done = min(wanted, done + max(1, self.batch_size // self.views))
            fidelity = self._compare(config, done)
            if allowed is not None and fidelity.clips - fidelity.agree > allowed:
                break
        return fidelity

    def _compare(self, config: Config, videos: int) -> Fidelity:
        ours = self._probabilities(config, videos)
        unpruned = self._probabilities(None, videos)
        agree = int((ours.argmax(1) == unpruned.argmax(1)).sum())
        return Fidelity(videos, agree, float(divergence(unpruned, ours).mean()))

    def divergences(self, config: Config, videos: int) -> NDArray[np.float64]:
        """KL(unpruned || pruned) of each of the first videos."""
        return divergence(self._probabilities(None, videos), self._probabilities(config, videos))

    def _probabilities(self, config: Config | None, videos: int) -> NDArray[np.float64]:
        """Of the first videos, (videos, classes); computed where not known yet."""
        known = self._probabilities_of.get(config)
        have = 0 if known is None else len(known)
        if have < videos:
            self._classifier.configs = (config,)
            clips, size = self.clips[have * self.views : videos * self.views], self.batch_size
            parts = (clips[at : at + size] for at in range(0, len(clips), size))
            try:
                new = np.concatenate([self._classifier(part)[0][0] for part in parts])
            finally:
                self._classifier.use(None)
            if not np.isfinite(new).all():
                raise ValueError("the model gives NaN scores: are its weights damaged?")
            new = new.reshape(-1, self.views, new.shape[1]).mean(1)
            known = new if known is None else np.concatenate([known, new])
            self._probabilities_of[config] = known
        assert known is not None
        return known[:videos]
