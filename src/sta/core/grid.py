"""Places for tokens."""

from __future__ import annotations

from typing import NamedTuple


class Grid(NamedTuple):
    """Places for tokens: frames x height x width."""

    frames: int
    height: int
    width: int

    @property
    def tokens(self) -> int:
        """Places per frame."""
        return self.height * self.width

    @property
    def frame(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height, self.width
