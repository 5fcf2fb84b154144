"""Groups on SeaweedFS that race, are killed at each store call, and lose the store, in small; bench has it in full."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import needs

needs.library("obstore")

from bench.common.program import command, environment

pytestmark = [pytest.mark.slow, needs.programs("weed")]


def test_rounds_go_on_and_nothing_is_lost_or_counted_twice(tmp_path: Path) -> None:
    words = command(
        "bench.chaos.environment.site_rounds", "--part", "races,kills,away", "--rounds", "60", "--calls", "5", "--out",
        str(tmp_path / "rounds.jsonl"),
    )  # fmt: skip
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
