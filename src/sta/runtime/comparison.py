"""An exported model beside the model itself, on real clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sta.runtime.graph import Graph

#: Largest difference of a logit that passes, as a share of the largest logit (1 if that is less).
TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.1, "int8": 0.5}
#: Pixels are changed by this share of their deviation, to see which choices rounding can change.
_ROUNDING = 1e-6
_DRAWS = 2


@dataclass(frozen=True)
class Comparison:
    """An exported model beside the model itself."""

    clips: int  # how many were compared
    difference: float  # the largest of a logit, over clips that kept the same tokens
    flipped: float  # the same over the other clips
    scale: float  # the largest logit of the model itself
    agreement: float  # share of clips whose best class is the same
    # Per step, the share of the tokens kept by the model that the export keeps, too.
    kept: tuple[float, ...]
    # The same of the model and itself, given pixels changed by a millionth: which of the tokens it
    # keeps whose scores are the same but for rounding is chance.
    noise: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest difference of a logit, over all clips."""
        return max(self.difference, self.flipped)

    def failures(self, precision: str, tolerance: float | None = None) -> list[str]:
        """What is outside the tolerance, a sentence each."""
        share = TOLERANCE[precision] if tolerance is None else tolerance
        allowed = share * max(1.0, self.scale)
        out = []
        # Other tokens are another input: clips on which rounding changed them do not count.
        worst = self.difference if precision == "float32" else self.worst
        if not worst <= allowed:
            out.append(f"logits differ by {worst:.3g}, more than {allowed:.3g}")
        if precision != "float32":
            return out
        for step, (same, self_same) in enumerate(zip(self.kept, self.noise, strict=True), 1):
            other, by_noise = 1 - same, 1 - self_same
            if other > max(1e-3, 3 * by_noise):
                out.append(
                    f"step {step} keeps other tokens ({other:.2%}) than rounding explains "
                    f"({by_noise:.2%})"
                )
        return out

    def lines(self) -> list[str]:
        out = [
            f"clips            {self.clips}",
            f"logits           differ by at most {self.worst:.2e} (largest {self.scale:.3g})",
            f"best class       the same for {self.agreement:.2%} of the clips",
        ]
        for step, (same, self_same) in enumerate(zip(self.kept, self.noise, strict=True), 1):
            share = "the same" if same == 1 else f"{same:.3%} the same"
            noise = "" if same == 1 else f" (the model itself under rounding: {self_same:.3%})"
            out.append(f"kept, step {step}     {share}{noise}")
        if self.flipped > self.difference > 0:
            out.append(f"with the same tokens logits differ by at most {self.difference:.2e}")
        return out


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Share of the indices of `one` that `other` has, too, per clip: (B, ..., K) -> (B,)."""
    size = int(max(one.max(), other.max())) + 1
    marks = [torch.zeros(*k.shape[:-1], size).scatter_(-1, k.long(), 1.0) for k in (one, other)]
    both = (marks[0] * marks[1]).flatten(1).sum(1)
    return both / marks[0].flatten(1).sum(1)


@torch.no_grad()
def compare(
    model: nn.Module, run: Callable[[Tensor], Sequence[Tensor]], batches: Sequence[Tensor]
) -> Comparison:
    """Run an export and the model itself, with the same method applied, on the same clips.

    `run` gives all outputs of the export: logits, then what each step kept. Batches have the shape
    that was exported.
    """
    graph = Graph(model).eval()
    generator = torch.Generator().manual_seed(0)
    rows, kept, repeated = [], [], []
    for pixels in batches:
        logits, *own = graph(pixels)
        given, *theirs = run(pixels)
        shares = [overlap(a, b) for a, b in zip(own, theirs, strict=True)]
        same = (
            torch.stack([s == 1 for s in shares]).all(0) if shares else logits[:, 0] == logits[:, 0]
        )
        rows.append((logits, given, same))
        kept.append(shares)
        if not bool(same.all()):
            repeated += _with_noise(graph, pixels, own, generator)
    logits, given, same = (torch.cat(of) for of in zip(*rows, strict=True))
    off = (logits - given).abs().amax(1)
    steps = [torch.cat(of).mean().item() for of in zip(*kept, strict=True)]
    noise = [torch.cat(of).mean().item() for of in zip(*repeated, strict=True)]
    return Comparison(
        clips=len(logits),
        difference=off[same].max().item() if bool(same.any()) else 0.0,
        flipped=off[~same].max().item() if not bool(same.all()) else 0.0,
        scale=logits.abs().max().item(),
        agreement=(logits.argmax(1) == given.argmax(1)).double().mean().item(),
        kept=tuple(steps),
        noise=tuple(noise or [1.0] * len(steps)),
    )


def _with_noise(
    graph: Graph, pixels: Tensor, own: Sequence[Tensor], generator: torch.Generator
) -> list[list[Tensor]]:
    """The share of tokens that the model keeps again when pixels change by a millionth."""
    out = []
    for _ in range(_DRAWS):
        noise = torch.randn(pixels.shape, generator=generator) * pixels.std() * _ROUNDING
        _, *again = graph(pixels + noise)
        out.append([overlap(a, b) for a, b in zip(own, again, strict=True)])
    return out
