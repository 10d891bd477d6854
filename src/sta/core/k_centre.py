"""K-centre sampling: farthest points first."""

from __future__ import annotations

import torch
from torch import Tensor

from sta.core.difference import tubelets
from sta.core.noise import noise
from sta.core.tokens import Grid


def position_patches(
    pixels: Tensor, tubelet: tuple[int, int, int], *, grid: Grid, time: float, space: float
) -> Tensor:
    """Each patch as a point: its pixels, then its weighted frame, row and column, (B, T * N, P).

    `time` weighs the frame, `space` row and column.
    """
    patches = tubelets(pixels, tubelet).permute(0, 1, 4, 6, 2, 3, 5, 7)
    patches = patches.flatten(4).flatten(1, 3)  # (B, T * N, P)
    axes = (
        weight * torch.arange(size, device=pixels.device).float()
        for weight, size in zip((time, space, space), grid, strict=True)
    )
    places = torch.cartesian_prod(*axes)
    return torch.cat([patches, places.expand(patches.shape[0], -1, -1)], -1)


def k_centres(points: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Numbers of the points that are taken, in that order: (B, n, P) -> (B, count).

    The first is drawn at random, the same for every clip; each next one is the point whose nearest
    taken one is farthest (ties: the lower number).
    """
    batch, rows, _ = points.shape
    # Squared distances from one matrix product; centred, so that little is lost to rounding.
    points = points - points.mean(1, keepdim=True)
    squares = points.square().sum(-1)  # (B, n)
    distances = squares.unsqueeze(2) + squares.unsqueeze(1) - 2 * points @ points.transpose(1, 2)
    first = noise((rows,), seed=seed, device=points.device).argmin()
    taken = [first.expand(batch)]
    nearest = torch.full_like(squares, torch.inf)
    for _ in range(count - 1):
        row = taken[-1].view(-1, 1, 1).expand(-1, 1, rows)
        nearest = torch.minimum(nearest, distances.gather(1, row).squeeze(1))
        nearest = nearest.scatter(1, taken[-1].unsqueeze(1), -torch.inf)  # never twice
        taken.append(nearest.argmax(-1))
    return torch.stack(taken, 1)
