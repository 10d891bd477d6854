"""`sta.fit`: the score with the least divergence from the unpruned model, without labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sta
from sta.backbones.zoo.video_model import VideoModel
from sta.methods import STAConfig
from sta.tuning.fidelity import Fidelity, FidelityMeter
from sta.tuning.fit import successive_halving
from sta.tuning.scores import choices
from sta.video.clips import drawn_clips


def test_the_least_divergence_of_all_candidates_wins() -> None:
    """On the embedded model, whose scores differ; against every candidate on every clip."""
    opened = VideoModel.open("vit-digits")
    clips = drawn_clips(range(3), opened.clip.views, "train")
    result = sta.fit(clips, opened, r=24, progress=False)
    found = {}
    pixels = opened.pixels(clips)
    with torch.no_grad():
        whole = opened.model(pixels).logits.double().log_softmax(-1)
        scores = [sta.STAConfig(**{**vars(base), "r": 24}) for base in choices(opened.model)]
        for config in (*scores, *(one.config for one in result.scores[:1])):
            ours = sta.apply(opened.model, config)(pixels).logits.double().log_softmax(-1)
            found[config] = float((whole.exp() * (whole - ours)).sum(-1).mean())
    assert result.config == min(found, key=lambda config: found[config])
    assert result.scores[0].fidelity.kl == pytest.approx(min(found.values()), rel=1e-3)
    assert len(result.records()) == len(scores) + 1  # Ward merging is among them
    (ward,) = (one.config for one in result.scores if one.config.method == "ward")
    costs = [sta.gflops(sta.apply(opened.model, c), opened.clip.shape()) for c in (ward, scores[0])]
    assert 0.93 * costs[1] < costs[0] <= 1.001 * costs[1]  # one r less costs more than that
    assert "chosen" in str(result)
    assert sta.STAConfig.fit(opened, clips, r=24) == min(scores, key=lambda config: found[config])


def test_it_is_the_same_again_and_takes_pixels_too(opened: VideoModel) -> None:
    clips = drawn_clips(range(6), opened.clip.views)
    first = sta.fit(clips, opened, saved=0.3, clips=5, progress=False)
    assert first.clips == 5
    assert first.gflops == pytest.approx(0.7 * first.unpruned, rel=0.1)
    assert sta.fit(clips, opened, saved=0.3, clips=5, progress=False) == first
    pixels = opened.clip.pixels(clips)
    again = sta.fit(pixels, opened, saved=0.3, clips=5, progress=False)
    assert [one.name for one in again.scores] == [one.name for one in first.scores]
    assert STAConfig.fit(opened.model, torch.from_numpy(clips), r=first.config.r).r > 0
    for wrong, says in (
        ({"saved": 0.5, "r": 4}, "give one of them"),
        ({"saved": 2.0}, "between 0 and 1"),
        ({"r": 10_000}, "use r from 1 to"),
        ({"saved": 0.99}, "can save 0.[0-9]+ at most"),
        ({"methods": ["sta", "wardd"]}, "wardd.*unknown; use some of .*ward"),
    ):
        with pytest.raises(ValueError, match=says):
            sta.fit(clips, opened, **wrong)  # type: ignore[arg-type]


class Made(FidelityMeter):
    """Divergences that a test makes up: that of a seed, with a little noise."""

    def __init__(self, noise: float) -> None:
        self.noise, self.asked = noise, []

    def divergences(self, config: STAConfig, clips: int) -> np.ndarray:  # type: ignore[override]
        drawn = np.random.default_rng(config.seed).normal(size=64)[:clips]
        return config.seed + self.noise * drawn

    def __call__(self, config: STAConfig, clips: int) -> Fidelity:  # type: ignore[override]
        self.asked.append((config.seed, clips))
        return Fidelity(clips, 0, float(self.divergences(config, clips).mean()))


def test_few_clips_tell_most_scores_apart_and_more_the_best() -> None:
    configs = [STAConfig(r=5, seed=seed) for seed in (4, 2, 7, 1, 9, 3, 8)]
    clear = Made(0.01)
    ranked = successive_halving(configs, clear, 32)
    assert [one.config.seed for one in ranked] == [1, 2, 3, 4, 7, 8, 9]
    # All on three clips, the best third on nine; then the first is ahead beyond doubt.
    assert [clips for _, clips in clear.asked] == [3] * 7 + [9] * 3
    unclear = Made(40.0)
    successive_halving(configs, unclear, 32)
    assert [clips for _, clips in unclear.asked][:10] == [3] * 7 + [9] * 3
    # The last two on eight more at a time, until one is ahead.
    assert [clips for _, clips in unclear.asked][10:] == [17, 17, 25, 25, 32, 32]
