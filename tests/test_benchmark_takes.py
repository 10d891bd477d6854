"""Takes of one clip are averaged before an interval is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sta.tuning.compare import CompareResult

ROOT = Path(__file__).parents[1]


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/real"))
    import takes

    return takes


def test_takes_of_a_clip_are_one_clip(takes) -> None:
    rng = np.random.default_rng(0)
    clips, count = 200, 4
    names = ["unpruned", "sta", *(f"random, seed {seed}" for seed in range(3))]
    rows = [{"method": name, "r": 0 if name == "unpruned" else 8, "saved": 0.5} for name in names]
    rows[0]["saved"] = None
    done = CompareResult(tuple(rows), "gflops")

    def measured(hits: dict) -> dict[str, dict]:
        return {row["method"]: row for row in takes.rows_of(hits, done)}

    right = {(row["method"], row["r"]): rng.random((clips, 1)) < 0.8 for row in rows}
    once = measured({key: value.astype(float) for key, value in right.items()})
    again = measured({key: value.repeat(count, 1).astype(float) for key, value in right.items()})
    drawn = np.mean([right[name, 8] for name in names[2:]], axis=0)
    expected = (right["sta", 8] - drawn).mean()
    for found in (once, again):
        assert found["sta"]["to_random"] == pytest.approx(expected)
        assert found["random, mean of 3 seeds"]["top1"] == pytest.approx(drawn.mean())
    # The same take four times says no more than once, and not a hair less than it.
    for name in ("top1_low", "difference_high", "to_random_low"):
        assert again["sta"][name] == pytest.approx(once["sta"][name])
    assert (again["sta"]["clips"], again["sta"]["takes"]) == (clips, count)


def test_a_take_is_another_look_at_the_same_clip(takes) -> None:
    import variants

    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (1, 12, 12, 3), dtype=np.uint8).repeat(9, 0)
    for variant in ("aside", "moving"):
        seen = [variants.VARIANTS[variant](frames, seed) for seed in (1, 1, 2)]
        assert seen[0].shape == frames.shape
        np.testing.assert_array_equal(seen[0], seen[1])
        assert (seen[0] != seen[2]).any()
        moves = (np.diff(seen[0].astype(int), axis=0) != 0).any()
        assert moves == (variant == "moving")
