"""A newcomer's first hour in its fast form: everything that is typed ends as the pages promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.processes
def test_the_first_hour_shows_no_differences() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.first_hour", "--fast"],
        cwd=Path(__file__).resolve().parents[1], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("\n0 differences\n"), done.stdout + done.stderr
