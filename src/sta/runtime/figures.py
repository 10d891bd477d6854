"""Does an exported model do what the model itself does? Figures on real clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sta.runtime.graph import Graph

#: Largest difference of a logit that passes, as a share of the largest logit (1 if that is less).
TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.1, "int8": 0.5}
#: Pixels are changed by so much of their spread to see which choices hang by a thread.
_ROUNDING = 1e-6
_DRAWS = 2


@dataclass(frozen=True)
class Figures:
    """An exported model beside the model itself.

    Attributes:
        clips: How many were compared.
        difference: The largest of a logit, over clips that kept the same tokens.
        flipped: The same over the other clips.
        scale: The largest logit of the model itself.
        agreement: Share of clips whose best class is the same.
        kept: Per step, the share of the tokens kept by the model that the export keeps, too.
        ties: The same of the model and itself, given pixels changed by a millionth: what it keeps
            of tokens that tie but for rounding is a matter of luck.
    """

    clips: int
    difference: float
    flipped: float
    scale: float
    agreement: float
    kept: tuple[float, ...]
    ties: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest difference of a logit, over all clips."""
        return max(self.difference, self.flipped)

    def failures(self, precision: str, tolerance: float | None = None) -> list[str]:
        """What is outside tolerance, in words; nothing if all is well."""
        share = TOLERANCE[precision] if tolerance is None else tolerance
        allowed = share * max(1.0, self.scale)
        out = []
        # Other tokens are another input: where rounding may flip a tie, only the rest is judged.
        worst = self.difference if precision == "float32" else self.worst
        if not worst <= allowed:
            out.append(f"logits differ by {worst:.3g}, more than {allowed:.3g}")
        if precision != "float32":
            return out
        for step, (same, self_same) in enumerate(zip(self.kept, self.ties, strict=True), 1):
            lost, luck = 1 - same, 1 - self_same
            if lost > max(1e-3, 3 * luck):
                out.append(
                    f"step {step} keeps other tokens ({lost:.2%}) than ties explain ({luck:.2%})"
                )
        return out

    def lines(self) -> list[str]:
        """The figures in words."""
        out = [
            f"clips            {self.clips}",
            f"logits           differ by at most {self.worst:.2e} (largest {self.scale:.3g})",
            f"best class       the same for {self.agreement:.2%} of the clips",
        ]
        for step, (same, luck) in enumerate(zip(self.kept, self.ties, strict=True), 1):
            said = "the same" if same == 1 else f"{same:.3%} the same"
            tie = "" if same == 1 else f" (the model itself, but for rounding: {luck:.3%})"
            out.append(f"kept, step {step}     {said}{tie}")
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
) -> Figures:
    """Run an export and the model itself on the same clips.

    Args:
        model: The model that was exported, with the same method applied.
        run: From pixels to all outputs of the export: logits, then what each step kept.
        batches: Clips in the shape that was exported.
    """
    graph = Graph(model).eval()
    generator = torch.Generator().manual_seed(0)
    rows, kept, ties = [], [], []
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
            ties += _luck(graph, pixels, own, generator)
    logits, given, same = (torch.cat(of) for of in zip(*rows, strict=True))
    off = (logits - given).abs().amax(1)
    steps = [torch.cat(of).mean().item() for of in zip(*kept, strict=True)]
    luck = [torch.cat(of).mean().item() for of in zip(*ties, strict=True)] or [1.0] * len(steps)
    return Figures(
        clips=len(logits),
        difference=off[same].max().item() if bool(same.any()) else 0.0,
        flipped=off[~same].max().item() if not bool(same.all()) else 0.0,
        scale=logits.abs().max().item(),
        agreement=(logits.argmax(1) == given.argmax(1)).double().mean().item(),
        kept=tuple(steps),
        ties=tuple(luck),
    )


def _luck(
    graph: Graph, pixels: Tensor, own: Sequence[Tensor], generator: torch.Generator
) -> list[list[Tensor]]:
    """How far the model agrees with itself when pixels change by next to nothing."""
    out = []
    for _ in range(_DRAWS):
        noise = torch.randn(pixels.shape, generator=generator) * pixels.std() * _ROUNDING
        _, *again = graph(pixels + noise)
        out.append([overlap(a, b) for a, b in zip(own, again, strict=True)])
    return out
