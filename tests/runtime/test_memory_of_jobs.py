"""Warm workers keep nothing of a job that is over: the next one would pay for freeing it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest
from waiting import until

import flegel
from flegel import LocalCluster
from flegel.runtime.transport import shared_memory

pytestmark = pytest.mark.skipif(not shared_memory.ANONYMOUS, reason="memory without a name is Linux's")


def lendable() -> list[str]:
    """What workers of this process have mapped of the memory that shares lie in."""
    found = []
    for child in psutil.Process().children(recursive=True):
        maps = Path(f"/proc/{child.pid}/maps")
        try:
            found += [line for line in maps.read_text().splitlines() if shared_memory.SEGMENT_NAME_PREFIX in line]
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.processes
def test_shares_are_given_back_with_their_job(cluster: LocalCluster, points: np.ndarray) -> None:
    data = np.tile(points, (10, 1))
    result = flegel.run(
        "kmeans", data, workers=3, sync="fsp", straggler="0:8x", max_iterations=40, tolerance=0, cluster=cluster
    )
    assert result.iterations == 40
    assert until(lambda: not lendable()), lendable()
