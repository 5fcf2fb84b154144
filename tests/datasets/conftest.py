"""A cache folder of its own for every test, and the way to real data kept beside the project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flegel.wording import wording_for


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FLEGEL_DATA", str(folder))
    return folder


@pytest.fixture
def real_data() -> Path:
    """The folder with real files; tests that need it are skipped where it is absent."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("FLEGEL_TEST_DATA") or root.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; set FLEGEL_TEST_DATA to run this test")
    return folder


@pytest.fixture(autouse=True)
def as_commands_say_it() -> Iterator[None]:
    """Sentences of these tests are those that people at a command line read; tests/test_wording.py has both."""
    with wording_for("command-line"):
        yield
