"""From rows of predictions to accuracy, agreement and speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sta.stats import wilson

Row = Mapping[str, Any]
Method = tuple[str, int]  # name and r


@dataclass
class Tally:
    """Counts of one method."""

    clips: int = 0
    failed: int = 0
    top1: int = 0
    top5: int = 0
    agree: int = 0
    compared: int = 0
    views: int = 0
    seconds: float = 0.0
    factors: dict[str, int] = field(default_factory=dict)

    def add(self, row: Row, unpruned: Row | None) -> None:
        """Count one video's row; `unpruned` is the same video's row without pruning."""
        if row["error"] is not None:
            self.failed += 1
            return
        self.clips += 1
        self.top1 += row["classes"][0] == row["label"]
        self.top5 += row["label"] in row["classes"][:5]
        self.views += row["views"]
        self.seconds += row["seconds"]
        for name, hit in (row.get("factors") or {}).items():
            self.factors[name] = self.factors.get(name, 0) + bool(hit)
        if unpruned is not None and unpruned["error"] is None:
            self.compared += 1
            self.agree += row["classes"][0] == unpruned["classes"][0]

    def summary(self) -> dict[str, Any]:
        """Shares (0..1) and speed; None where nothing was counted."""
        low, high = wilson(self.top1, self.clips) if self.clips else (None, None)
        return {
            "clips_per_s": self.views / self.seconds if self.seconds else None,
            "clips": self.clips,
            "top1": _share(self.top1, self.clips),
            "top1_low": low,
            "top1_high": high,
            "top5": _share(self.top5, self.clips),
            "agreement": _share(self.agree, self.compared),
            **{name: _share(hits, self.clips) for name, hits in self.factors.items()},
            "failed": self.failed,
        }


def summarise(rows: Iterable[Row]) -> dict[Method, dict[str, Any]]:
    """The summary of each method, from eval's rows (those of one video stand together)."""
    tallies: dict[Method, Tally] = {}
    for _, group in groupby(rows, key=lambda row: row["path"]):
        video = list(group)
        unpruned = next((row for row in video if is_unpruned(row["method"], row["r"])), None)
        for row in video:
            tallies.setdefault((row["method"], row["r"]), Tally()).add(row, unpruned)
    return {method: tally.summary() for method, tally in tallies.items()}


def is_unpruned(method: str, r: int) -> bool:
    """Whether this is the model as it is: any method that drops nothing but the dense path."""
    return r == 0 and method != "dense"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
