"""Points that the threads of a team have assigned anew, so that several threads can add them to one set of sums.

Each cluster's points are added in their order by one thread, so the sums have the bits of a visit by one thread.
Imports no compiler.
"""

from __future__ import annotations

import numpy as np

from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array

_BY_CLUSTER = EntryPoint("flegel.algorithms.kmeans.moved_points_kernel", "sort_by_cluster")
ADDED_AT_ONCE = np.empty(0, np.int32)
"""In place of `MovedPoints.clusters` in a call by one thread: points are moved as soon as they are decided."""


class MovedPoints:
    """The new clusters of points; and those that change, by cluster."""

    def __init__(self) -> None:
        self.clusters = ADDED_AT_ONCE
        """By point of the shard, int32: written for points that were decided."""
        self.starts, self.moves = np.zeros(1, np.int64), np.empty(0, np.int64)
        """Where each cluster begins among `moves`, and by cluster its points in their order: twice the number of the
        point, and one more where it leaves the cluster."""
        self._edges: list[int] = [0]

    def make_room(self, points: int) -> bool:
        """For the clusters of so many points; whether there was not enough so far."""
        if len(self.clusters) >= points:
            return False
        self.clusters = np.empty(points, np.int32)
        return True

    def compile(self, state: Array) -> None:
        """What `collect` needs."""
        _BY_CLUSTER(state, self.clusters, 0, 0, self.starts, self.moves)

    def collect(self, state: Array, clusters: int, numbers: float, start: int, end: int) -> int:
        """Sort points `start` to `end` that change, and write their new clusters to their states. Returns in how many
        parts they can be added; `numbers`: of a point, in the mean."""
        rules = active().kmeans
        moved = int(np.count_nonzero(state[start:end, 0] != self.clusters[start:end]))
        self.starts, self.moves = np.zeros(clusters + 1, np.int64), np.empty(2 * moved, np.int64)
        if not moved:
            return 0
        _BY_CLUSTER(state, self.clusters, start, end, self.starts, self.moves)
        total = int(self.starts[-1])
        parts = int(min(max(total * numbers / rules.moved_part_numbers, 1), rules.most_moved_parts))
        inner = np.searchsorted(self.starts, np.arange(1, parts) * total // parts)
        self._edges = np.unique(np.concatenate([[0], inner, [clusters]])).tolist()
        return len(self._edges) - 1

    def part(self, number: int) -> tuple[int, int]:
        """The first cluster of a part, and the one behind its last."""
        return self._edges[number], self._edges[number + 1]
