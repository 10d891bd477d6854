"""The models in benchmarks: those of real video, and of digits under a shaking camera. They load
anywhere, and prune."""

import json
import re
import struct
from importlib import import_module
from pathlib import Path

import pytest
import torch
from scipy.stats import binomtest

import sta
from sta.backbones.zoo.video_model import VideoModel
from sta.video.clips import drawn_clips

ROOT = Path(__file__).parents[1]
WEIGHTS = ROOT / "benchmarks/real/weights"
REAL = ROOT.parent / "shared/real"
FOLDERS = sorted(path.parent for path in WEIGHTS.glob("*/config.json"))
GENERATED = sorted(path.parent for path in (ROOT / "benchmarks/weights").glob("*/config.json"))


@pytest.mark.parametrize("folder", [*FOLDERS, *GENERATED], ids=lambda folder: folder.name)
def test_a_folder_is_small_and_says_its_terms(folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10e6
    card = (folder / "README.md").read_text()
    terms = ("No terms apply",) if folder in GENERATED else ("CC BY-NC-SA", "research only")
    assert any(word in card for word in terms)
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    kinds = {value["dtype"] for name, value in header.items() if name != "__metadata__"}
    assert kinds <= {"F16", "I64"}


@pytest.mark.parametrize("folder", [*FOLDERS, *GENERATED], ids=lambda folder: folder.name)
def test_a_model_runs_on_a_few_frames_and_prunes(folder):
    opened = VideoModel.open(folder)
    assert next(opened.model.parameters()).dtype == torch.float32
    clips = opened.pixels(drawn_clips(range(2), opened.clip.views))
    with torch.no_grad():
        whole = opened.model(clips)
        config = sta.STAConfig(r=opened.default_r)
        pruned = sta.apply(opened.model, config)(clips)
    for logits in (getattr(out, "logits", out) for out in (whole, pruned)):
        assert logits.shape == (2, len(opened.class_names))
        assert torch.isfinite(logits).all()
    kept = sta.kept(opened.model)
    assert kept[0].shape[-1] == opened.frame_tokens[0] - opened.default_r


@pytest.mark.parametrize(
    "folder",
    [f for f in (*FOLDERS, *GENERATED) if f.name.startswith("vit")],
    ids=lambda folder: folder.name,
)
def test_transformers_loads_it_as_it_is(folder):
    from transformers import VideoMAEForVideoClassification

    stock = VideoMAEForVideoClassification.from_pretrained(folder)
    ours = sta.load(folder)
    clip = torch.rand(
        1, stock.config.num_frames, 3, stock.config.image_size, stock.config.image_size
    )
    with torch.no_grad():
        assert torch.equal(stock(clip).logits, ours(clip).logits)


@pytest.mark.parametrize(
    "folder", [f for f in FOLDERS if not f.name.endswith("-camera")], ids=lambda folder: folder.name
)
def test_unseen_people_are_understood(folder, tmp_path, monkeypatch):
    if not REAL.is_dir():
        pytest.skip(f"the real clips are not here: {REAL}")
    monkeypatch.syspath_prepend(str(WEIGHTS.parent))
    splits = import_module("splits")
    data = next(name for name in splits.HELD_OUT if name in folder.name)
    splits.write_lists(REAL, tmp_path)
    lines = (tmp_path / f"{data}-val.txt").read_text().splitlines()
    (tmp_path / "some.txt").write_text("\n".join(lines[:: len(lines) // 16][:16]) + "\n")
    result = sta.evaluate(tmp_path / "some.txt", folder, root=REAL, r=0, progress=False)
    (row,) = result.table
    assert row["clips"] == 16
    claim = claimed_accuracy(folder)
    assert claim > 1 / len(VideoModel.open(folder).class_names)
    assert binomtest(round(16 * row["top1"]), 16, claim).pvalue > 0.001


def claimed_accuracy(folder: Path) -> float:
    """Of the unpruned model, by its card: the first share there."""
    found = re.search(r"(\d+\.\d) %", (folder / "README.md").read_text())
    assert found, f"{folder.name}: its card does not say how accurate it is"
    return float(found[1]) / 100


def test_patches_of_another_size_begin_as_they_were(monkeypatch):
    monkeypatch.syspath_prepend(str(WEIGHTS.parent))
    resized = import_module("train").resized_patches
    small = torch.randn(5, 3, 2, 8, 8)
    clip = torch.randn(1, 3, 4, 24, 24)
    twice = clip.repeat_interleave(2, -1).repeat_interleave(2, -2)
    seen = torch.nn.functional.conv3d(twice, resized(small, 16), stride=(2, 16, 16))
    expected = torch.nn.functional.conv3d(clip, small, stride=(2, 8, 8))
    torch.testing.assert_close(seen, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(resized(small, 8), small)
    torch.testing.assert_close(resized(resized(small, 16), 8), small)
