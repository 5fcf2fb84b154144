"""Blocks of the pages that need libraries beyond those of `make test` run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.typed_pages import PAGES, ROOT, run, typed

LAUNCHED = ROOT / "docs" / "launch"
"""Pages that start another system: tests/extras/launch does so, too, and these are typed at night."""


@pytest.mark.processes
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, id=str(p.relative_to(ROOT)), marks=[pytest.mark.slow] if p.parent == LAUNCHED else [])
        for p in PAGES
        if typed(p, True, "extras")
    ],
)
def test_blocks_of_a_page_run_as_typed(page: Path, tmp_path: Path) -> None:
    run(page, typed(page, True, "extras"), tmp_path)
