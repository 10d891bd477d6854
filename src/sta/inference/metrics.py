"""From rows of predictions to accuracy, agreement and speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sta.measure.matching import Method
from sta.measure.stats import nats, paired_difference, wilson
from sta.methods import METHODS, has_r
from sta.methods.base import AUTO

Row = Mapping[str, Any]


@dataclass
class Tally:
    """Counts of one method."""

    clips: int = 0
    failed: int = 0
    top1: int = 0
    top5: int = 0
    agree: int = 0
    compared: int = 0
    gained: int = 0
    lost: int = 0
    paired: int = 0
    views: int = 0
    seconds: float = 0.0
    kl: float | None = 0.0
    factors: dict[str, int] = field(default_factory=dict)

    def add(self, row: Row, unpruned: Row | None, reference: Row | None) -> None:
        """Count one video's row, beside its row without pruning and the one to compare with."""
        if row["error"] is not None:
            self.failed += 1
            return
        self.clips += 1
        self.top1 += _right(row)
        self.top5 += row["label"] in row["classes"][:5]
        self.views += row["views"]
        self.seconds += row["seconds"]
        for name, hit in (row.get("factors") or {}).items():
            self.factors[name] = self.factors.get(name, 0) + bool(hit)
        if unpruned is not None and unpruned["error"] is None:
            self.compared += 1
            self.agree += row["classes"][0] == unpruned["classes"][0]
            apart = row.get("kl")  # rows of versions before 0.1 have none
            self.kl = None if apart is None or self.kl is None else self.kl + apart
        if reference is not None and reference["error"] is None:
            self.paired += 1
            self.gained += _right(row) and not _right(reference)
            self.lost += _right(reference) and not _right(row)

    def summary(self) -> dict[str, Any]:
        """Shares (0..1) with their intervals, and speed; None where nothing was counted."""
        return {
            "clips_per_s": self.views / self.seconds if self.seconds else None,
            "clips": self.clips,
            **_share("top1", self.top1, self.clips),
            **_share("top5", self.top5, self.clips),
            **_share("agreement", self.agree, self.compared),
            "kl": self.kl / self.compared if self.compared and self.kl is not None else None,
            **self._difference(),
            **{
                column: value
                for name, hits in self.factors.items()
                for column, value in _share(name, hits, self.clips).items()
            },
            "failed": self.failed,
        }

    def _difference(self) -> dict[str, float | None]:
        if not self.paired:
            return _with_interval("difference", None, (None, None))
        share = (self.gained - self.lost) / self.paired
        interval = paired_difference(self.gained, self.lost, self.paired)
        return _with_interval("difference", share, interval)


def summarise(rows: Iterable[Row], reference: Method | None = None) -> dict[Method, dict[str, Any]]:
    """The summary of each method, from eval's rows (those of one video stand together).

    Accuracy is compared with the `reference` method's; None is the unpruned model.
    """
    tallies: dict[Method, Tally] = {}
    for _, group in groupby(rows, key=lambda row: row["path"]):
        video = {(row["method"], row["r"]): row for row in group}
        unpruned = next((row for method, row in video.items() if is_unpruned(*method)), None)
        other = unpruned if reference is None else video.get(reference)
        for method, row in video.items():
            compared = None if row is other else other  # with itself there is no difference
            tallies.setdefault(method, Tally()).add(row, unpruned, compared)
    return {method: tally.summary() for method, tally in tallies.items()}


def is_unpruned(method: str, r: int) -> bool:
    """Whether this is the model as it is: any method that drops nothing but the dense path."""
    if r or method.endswith(AUTO):
        return False
    return method not in METHODS or has_r(METHODS[method])


def follows_clip(method: str) -> bool:
    """Whether a method of a table has no fixed cost; its GFLOPs are the most a clip can cost."""
    return method.endswith(AUTO) or getattr(METHODS.get(method), "follows_clip", None) is True


#: Columns that are shares; those with an interval beside them.
_SHARES = ("top5", "agreement", "motion", "colour")
_WITH_INTERVAL = ("top1", "difference")


def columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Summaries for people: heads, and the cells of each row; ends of intervals are in a cell."""
    names = [n for n in rows[0] if n != "failed" and not n.endswith(("_low", "_high"))]
    heads = {"clips_per_s": "clips/s", **{n: f"{n}, %" for n in (*_WITH_INTERVAL, *_SHARES)}}
    return [heads.get(n, n) for n in names], [[cell(row, n) for n in names] for row in rows]


def cell(row: Row, name: str) -> str:
    """A value of a summary for people: shares in percent."""
    value = row.get(name)
    if value is None:
        return "-"
    if name in _WITH_INTERVAL or name.startswith("to_"):
        sign = "" if name == "top1" else "+"
        low, high = (100 * row[f"{name}_{end}"] for end in ("low", "high"))
        return f"{100 * value:{sign}.2f} [{low:{sign}.2f}, {high:{sign}.2f}]"
    if name in _SHARES:
        return f"{100 * value:.2f}"
    if name == "gflops":
        return f"{'<= ' * follows_clip(row.get('method', ''))}{value:.4g}"
    if name == "kl":
        return nats(value)
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _right(row: Row) -> bool:
    return bool(row["classes"][0] == row["label"])


def _share(name: str, hits: int, total: int) -> dict[str, float | None]:
    """A share and its 95 % interval, as columns."""
    if not total:
        return _with_interval(name, None, (None, None))
    return _with_interval(name, hits / total, wilson(hits, total))


def _with_interval(
    name: str, value: float | None, interval: tuple[float | None, float | None]
) -> dict[str, float | None]:
    low, high = interval
    return {name: value, f"{name}_low": low, f"{name}_high": high}
