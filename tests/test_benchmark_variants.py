"""Changed clips are the same wherever and by whatever path they were cached."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

REAL = Path(__file__).parents[1] / "benchmarks/real"


@pytest.mark.parametrize("variant", ["moving", "aside", "shuffled"])
def test_what_is_drawn_follows_the_name_in_the_list(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REAL))
    variants = import_module("variants")
    frames = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)

    def changed(path: str, file: str, take: int = 0) -> np.ndarray:
        cache = tmp_path / f"{path}-{file}-{take}"
        (cache / "frames").mkdir(parents=True)
        np.save(cache / f"frames/{file}.npy", frames)
        video = {"path": path, "file": f"frames/{file}.npy", "height": 16, "width": 16}
        (cache / "index.json").write_text(json.dumps({"videos": [video]}))
        out = tmp_path / f"{path}-{file}-{take}-changed"
        assert variants.make(cache, out, variant, take) == 1
        return np.load(out / video["file"])

    first = changed("a.mp4", "one")
    np.testing.assert_array_equal(first, changed("a.mp4", "other"))
    assert not np.array_equal(first, changed("b.mp4", "one"))
    assert not np.array_equal(first, changed("a.mp4", "one", take=1))
