"""Train the embedded models: ``python -m tools.digits.train vit --out runs/vit``.

One process, CPU or GPU. It stops and continues at any time: the training clips are a function of
the step, and weights, averaged weights and optimizer are saved every few minutes.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tools.digits.models import SETTINGS, build
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from transformers import get_cosine_schedule_with_warmup

from sta.backbones.outputs import logits_of
from sta.backbones.zoo.spec import ClipSpec
from sta.backbones.zoo.video_model import describe
from sta.train.optimizer import parameter_groups
from sta.video.digits import CLASS_NAMES, COLOURS, FRAMES, MOTIONS, SIDE, DigitActions
from sta.video.views import ViewSpec

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Recipe:
    """How the embedded models are trained."""

    clips: int = 96_000
    easy: int = 0  # the first so many clips show nothing but the mover
    circling: tuple[int, int] = (0, 0)  # from clip to clip, most show a circling mover alone
    batch: int = 24
    rate: float = 1.2e-3
    warmup: int = 150  # steps
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.95)
    # Position biases are added to attention logits as they are: they must travel far, and Adam's
    # steps are of one size for all.
    position_scale: float = 10.0
    clip_norm: float = 1.0
    average: float = 0.998  # decay of the averaged weights
    seed: int = 0

    @property
    def steps(self) -> int:
        return self.clips // self.batch


def clip_of(model: nn.Module) -> ClipSpec:
    """The clips that a digit-action classifier takes."""
    known = describe(model, class_names=CLASS_NAMES)
    return replace(known.clip, views=ViewSpec(FRAMES, 1, SIDE))


def marginals(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the motion (B, 8) and of the colour (B, 10)."""
    joint = logits.log_softmax(dim=-1).unflatten(-1, (len(MOTIONS), len(COLOURS)))
    return joint.logsumexp(dim=-1), joint.logsumexp(dim=-2)


def factored_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the joint label plus half of each factor's.

    The factors' terms give a gradient long before the model can tell 80 classes apart.
    """
    motion, colour = marginals(logits)
    return (
        F.cross_entropy(logits, labels)
        + 0.5 * F.nll_loss(motion, labels // len(COLOURS))
        + 0.5 * F.nll_loss(colour, labels % len(COLOURS))
    )


def hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Which clips are right in the joint label, the motion and the colour: (3, B)."""
    motion, colour = marginals(logits)
    return torch.stack(
        [
            logits.argmax(-1) == labels,
            motion.argmax(-1) == labels // len(COLOURS),
            colour.argmax(-1) == labels % len(COLOURS),
        ]
    )


class Run:
    """A training run and all of its state."""

    def __init__(self, name: str, out: Path, recipe: Recipe) -> None:
        self.name, self.out, self.recipe = name, out, recipe
        torch.manual_seed(recipe.seed)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = build(name).to(self.device).train()
        self.clip = clip_of(self.model)
        self.averaged = AveragedModel(self.model, avg_fn=self._average)
        groups = parameter_groups(
            self.model, recipe.rate, recipe.weight_decay, recipe.position_scale
        )
        self.optimizer = torch.optim.AdamW(groups, betas=recipe.betas, fused=True)
        self.schedule = get_cosine_schedule_with_warmup(self.optimizer, recipe.warmup, recipe.steps)
        self.step, self.seconds = 0, 0.0
        size = recipe.steps * recipe.batch
        self.data = DigitActions("train", size, seed=recipe.seed)
        self.easy = DigitActions("train", size, seed=recipe.seed, distractors=0)
        self.circles = DigitActions("train", 16 * size, seed=recipe.seed + 1, distractors=0)

    def save(self) -> None:
        """Write everything needed to continue; a kill in between leaves the last one whole."""
        self.out.mkdir(parents=True, exist_ok=True)
        state = {
            "name": self.name,
            "model": self.model.state_dict(),
            "average": self.averaged.module.state_dict(),
            "averaged_steps": int(self.averaged.n_averaged),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "rng": torch.get_rng_state(),
            "step": self.step,
            "seconds": self.seconds,
            "recipe": vars(self.recipe),
        }
        partial = self.out / (CHECKPOINT + ".partial")
        torch.save(state, partial)
        partial.replace(self.out / CHECKPOINT)

    def resume(self) -> None:
        """Continue from the run's checkpoint, if it has one."""
        path = self.out / CHECKPOINT
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["name"] != self.name:
            raise ValueError(
                f"{path} is of {state['name']!r}, not {self.name!r}: use another --out"
            )
        self.model.load_state_dict(state["model"])
        self.averaged.module.load_state_dict(state["average"])
        self.averaged.n_averaged.fill_(state["averaged_steps"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"].cpu())
        self.step, self.seconds = state["step"], state["seconds"]

    def clips(self) -> tuple[Tensor, Tensor]:
        """The clips of the next step, ready for the model, and their labels (B,)."""
        first = self.step * self.recipe.batch
        data = self.easy if first < self.recipe.easy else self.data
        frames, labels = data.batch(range(first, first + self.recipe.batch))
        start, end = self.recipe.circling
        if start <= first < end:
            phase = min(1.0, 1.25 * (first - start) / (end - start))
            circles = self._circling(first)
            part = slice(0, len(circles))
            frames[part], labels[part] = replace(self.circles, phase=phase).batch(circles)
        pixels = self.clip.pixels(frames, str(self.device))
        return pixels, torch.from_numpy(labels).to(self.device)

    def _circling(self, first: int) -> list[int]:
        """Three of four of a batch: which of the circling clips come at this place."""
        place = range(16 * first, 16 * (first + self.recipe.batch))
        wanted = 3 * self.recipe.batch // 4
        motions = [MOTIONS[label // len(COLOURS)] for label in self.circles.labels(place)]
        circling = [i for i, way in zip(place, motions, strict=True) if "clockwise" in way]
        return circling[:wanted]

    def learn(self, pixels: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """One optimizer step; the loss and the hits (3, B) on its clips, seen the first time."""
        logits = logits_of(self.model(pixels))
        loss = factored_loss(logits, target)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.averaged.update_parameters(self.model)
        return loss.detach(), hits(logits.detach(), target)

    def _average(self, average: Tensor, value: Tensor, steps: Tensor | int) -> Tensor:
        # The early steps are forgotten faster, so that the average is of use at any time.
        decay = min(self.recipe.average, int(steps) / (int(steps) + 10))
        return average.lerp(value, 1 - decay)

    def train(self, save_every: float = 180.0, log_every: int = 25) -> None:
        """Train to the end of the recipe, from wherever the run stands."""
        saved = time.monotonic()
        losses, right = [], []
        started = time.monotonic()
        while self.step < self.recipe.steps:
            before = time.monotonic()
            loss, hit = self.learn(*self.clips())
            self.seconds += time.monotonic() - before
            losses.append(loss)
            right.append(hit.float().mean(1))
            if self.step % log_every == 0:
                joint, motion, colour = torch.stack(right).mean(0).tolist()
                speed = len(losses) * self.recipe.batch / (time.monotonic() - started)
                print(
                    f"{time.strftime('%H:%M:%S')} {self.name} clips {self.step * self.recipe.batch}"
                    f" loss {torch.stack(losses).mean().item():.3f} joint {joint:.3f}"
                    f" motion {motion:.3f} colour {colour:.3f}"
                    f" rate {self.schedule.get_last_lr()[0]:.2e} {speed:.1f} clips/s",
                    flush=True,
                )
                losses, right, started = [], [], time.monotonic()
            if time.monotonic() - saved > save_every:
                self.save()
                saved = time.monotonic()
        self.save()


def main(argv: list[str] | None = None) -> None:
    """Train one of the embedded models; run again to continue."""
    parser = argparse.ArgumentParser(prog="python -m tools.digits.train", description=__doc__)
    parser.add_argument("model", choices=sorted(SETTINGS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--clips", type=int, default=Recipe.clips)
    parser.add_argument(
        "--easy",
        type=int,
        default=Recipe.easy,
        help="the first so many clips show nothing but the mover; a Swin does not take off without",
    )
    parser.add_argument(
        "--circling",
        type=int,
        nargs=2,
        default=Recipe.circling,
        metavar=("FROM", "TO"),
        help="between these clips, three of four show a circling mover alone, at first always at "
        "the top of its circle half-way: without, a ViT does not learn which way circles go",
    )
    parser.add_argument("--batch", type=int, default=Recipe.batch, help="clips per step")
    parser.add_argument("--rate", type=float, default=Recipe.rate, help="highest learning rate")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    recipe = Recipe(args.clips, args.easy, tuple(args.circling), args.batch, args.rate)
    run = Run(args.model, args.out, recipe)
    run.resume()
    print(f"{args.model}: step {run.step} of {run.recipe.steps}", flush=True)
    run.train()


if __name__ == "__main__":
    main()
