"""Blocks of the pages that need libraries beyond those of `make test` run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.typed_pages import PAGES, ROOT, run, typed


@pytest.mark.processes
@pytest.mark.parametrize(
    "page", [p for p in PAGES if typed(p, True, extras=True)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_blocks_of_a_page_run_as_typed(page: Path, tmp_path: Path) -> None:
    run(page, typed(page, large=True, extras=True), tmp_path)
