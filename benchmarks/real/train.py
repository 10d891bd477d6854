"""Train a small stock video transformer on real video, dense (or with STA, to compare).

    sta data cache lsa64.txt --root FOLDER --out cache/lsa64 --size 128 --frames 32
    python benchmarks/real/train.py cache/lsa64 --data lsa64 --size 56 --init vit-digits --out a
    python benchmarks/real/train.py cache/lsa64 --data lsa64 --init a/model --out b

One process; run it again to go on where it was stopped. Little data teach nothing to random
weights, so training starts from a model that knows motion (`--init`), on a coarse grid (`--size
56`: 7 x 7 tokens a frame, nine times as fast), and goes on from there on the paper's grid (112
pixels by patches of 8: 14 x 14). VideoMAE's fixed positions number tokens through, so another grid
numbers them anew: on the coarse grid tokens get the positions of the fine grid's places, and coming
from vit-digits the table changes over from its own positions while the model learns (`--blend`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from camera import WINDOW, Path2D, crop, moving, still
from safetensors.torch import load_file, save_file
from splits import CLASS_NAMES, held_out
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import (
    AttentionInterface,
    VideoMAEConfig,
    VideoMAEForVideoClassification,
    get_cosine_schedule_with_warmup,
)

import sta
from sta.backbones.outputs import logits_of
from sta.backbones.zoo import swin
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import VideoModel
from sta.video.cache import open_cache
from sta.video.views import ViewSpec

FRAMES, FINE = 16, 14
#: Mean and deviation of the pixels, where ImageNet's do not suit: ARID is filmed in the dark.
PIXELS = {"arid": ((0.07,) * 3, (0.06,) * 3)}
MIRRORED = {"arid"}  # sets whose labels a mirror does not change


class Clips:
    """Clips of a cache, augmented or as they are tested."""

    def __init__(self, cache: Path, data: str, size: int) -> None:
        videos = list(open_cache(str(cache)).videos.values())
        self.frames = [np.load(cache / video.file, mmap_mode="r") for video in videos]
        self.labels = torch.tensor([video.label for video in videos])
        self.size = size
        #: Of colours that are added, so that they stand out in the dark no more than elsewhere.
        self.contrast = PIXELS[data][1][0] / 0.225 if data in PIXELS else 1.0
        self.mirrored = data in MIRRORED
        chosen = np.array([held_out(data, video.path) for video in videos])
        self.train, self.val = np.flatnonzero(~chosen), np.flatnonzero(chosen)

    def test(self, index: int, camera: bool) -> Tensor:
        """The test view, (T, 3, S, S), 0..255: the whole square, frames evenly spread."""
        frames = self.frames[index]
        times = len(frames) * np.arange(FRAMES) // FRAMES
        view = still(FRAMES)
        if camera:
            motion = moving(FRAMES, generator(7, index))
            view = Path2D(WINDOW + motion.scale, motion.x, motion.y)
        return crop(self._pixels(frames, times), view, self.size)

    def augmented(self, index: int, draw: torch.Generator, camera: float) -> Tensor:
        """A training view: time, place, size, stretch, turn and colours drawn anew."""

        def between(low: float, high: float) -> float:
            return low + (high - low) * float(torch.rand(1, generator=draw))

        frames = self.frames[index]
        span = between(0.75, 1.0)
        start = between(0, 1 - span)
        jitter = torch.rand(FRAMES, generator=draw).numpy()
        moments = ((np.arange(FRAMES) + jitter) / FRAMES) ** np.exp(between(-0.35, 0.35))
        times = (start + span * moments) * len(frames)
        scale = between(0.74, 1.1)
        room = max(1.03 - scale, 0.02)
        view = still(FRAMES, scale, between(-room, room), between(-room, room))
        if between(0, 1) < camera:
            motion = moving(FRAMES, draw)
            view = Path2D(*(a + b for a, b in zip(view, motion, strict=True)))
        video = self._pixels(frames, np.minimum(times.astype(int), len(frames) - 1))
        stretch, angle = between(0.86, 1.16), between(-0.16, 0.16)
        video = crop(video, view, self.size, stretch=stretch, angle=angle)
        video = video * between(0.7, 1.3)
        video = (video - video.mean()) * between(0.7, 1.3) + video.mean()
        grey = video.mean(1, keepdim=True)
        video = grey + (video - grey) * between(0.6, 1.4)
        most = 12 * self.contrast
        tint = torch.tensor([between(-most, most) for _ in range(3)]).view(1, 3, 1, 1)
        if self.mirrored and between(0, 1) < 0.5:
            video = video.flip(-1)
        video = (video + tint).clamp(0, 255)
        if between(0, 1) < 0.5:  # a patch of one colour hides the same place in all frames
            height, width = (round(between(0.1, 0.35) * self.size) for _ in range(2))
            top, left = round(between(-8, self.size - 8)), round(between(-8, self.size - 8))
            hidden = video[..., max(top, 0) : top + height, max(left, 0) : left + width]
            hidden[:] = between(0, 255) * self.contrast
        return video

    def _pixels(self, frames: np.ndarray, times: np.ndarray) -> Tensor:
        video = torch.from_numpy(np.ascontiguousarray(frames[times])).permute(0, 3, 1, 2).float()
        return F.avg_pool2d(video, 2) if 2 * self.size <= video.shape[-1] else video


def generator(*words: int) -> torch.Generator:
    """Draws that depend on these numbers alone."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))


def positions(side: int, stride: tuple[int, int], grid: int, width: int) -> Tensor:
    """VideoMAE's table for `side` x `side` places a frame that stand for a `grid` x `grid` one."""
    place = (np.arange(side) + 0.5) * grid / side - 0.5
    time = np.arange(FRAMES // 2)
    number = time[:, None, None] * stride[0] + place[:, None] * stride[1] + place
    pair = np.arange(width) // 2
    angle = number.reshape(-1, 1) / np.power(10000, 2 * pair / width)
    table = np.where(np.arange(width) % 2 == 0, np.sin(angle), np.cos(angle))
    return torch.tensor(table, dtype=torch.float32).unsqueeze(0)


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **_: object
) -> tuple[Tensor, None]:
    """Softmax over whole rows in the precision that comes in, a clip at a time: what one clip
    needs stays near the processor. Here in half of the time of all at once."""
    with torch.autocast("cpu", enabled=False):
        scale = query.shape[-1] ** -0.5
        clips = [
            (q * scale @ k.transpose(-1, -2)).softmax(-1) @ v
            for q, k, v in zip(query, key, value, strict=True)
        ]
        return torch.stack(clips).transpose(1, 2).contiguous(), None


ROWS = "rows"
AttentionInterface.register(ROWS, attention)


PATCHES = "videomae.embeddings.patch_embeddings.projection.weight"


def resized_patches(weight: Tensor, patch: int) -> Tensor:
    """An embedding of patches of another size that sees in them what it saw in its own."""
    side = weight.shape[-1]
    mode = "area" if patch < side else "nearest"
    resized = F.interpolate(weight.flatten(0, 1), size=(patch, patch), mode=mode)
    return resized.view(*weight.shape[:3], patch, patch) * (side / patch) ** 2


def build(options: argparse.Namespace) -> VideoModel:
    """A stock model with the weights of `--init` where they fit; the head is new elsewhere."""
    names = CLASS_NAMES[options.data]
    start = VideoModel.open(options.init)
    views = ViewSpec(FRAMES, 1, options.size, 1, 1, "uniform")
    model: nn.Module
    if start.family == "swin":
        model = swin.build({**swin.arguments(start.model), "num_classes": len(names)})
    else:
        config = VideoMAEConfig(
            image_size=options.size,
            patch_size=options.patch,
            num_frames=FRAMES,
            tubelet_size=2,
            hidden_size=options.width,
            num_hidden_layers=options.depth,
            num_attention_heads=options.width // 32,
            intermediate_size=4 * options.width,
            num_labels=len(names),
        )
        model = VideoMAEForVideoClassification(config)
        if options.bfloat16:
            model.set_attn_implementation(ROWS)
    own, given = model.state_dict(), start.model.state_dict()
    if PATCHES in own:
        given[PATCHES] = resized_patches(given[PATCHES], options.patch)
    fitting = {k: v for k, v in given.items() if k in own and v.shape == own[k].shape}
    print(f"{len(fitting)} of {len(own)} tensors from {options.init}")
    model.load_state_dict(fitting, strict=False)
    clip = ClipSpec(views, start.clip.layout, *PIXELS.get(options.data, ()))
    return VideoModel(model.train(), clip, names, start.family)


class Run:
    """A training run and its state."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.options = options
        self.clips = Clips(options.cache, options.data, options.size)
        self.built = build(options)
        self.model = self.built.model
        if self.built.family == "vit":
            side, width = options.size // options.patch, options.width
            self.table = self.before = positions(side, (FINE * FINE, FINE), FINE, width)
            if options.init == "vit-digits":
                self.before = positions(side, (64, 8), 8, width)
        if options.r:
            sta.apply(self.model, sta.STAConfig(r=options.r))
        self.average = AveragedModel(
            self.model, multi_avg_fn=get_ema_multi_avg_fn(options.average), use_buffers=True
        )
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=options.rate, betas=(0.9, 0.95), weight_decay=0.05, fused=True
        )
        self.steps = options.clips // options.batch_size
        self.schedule = get_cosine_schedule_with_warmup(self.optimizer, options.warmup, self.steps)
        self.step = 0

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised clips and targets of each step that is left. Made between the steps: with
        all cores at both in turn, a step takes less than with both at once."""

        def make(step: int) -> tuple[Tensor, Tensor]:
            options, count = self.options, len(self.clips.train)
            numbers = range(step * options.batch_size, (step + 1) * options.batch_size)
            orders = {
                epoch: np.random.default_rng([options.seed, epoch]).permutation(count)
                for epoch in {number // count for number in numbers}
            }
            chosen = [self.clips.train[orders[n // count][n % count]] for n in numbers]
            videos = [
                self.clips.augmented(index, generator(options.seed, number), options.camera)
                for index, number in zip(chosen, numbers, strict=True)
            ]
            return self.normalised(videos), self.clips.labels[chosen]

        yield from map(make, range(self.step, self.steps))

    def normalised(self, videos: Sequence[Tensor]) -> Tensor:
        """Clips (T, 3, S, S), 0..255, as the model takes them."""
        frames_last = torch.stack(list(videos)).permute(0, 1, 3, 4, 2)
        return self.built.clip.pixels(frames_last)

    def place_positions(self) -> None:
        """The table of this step; Swin's positions are relative."""
        if self.built.family == "swin":
            return
        start, end = self.options.blend
        share = min(1.0, max(0.0, (self.step / self.steps - start) / (end - start)))
        table = (1 - share) * self.before + share * self.table
        for model in (self.model, self.average.module):
            model.videomae.embeddings.position_embeddings = table

    def learn(self, pixels: Tensor, labels: Tensor) -> float:
        """One step; mixup, smoothed targets, bfloat16 products."""
        options = self.options
        target = F.one_hot(labels, len(CLASS_NAMES[options.data])).float()
        target = target * (1 - options.smoothing) + options.smoothing / target.shape[1]
        share = float(np.random.default_rng([options.seed, self.step]).beta(0.2, 0.2))
        other = torch.randperm(len(labels), generator=generator(options.seed, self.step, 1))
        pixels = share * pixels + (1 - share) * pixels[other]
        target = share * target + (1 - share) * target[other]
        self.place_positions()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
            logits = logits_of(self.model(pixels))
        loss = -(logits.float().log_softmax(-1) * target).sum(-1).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.step += 1
        self.average.update_parameters(self.model)
        return float(loss.detach())

    @torch.inference_mode()
    def accuracy(self, indices: np.ndarray, camera: bool) -> float:
        """Of the averaged weights."""
        self.place_positions()
        self.average.eval()
        right = 0
        for start in range(0, len(indices), 16):
            chosen = indices[start : start + 16]
            pixels = self.normalised([self.clips.test(int(i), camera) for i in chosen])
            with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bfloat16):
                logits = logits_of(self.average(pixels))
            right += int((logits.argmax(-1) == self.clips.labels[chosen]).sum())
        return right / len(indices)

    def state(self) -> dict[str, object]:
        parts = ("model", "average", "optimizer", "schedule")
        return {"step": self.step, **{part: getattr(self, part).state_dict() for part in parts}}

    def save(self) -> None:
        """All that is needed to go on."""
        file = self.options.out / "checkpoint.pt"
        torch.save(self.state(), file.with_suffix(".partial"))
        file.with_suffix(".partial").replace(file)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        file = self.options.out / "checkpoint.pt"
        if file.is_file():
            state = torch.load(file, weights_only=True)
            self.step = state.pop("step")
            for part, values in state.items():
                getattr(self, part).load_state_dict(values)

    def export(self) -> None:
        """The averaged weights as a folder that `sta.load` takes, stored in float16."""
        folder = self.options.out / "model"
        sta.remove(self.average.module)
        replace(self.built, model=self.average.module).save(folder)
        weights = {
            k: v.half() if v.is_floating_point() else v
            for k, v in load_file(folder / "model.safetensors").items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        about = {"clips": self.steps * self.options.batch_size, "camera": self.options.camera}
        (folder / "training.json").write_text(json.dumps(about) + "\n")

    def train(self) -> None:
        """To the end, with a line every minute and a checkpoint every few."""
        losses, started, said = [], time.monotonic(), time.monotonic()
        part = np.random.default_rng(0).permutation(self.clips.val)[:192]
        for pixels, labels in self.batches():
            losses.append(self.learn(pixels, labels))
            clips = self.step * self.options.batch_size
            if time.monotonic() - said > 60:
                said = time.monotonic()
                speed = len(losses) * self.options.batch_size / (said - started)
                print(f"{clips} clips, loss {np.mean(losses[-50:]):.3f}, {speed:.1f} clips/s")
            if self.step % self.options.check_every == 0 or self.step == self.steps:
                self.save()
                chosen = self.clips.val if self.step == self.steps else part
                for camera in (False, True)[: 1 + (self.options.camera > 0)]:
                    share = self.accuracy(chosen, camera)
                    seen = "moving" if camera else "still"
                    print(f"{clips} clips: {share:.1%} of {len(chosen)}, {seen} camera", flush=True)
        self.export()


def make_parser() -> argparse.ArgumentParser:
    """The options of a training."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cache", type=Path, help="what `sta data cache` made")
    parser.add_argument("--data", choices=CLASS_NAMES, required=True)
    parser.add_argument(
        "--init", required=True, help="vit-digits, swin-digits, or a model's folder"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=112, help="side of a clip in pixels")
    parser.add_argument("--patch", type=int, default=8, help="side of a patch in pixels")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--clips", type=int, default=48_000, help="to train on, in all")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--average", type=float, default=0.998, help="decay of averaged weights")
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--blend", type=float, nargs=2, default=(0.05, 0.4))
    parser.add_argument("--r", type=int, default=0, help="train with STA; 0 is dense")
    parser.add_argument("--camera", type=float, default=0.0, help="share under camera motion")
    parser.add_argument("--bfloat16", action="store_true", help="where the processor has it")
    parser.add_argument("--check-every", type=int, default=150, help="steps")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    options = make_parser().parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run = Run(options)
    run.resume()
    run.train()


if __name__ == "__main__":
    main()
