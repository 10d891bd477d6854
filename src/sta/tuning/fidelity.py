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
    """Agreement with the unpruned model on some clips."""

    clips: int  # how many
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
    """Compares methods with the unpruned model on the same clips, each clip once per method."""

    opened: VideoModel  # the model
    # (n, T, H, W, 3) uint8, or pixels as the model itself takes them.
    clips: NDArray[np.uint8] | Tensor
    batch_size: int = 8  # clips per forward
    device: str = "cpu"  # where to run
    _probabilities_of: dict[Config | None, NDArray[np.float64]] = field(
        default_factory=dict, init=False
    )
    _classifier: Classifier = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._classifier = Classifier(self.opened.model, self.opened.clip, device=self.device)

    def __call__(
        self, config: Config, clips: int | None = None, allowed: int | None = None
    ) -> Fidelity:
        """Compare one method on the first clips, until more than `allowed` of them disagree."""
        wanted = len(self.clips) if clips is None else min(clips, len(self.clips))
        done = 0
        while done < wanted:
            done = min(wanted, done + self.batch_size)
            fidelity = self._compare(config, done)
            if allowed is not None and fidelity.clips - fidelity.agree > allowed:
                break
        return fidelity

    def _compare(self, config: Config, clips: int) -> Fidelity:
        ours = self._probabilities(config, clips)
        unpruned = self._probabilities(None, clips)
        agree = int((ours.argmax(1) == unpruned.argmax(1)).sum())
        return Fidelity(clips, agree, float(divergence(unpruned, ours).mean()))

    def divergences(self, config: Config, clips: int) -> NDArray[np.float64]:
        """KL(unpruned || pruned) of each of the first clips."""
        return divergence(self._probabilities(None, clips), self._probabilities(config, clips))

    def _probabilities(self, config: Config | None, clips: int) -> NDArray[np.float64]:
        """Of the first clips, (clips, classes); computed where not known yet."""
        known = self._probabilities_of.get(config)
        have = 0 if known is None else len(known)
        if have < clips:
            self._classifier.configs = (config,)
            try:
                new = self._classifier(self.clips[have:clips])[0][0]  # (clips, classes)
            finally:
                self._classifier.use(None)
            if not np.isfinite(new).all():
                raise ValueError("the model gives NaN scores: are its weights damaged?")
            known = new if known is None else np.concatenate([known, new])
            self._probabilities_of[config] = known
        assert known is not None
        return known[:clips]
