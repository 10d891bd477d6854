"""A model's answers on labelled clips, batch by batch: what every accuracy here is counted from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from sta.backbones.outputs import logits_of
from sta.backbones.zoo.spec import ClipSpec
from sta.train.clips import Clips
from sta.video.decode import VideoError


@torch.no_grad()
def answers(
    model: nn.Module,
    clip: ClipSpec,
    clips: Clips,
    indices: Sequence[int],
    *,
    batch: int = 32,
    device: str = "cpu",
) -> Iterator[tuple[Tensor, Tensor, dict[int, str]]]:
    """Logits (B, classes) and labels (B,) of clips, and what is wrong with those left out."""
    for start in range(0, len(indices), batch):
        frames, labels, failed = [], [], {}
        for index in indices[start : start + batch]:
            try:
                video, label = clips[index]
            except VideoError as error:
                failed[index] = str(error)
                continue
            frames.append(torch.from_numpy(video))
            labels.append(label)
        if frames:
            logits = logits_of(model(clip.pixels(torch.stack(frames), device)))
            yield logits, torch.tensor(labels, device=logits.device), failed
        else:
            yield torch.empty(0, 1, device=device), torch.empty(0, device=device), failed
