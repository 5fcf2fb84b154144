"""A recount of points: every point is counted, whatever lies beside it in its tile."""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.shard import Shard, make_shard
from flegel.machine.audit.recount import Recount
from flegel.runtime.backends.numba.backend import BACKEND


class FirstVisits(Algorithm):
    """Counts points whose state says that they were never visited."""

    layout = "tiles"

    def kernel(self, shard: Shard):  # type: ignore[no-untyped-def]
        def run(shard, parameter, aggregator, start, end, iteration, flag):  # type: ignore[no-untyped-def]
            aggregator[0] += (shard.state_rows()[start:end] == -1).sum()
            return end

        return run


def unvisited(points: int) -> np.ndarray:
    return np.full((points, 1), -1, np.int32)


def test_points_behind_a_shorter_last_tile_are_counted() -> None:
    shards = [make_shard(np.zeros((points, 2)), None, unvisited(points), "tiles") for points in (100, 128, 70)]
    assert len({shard.state.shape for shard in shards}) == 1, "all have two tiles, with 36, 64 and 6 points in the last"
    theta, empty = np.zeros(1), np.zeros(1)
    kernel = BACKEND.build(FirstVisits(), shards[0], theta, empty, interpret=False)
    recount = Recount(FirstVisits(), kernel, theta, empty, unvisited)
    (counted,) = recount._sum([(shard, 0, shard.points) for shard in shards], pytree.flatten(theta))
    assert counted[0] == 100 + 128 + 70
