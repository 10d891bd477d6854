"""The settings of a training run; the defaults are the paper's appendix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sta.methods import Config, make_config

Precision = Literal["no", "fp16", "bf16"]


@dataclass(frozen=True)
class TrainConfig:
    """How a backbone is trained.

    Attributes:
        epochs: Passes over the training clips.
        warmup_epochs: Of them, how many the rate takes to rise; fractions are fine.
        batch: Clips per step and process, repeated ones included.
        base_rate: Learning rate at 256 clips per step; the rate used is scaled to the real number.
        weight_decay: AdamW's, on matrices only.
        label_smoothing: Share of the target that is spread over all classes.
        mixup: Alpha of mixup; 0 turns it off. With both, each batch draws one of the two.
        cutmix: Alpha of cutmix; 0 turns it off.
        randaugment: Magnitude of RandAugment from 0 to 10; 0 turns it off.
        randaugment_noise: Standard deviation of the magnitude.
        repeats: Differently augmented copies of each clip in a batch.
        flip: Chance of a mirrored clip. 0 where left and right are classes.
        colour: Let RandAugment change colours. False where colours are classes.
        clip_norm: Longest gradient; 0 leaves gradients as they are.
        r: Tokens to drop while training, as the method counts them; 0 trains dense.
        method: What chooses them. Of "stts", the scorer is trained with the model.
        precision: ``"no"`` is float32, ``"bf16"`` and ``"fp16"`` are mixed.
        seed: Of the clips' order, the augmentation and a new head.
        workers: Processes that load and augment clips; 0 does it in the training process.
        save_every: Steps between checkpoints, besides one after each epoch; 0 for no more.
        log_every: Steps between lines of the log.
    """

    epochs: int = 100
    warmup_epochs: float = 5.0
    batch: int = 32
    base_rate: float = 1e-3
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    mixup: float = 0.8
    cutmix: float = 1.0
    randaugment: float = 9.0
    randaugment_noise: float = 0.5
    repeats: int = 2
    flip: float = 0.5
    colour: bool = True
    clip_norm: float = 0.0
    r: int = 0
    method: str = "sta"
    precision: Precision = "no"
    seed: int = 0
    workers: int = 0
    save_every: int = 500
    log_every: int = 20

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "repeats", "log_every"):
            self._check(name, getattr(self, name) >= 1, "1 or more")
        at_least_zero = ("warmup_epochs", "base_rate", "weight_decay", "mixup", "cutmix")
        for name in (*at_least_zero, "randaugment_noise", "clip_norm", "r", "workers"):
            self._check(name, getattr(self, name) >= 0, "0 or more")
        for name in ("label_smoothing", "flip"):
            self._check(name, 0 <= getattr(self, name) <= 1, "from 0 to 1")
        self._check("randaugment", 0 <= self.randaugment <= 10, "from 0 to 10")
        self._check("save_every", self.save_every >= 0, "0 or more")
        made = make_config(self.method, self.r)
        if self.method != "sta" and self.r == 0 and made.drops:
            counts = made.r_counts
            raise ValueError(
                f"method={self.method!r} drops nothing with r=0: give r, {counts}, or leave method "
                f"out to train dense"
            )
        self._check("precision", self.precision in get_args(Precision), "no, fp16 or bf16")
        self._check(
            "batch", self.batch % self.repeats == 0, f"a multiple of {self.repeats}, repeats"
        )

    @property
    def pruning(self) -> Config | None:
        """The method that it trains with; None if dense."""
        made = make_config(self.method, self.r)
        return None if made.drops and self.r == 0 else made

    def _check(self, name: str, good: bool, allowed: str) -> None:
        if not good:
            raise ValueError(f"{name}={getattr(self, name)!r} is not possible: use {allowed}")

    def rate(self, processes: int) -> float:
        """The full learning rate, scaled linearly with the clips per step of all processes."""
        return self.base_rate * self.batch * processes / 256
