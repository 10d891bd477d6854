"""A model that names classes: uint8 clips go in, class probabilities come out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sta.inference.clip_model import ClipModel


@dataclass
class Classifier(ClipModel):
    """Runs one model under several methods on the same clips; see `ClipModel`.

    Attributes:
        logits: Give the logits, too, after the probabilities.
    """

    logits: bool = False

    def __call__(
        self, clips: NDArray[np.uint8] | Tensor
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities ``(methods, B, classes)`` of clips, see `outputs`, and seconds.

        With `logits`, those follow in the last axis: ``(methods, B, 2 * classes)``.
        """
        made, seconds = self.outputs(clips)
        logits = torch.stack(made).double()  # (methods, B, classes)
        shares = logits.softmax(dim=-1)
        scores = torch.cat((shares, logits), dim=-1) if self.logits else shares
        return scores.cpu().numpy(), np.array(seconds)
