"""Pictures of what is kept: the mask to the pixel, the scores behind it, strip, film and page."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import sta
from backbones import BACKBONES, seeded
from inference_runs import run
from sta.backbones import find
from sta.backbones.copies import shared_copy
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import VideoModel, load_video_model
from sta.core.schedule import directions
from sta.explain import animation, captions, heat, inspect_clip, page, strip, whiten
from sta.explain.clips import read_clip
from sta.explain.comparable import comparable_config, comparable_configs
from sta.explain.scores import recompute_scores
from sta.explain.style import colour_table
from sta.methods import make_config
from sta.video import VideoError
from sta.video.views import ViewSpec
from video_files import make

NAMES = ("videomae", "vjepa2", "vivit", "swin", "swin-odd")
CLASSIFIERS = [b for b in BACKBONES if b.name in NAMES]


def random_frames(count: int, height: int, width: int) -> np.ndarray:
    """Noise without white, so that every white pixel was made white."""
    return np.random.default_rng(0).integers(0, 255, (count, height, width, 3), dtype=np.uint8)


def opened(model: torch.nn.Module, frames: int, size: int) -> VideoModel:
    layout = "TCHW" if hasattr(model, "config") else "CTHW"
    clip = ClipSpec(ViewSpec(frames=frames, size=size), layout)
    return VideoModel(model, clip, tuple(f"class {i}" for i in range(400)), "vit")


def oblong_videomae() -> torch.nn.Module:
    config = VideoMAEConfig(
        image_size=(24, 40),
        patch_size=8,
        num_frames=6,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=7,
    )
    return VideoMAEForVideoClassification(config)


# Whitening


@pytest.mark.parametrize(
    ("size", "patch", "grid"),
    [
        ((224, 224), (2, 16, 16), (14, 14)),
        ((224, 224), (2, 32, 32), (7, 7)),
        ((96, 160), (1, 8, 16), (12, 10)),
        ((100, 150), (2, 16, 16), (6, 9)),  # a ViT leaves out the pixels beyond whole patches
        ((44, 60), (2, 8, 8), (6, 8)),  # Swin pads: the last patches are cut off
    ],
)
def test_exactly_the_dropped_patches_are_white(size, patch, grid):
    frames = random_frames(5, *size)
    times = -(-5 // patch[0])
    kept = np.random.default_rng(1).random((times, *grid)) < 0.4
    drawn = whiten(frames, kept, patch)
    for t in range(times):
        for i in range(grid[0]):
            for j in range(grid[1]):
                cell = (
                    slice(t * patch[0], (t + 1) * patch[0]),
                    slice(i * patch[1], (i + 1) * patch[1]),
                    slice(j * patch[2], (j + 1) * patch[2]),
                )
                expected = frames[cell] if kept[t, i, j] else np.full_like(frames[cell], 255)
                assert (drawn[cell] == expected).all()
    beyond = (slice(None), slice(grid[0] * patch[1], None))
    assert (drawn[beyond] == frames[beyond]).all()
    assert (drawn[:, :, grid[1] * patch[2] :] == frames[:, :, grid[1] * patch[2] :]).all()


def test_a_models_kept_tokens_stay_visible_and_no_others():
    """From the model's forward to the pixels, not square, and drawn at twice the size."""
    for model, size, patch in (
        (seeded(oblong_videomae)(), (24, 40), 8),
        (next(b for b in BACKBONES if b.name == "swin-odd").make(), (44, 60), 8),
    ):
        clip = random_frames(6, *size)
        shown = clip.repeat(2, axis=1).repeat(2, axis=2)
        inspection = inspect_clip(
            opened(model, 6, size[0]), clip, [sta.STAConfig(r=5)], frames=shown, rounds=1
        )
        first = inspection.methods[0].steps[0]
        drawn = whiten(inspection.frames, first.kept, inspection.patch(first))
        sta.apply(model, sta.STAConfig(r=5))
        pixels = torch.from_numpy(clip)[None].permute(0, 1, 4, 2, 3).float() / 255
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        pixels = (pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1)
        model(pixels if hasattr(model, "config") else pixels.transpose(1, 2))
        columns = -(-size[1] // patch)
        for t, positions in enumerate(sta.kept(model)[0][0].tolist()):
            white = (drawn[2 * t] == 255).all(-1)
            visible = {
                (y // (2 * patch)) * columns + x // (2 * patch)
                for y, x in zip(*np.nonzero(~white), strict=True)
            }
            assert visible == set(positions)
            assert white.sum() > 0


def test_heat_map_colours_follow_the_values():
    frames = random_frames(2, 16, 24)
    values = np.linspace(0, 1, 6, dtype=np.float32).reshape(1, 2, 3)
    values[0, 0, 1] = np.nan
    drawn = heat(frames, values, (2, 8, 8), "viridis")
    assert (drawn[0, :8, :8] == colour_table("viridis")[0]).all()
    assert (drawn[1, 8:, 16:] == colour_table("viridis")[255]).all()
    assert (drawn[0, :8, 8:16] == 238).all()  # no number there


# Scores


@pytest.mark.parametrize("backbone", BACKBONES, ids=str)
def test_scores_explain_what_was_kept(backbone):
    model, clip = backbone.make(), backbone.clip()
    for config in (backbone.config, *backbone.configs):
        sta.apply(model, config)
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        with torch.inference_mode():
            expected = model(clip)
            before = sta.kept(model)
            output, kept, scores = recompute_scores(model, lambda: model(clip))
        assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks
        for name in ("logits", "last_hidden_state"):
            if hasattr(expected, name):
                assert torch.equal(getattr(output, name), getattr(expected, name))
        steps = find(model).steps
        for step, index, known, found in zip(steps, kept, before, scores, strict=True):
            assert torch.equal(index, known)
            if config.method != "sta" or step.drop == 0:
                assert found is None
                continue
            backward = directions(config.order, step.steps)[step.number] == "B"
            start = index.shape[1] - 1 if backward else 0
            there = ~found.score.isnan()
            whole = config.budget != "frame"
            rows = (len(clip), -1) if whole else there.shape  # what competes is in a row
            stays = torch.zeros_like(there).view(rows).scatter(-1, index, True)
            score, present = found.score.view(rows), there.view(rows)
            assert (present | ~stays).all()
            if config.budget == "auto":
                continue  # whatever its score, the first frame stays
            worst_kept = score.where(stays, -torch.inf).amax(-1)
            best_gone = score.where(present & ~stays, torch.inf).amin(-1)
            fine = worst_kept <= best_gone
            if not whole and config.temporal == "chain":
                fine[:, start] = True  # the chain's first frame is pruned by other means
            assert fine.all()
            assert found.semantic[there].min() >= 0
            assert found.semantic[there].max() <= 1
            if config.temporal == "chain":
                total = found.accumulation.nan_to_num().sum(-1)
                # Over the clip, a token counts as much in a frame that has kept many.
                each = there.sum(-1).float() if whole else torch.ones_like(total)
                torch.testing.assert_close(total, each)


# Inspecting a clip


@pytest.mark.parametrize("backbone", CLASSIFIERS, ids=str)
def test_inspection_has_what_the_model_does(backbone):
    model = backbone.make()
    time, height, width = (
        (backbone.shape[0], *backbone.shape[2:])
        if hasattr(model, "config")
        else (backbone.shape[1], *backbone.shape[2:])
    )
    clip = random_frames(time, height, width)
    configs = [backbone.config, sta.RandomConfig(r=backbone.r)]
    model_info = opened(model, time, height)
    inspection = inspect_clip(model_info, clip, configs, rounds=2)
    assert not list(find(model).steps)  # the model itself is left alone
    for config, method in zip(configs, inspection.methods, strict=True):
        for number, step in enumerate(method.steps):
            assert step.kept.shape == backbone.grid(number)
        assert (method.steps[0].kept.sum(axis=(1, 2)) == backbone.grid(0).tokens - config.r).all()
        assert method.gflops < inspection.stock.gflops
        assert method.seconds > 0
        shares = [share for _, share in method.predictions]
        assert len(shares) == 5
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) < 1 + 1e-9
    assert inspection.methods[0].steps[0].scores.keys() == {"semantic", "accumulation", "score"}
    assert not inspection.methods[1].steps[0].scores
    assert inspection.stock.gflops == pytest.approx(sta.gflops(model, (1, *backbone.shape)))


@pytest.mark.parametrize("name", ["videomae", "swin"])
def test_methods_that_drop_nothing_can_be_shown(name, tmp_path):
    backbone = next(b for b in BACKBONES if b.name == name)
    size = backbone.shape[-1]
    clip = random_frames(8, size, size)
    configs = [sta.DenseConfig(), sta.STAConfig(r=0)]
    inspection = inspect_clip(opened(backbone.make(), 8, size), clip, configs, rounds=1)
    for method in inspection.methods:
        assert all(step.kept.all() for step in method.steps)
    strip.save(strip.strip(inspection), tmp_path / "a.png")
    assert "Dense" in page.page(inspection)


def test_a_shared_copy_shares_weights_and_nothing_else():
    model = CLASSIFIERS[0].make()
    other = sta.apply(shared_copy(model), sta.STAConfig(r=4))
    assert not list(find(model).steps)
    ours = dict(model.named_parameters())
    assert all(ours[name] is value for name, value in other.named_parameters())
    clip = CLASSIFIERS[0].clip()
    assert not torch.equal(model(clip).logits, other(clip).logits)


@pytest.mark.parametrize("main", ["sta", "tome", "frame-difference", "random", "released"])
def test_comparable_methods_leave_as_many_tokens(main):
    model, clip = CLASSIFIERS[0].make(), CLASSIFIERS[0].clip(batch=1)
    config = make_config(main, {"tome": 7, "frame-difference": 7}.get(main, 4))
    left = []
    for name in (main, "sta", "random", "tome", "frame-difference", "released"):
        sta.apply(model, config if name == main else comparable_config(model, name, config))
        model(clip)
        left.append(sta.kept(model)[-1][0].numel())
    assert max(left) - min(left) <= 4  # of 64: one token per frame, or per block


def test_a_third_is_dropped_by_default():
    videomae, swin = CLASSIFIERS[0].make(), next(b for b in BACKBONES if b.name == "swin").make()
    assert opened(videomae, 8, 32).default_r == 16 // 3
    assert opened(swin, 8, 64).default_r == 64 // 3


def test_spread_goes_from_first_to_last():
    for count in range(1, 30):
        for most in range(1, 10):
            chosen = captions.spread(count, most)
            assert chosen == sorted(set(chosen))
            assert len(chosen) == min(count, most)
            assert chosen[-1] == count - 1
            assert chosen[0] == 0 or most == 1
            gaps = {b - a for a, b in pairwise(chosen)}
            assert max(gaps, default=0) - min(gaps, default=0) <= 1


# Reading


def test_small_clips_are_shown_larger(tmp_path):
    video = str(make(tmp_path / "v.mp4", 20, 120, 160))
    clip = read_clip(video, ViewSpec(frames=4, stride=2, size=64))
    assert clip.frames.shape == (4, 64, 64, 3)
    assert clip.display.shape == (4, 256, 256, 3)
    means = clip.display.reshape(4, 64, 4, 64, 4, 3).mean(axis=(2, 4))
    assert np.abs(means - clip.frames).mean() < 6  # the same pictures
    cropped = read_clip(video, ViewSpec(frames=4, stride=2, size=64, short_side=80))
    assert (cropped.frames.shape[1], cropped.display.shape[1]) == (64, 256)  # the same cut, larger
    digits = read_clip("digits:3", spec := ViewSpec(frames=16, stride=1, size=64))
    assert (digits.display[:, ::4, ::4] == digits.frames).all()
    assert (read_clip("digits-jitter:3", spec).frames != digits.frames).any()
    with pytest.raises(ValueError, match=r"'-1' is no clip's number; use 0 up"):
        read_clip("digits:-1", spec)
    with pytest.raises(ValueError, match="16 frames of 64 pixels"):
        read_clip("digits", ViewSpec(frames=16, size=224))
    with pytest.raises(VideoError, match="no such file"):
        read_clip(str(tmp_path / "none.mp4"), ViewSpec(frames=4, size=64))


# Strip, film and page


@pytest.fixture(scope="module")
def inspection():
    backbone = CLASSIFIERS[0]
    clip = random_frames(8, 32, 32)
    configs = [sta.STAConfig(r=6), sta.RandomConfig(r=6), sta.ToMeConfig(r=10)]
    shown = clip.repeat(2, axis=1).repeat(2, axis=2)
    return inspect_clip(opened(backbone.make(), 8, 32), clip, configs, frames=shown, rounds=1)


def test_strip_is_written_as_png_and_pdf(inspection, tmp_path):
    drawn = strip.strip(inspection)
    pictures = [picture.pixels for picture in drawn.pictures]
    rows = 1 + 3 + 3 + 4  # the input, then the steps of each method
    assert len(pictures) == rows * 4  # of 8 frames, 2 to a token
    assert (pictures[0] == inspection.frames[0]).all()
    last = inspection.methods[0].steps[-1]
    expected = whiten(inspection.frames, last.kept, inspection.patch(last))
    assert (pictures[3 * 4 + 1] == expected[2]).all()
    texts = " ".join(text.text for text in drawn.texts)
    assert "STA, r = 6" in texts
    assert "10 of 16 tokens" in texts
    assert "frames 3\N{EN DASH}4" in texts
    strip.save(drawn, tmp_path / "a.png")
    assert Image.open(tmp_path / "a.png").width > 500
    for name in ("a.pdf", "b.pdf"):
        strip.save(strip.strip(inspection), tmp_path / name)
    assert (tmp_path / "a.pdf").read_bytes()[:5] == b"%PDF-"
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


def test_fewer_columns(inspection):
    assert len(strip.strip(inspection, columns=2).pictures) == (1 + 3 + 3 + 4) * 2


def test_film_has_every_frame_and_white_is_white(inspection, tmp_path):
    animation.save(inspection, tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames == 8
        film.seek(5)
        picture = np.asarray(film.convert("RGB"))
    animation.save(inspection, tmp_path / "a.webp")
    with Image.open(tmp_path / "a.webp") as film:
        assert film.n_frames == 8
    for path in (tmp_path / "a.mp4", tmp_path / "a.webm"):
        animation.save(inspection, path)
        decoded = read_clip(str(path), ViewSpec(frames=8, stride=1, size=256)).frames
        assert len(decoded) == 8
        assert np.abs(np.diff(decoded.astype(int), axis=0)).mean() > 0.1  # it moves
    # Panels: the input, then the last step of each method.
    made = list(animation.film(inspection))[5]
    last = inspection.methods[0].steps[-1]
    expected = whiten(inspection.frames, last.kept, inspection.patch(last))[5]
    corners = [
        (y, x)
        for y in range(made.shape[0] - 64)
        for x in range(made.shape[1] - 64)
        if made[y, x].tolist() == expected[0, 0].tolist()
        and (made[y : y + 64, x : x + 64] == expected).all()
    ]
    assert len(corners) == 1
    y, x = corners[0]
    white = (expected == 255).all(-1)
    assert (picture[y : y + 64, x : x + 64][white] == 255).all()


def page_data(text: str) -> dict:
    return json.loads(re.search(r'type="application/json">(.*?)</script>', text, re.S)[1])


def test_page_holds_everything_itself(inspection):
    text = page.page(inspection)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", text)
    assert "http://" not in text
    assert "https://" not in text
    data = page_data(text)
    assert len(data["frames"]) == 8
    assert [len(method["steps"]) for method in data["methods"]] == [3, 3, 4]
    assert data["methods"][0]["steps"][0]["maps"].keys() == {"semantic", "accumulation", "score"}
    assert page.page(inspection) == text


@pytest.mark.parametrize(
    ("configs", "expected", "absent"),
    [
        ([sta.STAConfig(r=4)], ["stands out", "mean token of its frame"], "L1 norm"),
        ([sta.STAConfig.paper(4)], ["how much a token carries", "L1 norm"], "mean token"),
        ([sta.STAConfig(r=4), sta.STAConfig.paper(4)], ["semantic norm: how", "mean token"], None),
        ([sta.RandomConfig(r=4)], [], "token"),
    ],
)
def test_captions_explain_the_semantic_score_that_is_shown(configs, expected, absent):
    inspection = inspect_clip(
        opened(CLASSIFIERS[0].make(), 8, 32), random_frames(8, 32, 32), configs, rounds=1
    )
    text = captions.semantic_score(inspection).lower()
    assert all(part.lower() in text for part in expected)
    assert absent is None or absent.lower() not in text
    shown = page_data(page.page(inspection))["explanations"]
    assert shown["semantic"] == captions.semantic_score(inspection)
    assert bool(shown["score"]) == bool(expected)


@pytest.mark.parametrize(
    ("configs", "gone"),
    [
        ([sta.STAConfig(r=4)], "dropped"),
        ([sta.STAConfig(r=4, merge=True)], "merged into others"),
        ([sta.WardConfig(r=4)], "merged into others"),
        ([sta.ToMeConfig(r=4)], "merged into others"),
        ([sta.WardConfig(r=4), sta.STAConfig(r=4)], "dropped or merged into others"),
    ],
)
def test_captions_say_whether_tokens_are_dropped_or_merged(configs, gone):
    shown = opened(CLASSIFIERS[0].make(), 8, 32)
    inspection = inspect_clip(shown, random_frames(8, 32, 32), configs, rounds=1)
    assert captions.white(inspection).startswith(f"White patches are {gone}")
    assert ("never see them" in captions.white(inspection)) == (gone == "dropped")
    assert f"White patches were {gone}." in page.page(inspection)
    assert captions.gone(*inspection.methods[:1]) in gone


def test_captions_explain_the_score_that_ranks():
    for score, start in (("sta", "A (1"), ("temporal", "A alone"), ("semantic", "1 ")):
        inspection = inspect_clip(
            opened(CLASSIFIERS[0].make(), 8, 32),
            random_frames(8, 32, 32),
            [sta.STAConfig(r=4, score=score)],
            rounds=1,
        )
        assert captions.combined_score(inspection).startswith(start)


# From Python


def without_time(data: dict) -> dict:
    """The page's data without what was measured with a clock."""
    for method in (data["stock"], *data["methods"]):
        method["facts"] = [fact for fact in method["facts"] if fact[0] != "Time"]
    return data


def test_show_gives_what_its_command_gives(tmp_path):
    done = run(
        *("show", "digits:3", "--r", 24, "--compare", "random", "--rounds", 1),
        *("--device", "cpu", "--out", tmp_path / "command.html"),
    )
    assert done.exit_code == 0, done.output
    calls = []
    shown = sta.show(
        *("digits:3", "vit-digits"),
        **{"r": 24, "compare": ["random"], "rounds": 1, "device": "cpu"},
        progress=lambda now: calls.append((now.done, now.total)),
    )
    assert calls == [(0, 1), (1, 1)]
    file = shown.save(tmp_path / "new" / "function.html")
    texts = [path.read_text() for path in (tmp_path / "command.html", file)]
    first, second = (without_time(page_data(text)) for text in texts)
    assert first == second
    assert [row["method"] for row in shown.records()] == [
        "Unpruned",
        "STA, r = 24",
        "Random, r = 24",
    ]
    for row in shown.records():
        assert row["method"] in done.output
        assert f"{row['prediction']} ({row['score']:.0%}".removesuffix("%") in done.output
    assert max(map(len, str(shown).splitlines())) <= 80
    assert shown._repr_png_().startswith(b"\x89PNG")


def test_show_takes_a_loaded_model_and_a_clip_in_memory():
    video_model = load_video_model("vit-digits")
    video_model.model.train()
    clip = read_clip("digits:3", video_model.clip.views)
    config = sta.STAConfig(r=24)
    expected = sta.show("digits:3", config=config, rounds=1)
    for model in (video_model.model, video_model):
        shown = sta.show(clip.frames, model, config=config, rounds=1, name="mine")
        assert (shown.frames == expected.frames).all()
        assert shown.clip == "mine"
        for step, known in zip(shown.methods[0].steps, expected.methods[0].steps, strict=True):
            if model is video_model:  # which knows how its pixels were normalised
                assert (step.kept == known.kept).all()
            assert step.kept.shape == known.kept.shape
    assert not list(find(video_model.model).steps)
    assert video_model.model.training  # as it was given
    with pytest.raises(ValueError, match=r"give \(F, H, W, 3\) uint8 RGB"):
        sta.show(clip.frames.astype(np.float32), video_model)


def test_show_tells_configs_of_one_title_apart():
    same = [sta.STAConfig(r=24), sta.STAConfig.paper(24)]
    shown = sta.show("digits:3", config=sta.STAConfig(r=24), compare=same, rounds=1)
    assert [method.config for method in shown.methods] == same
    titles = [method.title for method in shown.methods]
    assert titles == ["STA, r = 24, semantic deviation", "STA, r = 24, semantic norm"]


def test_without_timing_the_same_picture_is_the_same_file(tmp_path):
    for name in ("a", "b"):
        shown = sta.show("digits:3", r=24, rounds=0)
        for ending in ("png", "html"):
            shown.save(tmp_path / f"{name}.{ending}")
    for ending in ("png", "html"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
    assert [row["seconds"] for row in shown.records()] == [None, None]
    assert "as fast" not in captions.cost(shown, shown.methods[0])
    assert '"Time"' not in (tmp_path / "a.html").read_text()
    timed = sta.show("digits:3", r=24, rounds=1)
    assert "as fast" in captions.cost(timed, timed.methods[0])


def test_show_refuses_what_contradicts_itself(tmp_path):
    with pytest.raises(ValueError, match="leave out method and r"):
        sta.show("digits:3", config=sta.STAConfig(r=24), r=8)
    with pytest.raises(ValueError, match="loaded by name"):
        sta.show("digits:3", load_video_model("vit-digits"), random_weights=True)
    shown = sta.show("digits:3", rounds=1)
    with pytest.raises(ValueError, match=r"\.docx.*\.png"):
        shown.save(tmp_path / "a.docx")


# The command


def test_show_writes_pictures_film_and_page(folder, tmp_path):
    video = make(tmp_path / "bars.mp4", 30)
    common = ("show", video, "--model", folder, "--rounds", 1, "--device", "cpu")
    done = run(*common, "--r", 4, "--out", tmp_path / "o", "--html", "--compare", "random", "tome")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == [
        f"bars.{ending}" for ending in ("html", "mp4", "pdf", "png")
    ]
    html = (tmp_path / "o" / "bars.html").read_text()
    assert all(title in html for title in ("STA, r = 4", "Random, r = 4", "ToMe, r = 5"))
    done = run(*common, "--out", tmp_path / "one.gif", "--method", "frame-difference")
    assert done.exit_code == 0, done.output
    assert Image.open(tmp_path / "one.gif").n_frames == 4


def test_show_says_what_is_wrong(folder, tmp_path):
    text = tmp_path / "notes.mp4"
    text.write_text("not a video")
    done = run("show", text, "--model", folder, "--out", tmp_path / "o")
    assert done.exit_code == 1
    assert "notes.mp4: not a video" in done.output
    assert not (tmp_path / "o").exists()
    done = run("show", text, "--model", folder, "--out", tmp_path / "o.docx")
    assert isinstance(done.exception, ValueError)
    assert ".png" in str(done.exception)
    done = run("show", text, "--model", folder, "--r", 99, "--out", tmp_path / "o")
    assert done.exit_code != 0


@pytest.mark.parametrize("name", ["vit-digits", "swin-digits"])
def test_the_sliders_largest_r_is_the_largest_that_works(name):
    opened = load_video_model(name)
    most = opened.largest_r
    sta.gflops(sta.apply(opened.model, sta.STAConfig(r=most)), opened.clip.shape())
    with pytest.raises(ValueError, match=f"use r <= {most}"):
        sta.gflops(sta.apply(opened.model, sta.STAConfig(r=most + 1)), opened.clip.shape())


def test_an_r_that_is_too_large_is_refused_with_one_that_works():
    opened = load_video_model("swin-digits")
    with pytest.raises(ValueError, match="use r <= 31"):
        comparable_configs(opened, "sta", 63)
    assert comparable_configs(opened, "sta", 31)
