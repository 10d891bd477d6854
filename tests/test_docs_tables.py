"""Tables of the docs hold what was measured: they are written from the files beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = (f"docs/results/{name}.md" for name in ("real-video", "generated-video", "tables"))
PAGES = ("README.md", "docs/results.md", "docs/performance.md", *RESULTS)


def test_tables_are_those_of_the_measured_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results

    copies = []
    for name in PAGES:
        copies.append(tmp_path / name)
        copies[-1].parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copies[-1])
    tables = results.tables(ROOT / "docs/results")
    unmarked = results.write_pages(copies, tables)
    assert unmarked == []  # every measurement is on a page
    markers = {one["name"] for copy in copies for one in results.MARKED.finditer(copy.read_text())}
    assert markers <= set(tables)  # and every table is measured
    for name, copy in zip(PAGES, copies, strict=True):
        again = "run `python benchmarks/results.py`"
        assert copy.read_text() == (ROOT / name).read_text(), f"{name}: {again}"
