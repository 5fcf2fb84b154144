"""Clusters whose θ changes once every point has been visited with it: states with turns, which tell that under every
synchronization model. Never reads data or a clock."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flegel.algorithm import Algorithm
from flegel.algorithms.every_point import ALL_SEEN
from flegel.algorithms.kmeans.point import reassign
from flegel.core.pytree import Array
from flegel.core.shard import SparseRow

WEIGHT_ROUNDING = 1e-9  # part of the weight of all points: sums of weights that should be 0


class TurnSums(NamedTuple):
    """As for `KMeans`, per cluster; and what the points of each turn weigh."""

    sums: Array
    counts: Array
    squares: Array
    turns: Array


class PlaceChange(NamedTuple):
    """A point's change from one state (-1: none) to another: cluster · 2 + turn."""

    point: Array | SparseRow
    origin: Array
    last: int
    state: int
    weight: float


class TurnClusters(Algorithm):
    """Base of such clusters: the state of a point is 2 · cluster + turn, -1 before its first visit. θ has a `turn`, 0
    and 1 by turns, another one with each new θ."""

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.full((points, 1), -1, np.int32)

    def aggregate(self, target: TurnSums, change: PlaceChange) -> TurnSums:
        """Add the change of one point."""
        row, origin, last, state, weight = change
        if last == state:
            return target
        old, new = last // 2, state // 2  # -1 // 2 is -1
        target.turns[state % 2] += weight
        if last >= 0:
            target.turns[last % 2] -= weight
        if old != new:
            square = weight * reassign(row, origin, old, new, weight, target.sums)
            target.counts[new] += weight
            target.squares[new] += square
            if old >= 0:
                target.counts[old] -= weight
                target.squares[old] -= square
        return target


def all_visited(sums: TurnSums, total: float, turn: int) -> bool:
    """Every point has been visited with the θ of this turn."""
    seen = float(sums.counts.sum())
    return seen >= total * ALL_SEEN and float(sums.turns[1 - turn]) <= WEIGHT_ROUNDING * seen
