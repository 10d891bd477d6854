"""Batching, several methods on the same clips, and decoding ahead."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sta
from backbones import BACKBONES
from sta.backbones.zoo.spec import ClipSpec
from sta.inference import scoring
from sta.inference.clip_model import Classifier
from sta.inference.scoring import score_samples
from sta.video import ViewSpec, prefetch, read_views
from sta.video.lists import Entry
from sta.video.prefetch import Sample, prefetch_clips
from video_files import make

VIDEOMAE = next(b for b in BACKBONES if b.name == "videomae")
SPEC = ViewSpec(frames=8, stride=2, size=32, temporal=2, spatial=1)
CLIP = ClipSpec(SPEC, "TCHW")


def clips(views: int, value: int) -> np.ndarray:
    return np.full((views, 2, 4, 4, 3), value, dtype=np.uint8)


def value_scores(batch):
    """Scores that tell which clip they are of: its pixel value, and twice that."""
    values = batch.reshape(len(batch), -1).mean(axis=1)
    return np.stack([values, 2 * values])[..., None], np.array([1.0, 2.0]) * len(batch)


@given(
    views=st.lists(st.integers(0, 6), max_size=12),
    batch_size=st.integers(1, 9),
)
def test_every_video_gets_its_own_scores_in_order_whatever_the_batches(views, batch_size):
    samples = [
        Sample(f"{i}", clips(n, i + 1) if n else None, i, None if n else "broken")
        for i, n in enumerate(views)
    ]
    sizes: list[int] = []

    def score(batch):
        sizes.append(len(batch))
        return value_scores(batch)

    results = list(score_samples(iter(samples), score, batch_size))
    assert [result.path for result in results] == [str(i) for i in range(len(views))]
    for i, (n, result) in enumerate(zip(views, results, strict=True)):
        if n == 0:
            assert result.scores is None
            assert result.error == "broken"
            continue
        np.testing.assert_allclose(result.scores, [[i + 1], [2 * (i + 1)]])
        np.testing.assert_allclose(result.seconds, [n, 2 * n])
        assert result.views == n
    assert sum(sizes) == sum(views)
    assert all(size == batch_size for size in sizes[:-1])


def test_results_come_as_soon_as_they_are_there():
    def samples():
        yield Sample("a", clips(2, 1))
        yield Sample("b", None, None, "broken")
        pytest.fail("the second video was asked for before the first was given out")

    results = score_samples(samples(), value_scores, 2)
    assert next(results).path == "a"


def test_nan_is_an_error_of_that_video():
    def score(batch):
        scores, seconds = value_scores(batch)
        scores[0, batch[:, 0, 0, 0, 0] == 7] = np.nan
        return scores, seconds

    good, bad = score_samples([Sample("a", clips(1, 5)), Sample("b", clips(2, 7))], score, 8)
    assert good.error is None
    assert bad.scores is None
    assert "NaN" in bad.error


@pytest.mark.parametrize(
    "config",
    [
        sta.RLTConfig(),
        sta.RLTConfig(buckets=(20, 64)),
        sta.FrameDifferenceConfig(budget="auto", threshold=0.1),
        sta.STAConfig(budget="auto", threshold=0.01, temporal="pixels", combine="both"),
    ],
    ids=str,
)
def test_batches_are_of_clips_that_keep_as_many_tokens(config):
    """Still clips and busy ones in turn, two views each, and a video that cannot be read."""
    generator = np.random.default_rng(0)
    busy = generator.integers(0, 256, (16, 2, 8, 32, 32, 3), dtype=np.uint8)
    busy[::2] = busy[::2, :, :1]
    samples = [Sample(f"{i}", views, i) for i, views in enumerate(busy)]
    samples.insert(3, Sample("bad", None, None, "broken"))
    seen = []

    class Watched(Classifier):
        def __call__(self, batch):
            made = super().__call__(batch)
            seen.append([len(row.unique()) for row in sta.kept(self.model)[0]])
            return made

    model = Watched(VIDEOMAE.make(), CLIP, (None, config))
    results = list(score_samples(iter(samples), model, 4))
    assert [len(set(lengths)) for lengths in seen] == [1] * 8
    assert {lengths[0] for lengths in seen} == {16, 64}
    assert [result.path for result in results] == ["0", "1", "2", "bad", *map(str, range(3, 16))]
    for views, result in zip(busy, (one for one in results if not one.error), strict=True):
        alone = Classifier.__call__(model, views)[0].mean(axis=1)
        np.testing.assert_allclose(result.scores, alone, atol=1e-6)


def test_clips_wait_for_like_ones_for_a_few_batches_only():
    taken = []

    def samples():
        for i in range(40):
            taken.append(i)
            yield Sample(f"{i}", clips(1, i))

    def score(batch):
        return value_scores(batch)

    score.lengths = lambda batch: list(batch[:, 0, 0, 0, 0])
    results = score_samples(samples(), score, 2)
    next(results)
    assert len(taken) == 2 * scoring.AHEAD


@pytest.mark.parametrize("config", [None, sta.STAConfig(r=4), sta.DenseConfig()], ids=str)
def test_clips_that_keep_as_many_do_not_wait(config):
    assert Classifier(VIDEOMAE.make(), CLIP, (config,)).lengths is None


def test_a_choice_after_a_block_is_not_made_beforehand():
    late = sta.STAConfig(
        budget="auto", threshold=0.01, temporal="place", combine="both", blocks=(1,)
    )
    assert Classifier(VIDEOMAE.make(), CLIP, (late,)).lengths is None


def test_a_batch_size_must_be_positive():
    with pytest.raises(ValueError, match="batch_size=0"):
        next(score_samples([Sample("a", clips(1, 1))], value_scores, 0))


def test_a_classifier_is_the_model_under_each_method():
    model = VIDEOMAE.make()
    configs = (None, sta.STAConfig(r=4), sta.RandomConfig(r=4))
    classifier = Classifier(VIDEOMAE.make(), CLIP, configs)
    batch = np.random.default_rng(0).integers(0, 256, (3, 8, 32, 32, 3), dtype=np.uint8)
    scores, seconds = classifier(batch)
    assert scores.shape == (3, 3, 5)
    assert (seconds > 0).all()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (CLIP.mean, CLIP.std))
    pixels = (torch.from_numpy(batch).permute(0, 1, 4, 2, 3) / 255 - mean) / std
    for config, found in zip(configs, scores, strict=True):
        if config is not None:
            sta.apply(model, config)
        with torch.no_grad():
            expected = model(pixels).logits.softmax(-1)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    again, _ = classifier(batch)
    np.testing.assert_array_equal(again, scores)


def test_gflops_fall_with_r():
    classifier = Classifier(VIDEOMAE.make(), CLIP, [None, sta.STAConfig(r=4), sta.STAConfig(r=8)])
    counts = classifier.gflops()
    assert counts[0] > counts[1] > counts[2] > 0


def test_a_method_that_does_not_fit_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="r=99"):
        Classifier(VIDEOMAE.make(), CLIP, [None, sta.STAConfig(r=99)])


def test_torchvision_layout():
    class Swin(torch.nn.Module):
        def forward(self, x):
            assert x.shape == (2, 3, 4, 6, 6)
            return x.mean(dim=(2, 3, 4))

    batch = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 6, 3), dtype=np.uint8)
    classifier = Classifier(Swin(), ClipSpec(SPEC, "CTHW", mean=(0, 0, 0), std=(1, 1, 1)), ())
    means = classifier.clip.pixels(batch).mean(dim=(2, 3, 4)).numpy()
    np.testing.assert_allclose(means, batch.mean(axis=(1, 2, 3)) / 255, rtol=1e-4)


# Decoding ahead


def test_videos_come_in_order_with_errors_in_their_place(tmp_path):
    files = [make(tmp_path / f"{i}.mp4", 20 + 7 * i) for i in range(5)]
    (tmp_path / "bad.mp4").write_text("no video")
    sources = [*files[:2], tmp_path / "bad.mp4", *files[2:], tmp_path / "none.mp4"]
    entries = [Entry(f"video {i}", str(source), i) for i, source in enumerate(sources)]
    samples = list(prefetch_clips(entries, SPEC, workers=2))
    assert [(s.path, s.label) for s in samples] == [(e.path, e.label) for e in entries]
    assert [s.error is None for s in samples] == [True, True, False, True, True, True, False]
    for entry, sample in zip(entries, samples, strict=True):
        if sample.error is None:
            np.testing.assert_array_equal(sample.clips, read_views(entry.source, SPEC).clips())


def test_decoding_runs_ahead_but_not_away(tmp_path):
    path = str(make(tmp_path / "a.mp4", 20))
    taken: list[int] = []

    def entries():
        for i in range(30):
            taken.append(i)
            yield Entry(str(i), path)

    samples = prefetch_clips(entries(), SPEC, workers=2, ahead=4)
    next(samples)
    assert len(taken) == 4
    next(samples)
    assert len(taken) == 5
    samples.close()  # in the middle: nothing is left running
    assert not [t for t in threading.enumerate() if t.name.startswith("decode")]


def test_decoding_goes_on_while_the_model_works(monkeypatch):
    def slow(decoder, entry):
        time.sleep(0.4)
        return Sample(entry.path, clips(1, 1))

    monkeypatch.setattr(prefetch, "decode_entry", slow)
    samples = prefetch_clips([Entry(str(i), "") for i in range(4)], SPEC, workers=1, ahead=4)
    next(samples)
    time.sleep(1.8)  # the model at work, as long as decoding the other three takes
    start = time.monotonic()
    assert len(list(samples)) == 3
    assert time.monotonic() - start < 0.4
