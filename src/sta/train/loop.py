"""The training loop: any supported backbone, dense or with dropped tokens, on accelerate.

One process or several (``torchrun``, ``accelerate launch``), CPU or GPU, mixed precision. A run
that was stopped goes on from its last checkpoint, on the very clips that would have come next.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, gather_object, set_seed
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import get_cosine_schedule_with_warmup

import sta
from sta.backbones.outputs import logits_of
from sta.backbones.patch import add_learned
from sta.backbones.zoo.video_model import VideoModel
from sta.progress import ProgressArg, Report, reporting, silent
from sta.train.accuracy import answers
from sta.train.augment import ClipAugment, Mix
from sta.train.clips import AugmentedClips, Clips, EpochSampler, collate
from sta.train.head import classes_of
from sta.train.optimizer import parameter_groups
from sta.train.recipe import TrainConfig

STATE = "state"
#: What the model was trained with, beside its weights.
METHOD = "method.json"
#: Settings that may change when a run goes on.
_FREE = {"epochs", "precision", "workers", "save_every", "log_every"}


@dataclass
class TrainState:
    """Where a run stands; accelerate saves and loads it with the model."""

    epoch: int = 0
    step: int = 0  # of the epoch
    loss: float = 0.0  # sum over the epoch's steps so far
    seconds: float = 0.0  # of the epoch's steps so far, without evaluation
    history: list[dict[str, float]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)  # of the recipe
    failed: dict[int, str] = field(default_factory=dict)  # training clips that cannot be read

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def train(
    video_model: VideoModel,
    clips: Clips,
    config: TrainConfig,
    out: str | Path,
    *,
    evaluation: Clips | None = None,
    resume: bool = True,
    progress: ProgressArg = False,
) -> list[dict[str, float]]:
    """Train a model in place and save it to ``out/model``, a folder that `sta.load` takes.

    A clip that cannot be read is named, counted and left out.

    Args:
        video_model: A video classifier with what it expects (`describe` finds that out); with
            ``config.r`` it trains with dropped tokens, and ``model/method.json`` says which.
        clips: What to train on.
        config: The recipe.
        out: Folder of the run: checkpoints, TensorBoard's log, the trained model.
        evaluation: What to measure accuracy on after each epoch, with the same tokens dropped.
        resume: Go on from the run's checkpoint, if there is one; otherwise start anew.
        progress: True for a bar, beside the lines of the log, or a function that is called with a
            `Progress` after every step.

    Returns:
        One row per epoch: ``epoch``, ``loss``, ``seconds``, ``left_out`` (training clips so far
        that could not be read) and, with `evaluation`, ``top1`` and ``evaluation_left_out``.
    """
    trainer = Trainer(video_model, clips, config, Path(out), evaluation)
    if resume:
        trainer.resume()
        if trainer.state.epoch >= config.epochs:
            trainer.accelerator.print(
                f"{out}: all {config.epochs} epochs were done before, nothing is left to train; "
                f"ask for more epochs, use another folder, or start anew without resuming"
            )
    with reporting(progress if trainer.accelerator.is_main_process else False, "steps") as report:
        trainer.report = report
        return trainer.run()


class Trainer:
    """A run of `train` and its parts."""

    def __init__(
        self,
        video_model: VideoModel,
        clips: Clips,
        config: TrainConfig,
        out: Path,
        evaluation: Clips | None,
    ) -> None:
        self.config, self.out, self.evaluation = config, out, evaluation
        self.report: Report = silent
        self.clips, self.video_model, self.clip = clips, video_model, video_model.clip
        self._unread: dict[int, str] = {}  # evaluation clips that cannot be read
        model = video_model.model
        self.accelerator = Accelerator(
            mixed_precision=config.precision,
            log_with="tensorboard",
            project_config=ProjectConfiguration(str(out), logging_dir=str(out / "log")),
        )
        set_seed(config.seed, device_specific=True)
        per_step = config.batch // config.repeats
        if len(clips) < per_step * self.accelerator.num_processes:
            raise ValueError(
                f"{len(clips)} training clips are less than one step of {per_step} in "
                f"{self.accelerator.num_processes} process(es): use a smaller batch or more clips"
            )
        self.method = config.pruning
        self.learned = None
        if self.method is not None:
            self.learned = add_learned(model, self.method)
            sta.apply(model, self.method)
        self.mix = Mix(config, classes_of(model))
        self.sampler = EpochSampler(len(clips), config.seed)
        loader = DataLoader(
            AugmentedClips(clips, ClipAugment(config), config.repeats, config.seed),
            batch_size=per_step,
            sampler=self.sampler,
            collate_fn=collate,
            num_workers=config.workers,
            drop_last=True,
        )
        rate = config.rate(self.accelerator.num_processes)
        optimizer = torch.optim.AdamW(parameter_groups(model, rate, config.weight_decay))
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        warmup = round(config.warmup_epochs * self.steps)
        # Not accelerate's wrapper, which would take as many steps as there are processes.
        self.schedule = get_cosine_schedule_with_warmup(
            self.optimizer, warmup, config.epochs * self.steps
        )
        self.state = TrainState(settings=asdict(config))
        self.accelerator.register_for_checkpointing(self.state, self.schedule)

    @property
    def steps(self) -> int:
        return len(self.loader)

    def resume(self) -> None:
        kept = [path for path in (self.out / STATE, self.out / f"{STATE}.old") if path.is_dir()]
        if kept:
            try:
                self.accelerator.load_state(str(kept[0]))
            except (RuntimeError, KeyError, ValueError, OSError) as error:
                raise ValueError(
                    f"{kept[0]}: the checkpoint does not fit this model, or is damaged; "
                    f"use another folder, or start anew without resuming "
                    f"({str(error).splitlines()[0]})"
                ) from error
            self._same_recipe(kept[0])

    def _same_recipe(self, state: Path) -> None:
        """Refuse to go on with other settings than those of the checkpoint."""
        before, now = self.state.settings, asdict(self.config)
        for name in now.keys() & before.keys() - _FREE:
            if before[name] != now[name]:
                raise ValueError(
                    f"{state}: the run has {name}={before[name]}, not {now[name]}; use the same "
                    f"settings, another folder, or start anew without resuming"
                )
        self.state.settings = now

    def save(self) -> None:
        """Write a checkpoint; a kill in between leaves the last one whole."""
        partial, state = self.out / f"{STATE}.partial", self.out / STATE
        if self.accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self.accelerator.save_state(str(partial))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            old = self.out / f"{STATE}.old"
            if state.exists():
                state.rename(old)
            partial.rename(state)
            shutil.rmtree(old, ignore_errors=True)
        self.accelerator.wait_for_everyone()

    def run(self) -> list[dict[str, float]]:
        settings = {k: v for k, v in asdict(self.config).items() if v is not None}
        self.accelerator.init_trackers("train", config=settings)
        while self.state.epoch < self.config.epochs:
            self._epoch()
            at = self.state
            at.failed = {k: v for part in gather_object([at.failed]) for k, v in part.items()}
            row: dict[str, float] = {
                "epoch": at.epoch,
                "loss": at.loss / self.steps,
                "seconds": at.seconds,
                "left_out": len(at.failed),
            }
            if self.evaluation is not None:
                row["top1"], row["evaluation_left_out"] = self.evaluate()
            at.epoch, at.step, at.loss, at.seconds = at.epoch + 1, 0, 0.0, 0.0
            at.history.append(row)
            self._log({k: v for k, v in row.items() if k != "epoch"}, "epoch", row["epoch"])
            self.save()
        self.accelerator.end_training()
        trained = self.accelerator.unwrap_model(self.model)
        if self.method is not None:
            sta.remove(trained)
        if self.accelerator.is_main_process:
            replace(self.video_model, model=trained).save(self.out / "model")
            if self.method is not None:
                self.method.to_file(self.out / "model" / METHOD)
        return self.state.history

    def _epoch(self) -> None:
        at = self.state
        self.model.train()
        self.sampler.set_epoch(at.epoch)
        recent: list[float] = []
        start = time.perf_counter()
        for videos, labels, failed in self.accelerator.skip_first_batches(self.loader, at.step):
            self._name(failed, self.clips, at.failed)
            rate = self.schedule.get_last_lr()[0]
            recent.append(self._step(videos, labels).item())
            at.step, at.loss = at.step + 1, at.loss + recent[-1]
            at.seconds += time.perf_counter() - start
            done = at.epoch * self.steps + at.step
            self.report(f"loss {recent[-1]:.4g}", done, self.config.epochs * self.steps)
            if done % self.config.log_every == 0:
                mean = sum(recent) / len(recent)
                self._log({"loss": mean, "rate": rate}, "step", done)
                recent = []
            if self.config.save_every and done % self.config.save_every == 0:
                self.save()
            start = time.perf_counter()

    def _step(self, videos: Tensor, labels: Tensor) -> Tensor:
        """One optimizer step; the mean loss of all processes' clips."""
        step = self.state.epoch * self.steps + self.state.step
        # What a step draws (mixup, dropout) is its own, so that a resumed run draws the same.
        entropy = [self.config.seed, step, self.accelerator.process_index]
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))
        if self.learned is not None:
            self.learned.progress = step / (self.config.epochs * self.steps)  # type: ignore[assignment]
        frames = videos.permute(0, 1, 3, 4, 2)  # (B, T, H, W, C)
        pixels, targets = self.mix(self.clip.pixels(frames, str(videos.device)), labels)
        with self.accelerator.autocast():
            loss = F.cross_entropy(logits_of(self.model(pixels)).float(), targets)
        self.accelerator.backward(loss)
        if self.config.clip_norm > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        mean: Tensor = self.accelerator.reduce(loss.detach(), "mean")
        return mean

    def evaluate(self) -> tuple[float, int]:
        """Share of the evaluation clips that are right, of those that can be read; and the rest."""
        assert self.evaluation is not None
        self.model.eval()
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = range(rank, len(self.evaluation), world)
        device = str(self.accelerator.device)
        counts = torch.zeros(2, device=device)  # right, read
        with self.accelerator.autocast():
            for logits, labels, failed in answers(
                self.model, self.clip, self.evaluation, mine, batch=self.config.batch, device=device
            ):
                right = (logits.argmax(-1) == labels).sum()
                counts += torch.stack([right, torch.full_like(right, len(labels))])
                self._name(failed, self.evaluation, self._unread)
        total, read = self.accelerator.reduce(counts, "sum").tolist()
        if not read:
            raise ValueError(
                f"none of the {len(self.evaluation)} evaluation clips can be read; the first: "
                f"{next(iter(self._unread.values()), '')}"
            )
        return total / read, len(self.evaluation) - int(read)

    @staticmethod
    def _name(failed: dict[int, str], clips: Clips, known: dict[int, str]) -> None:
        """Say of each clip once that it is left out, and why."""
        for index in failed.keys() - known.keys():
            name = getattr(clips, "name_of", str)(index)
            print(f"left out: {name}: {failed[index]}", file=sys.stderr, flush=True)
        known.update(failed)

    def _log(self, values: dict[str, float], unit: str, number: float) -> None:
        self.accelerator.log({f"{unit}/{k}": v for k, v in values.items()}, step=int(number))
        text = " ".join(f"{key} {value:.4g}" for key, value in values.items())
        self.accelerator.print(f"{unit} {int(number)}: {text}", flush=True)
