"""A worker's holdings when the crew of its job changes: counts, begins again, gives up, takes over. Owns no socket.

Runs in the trainer thread, between rounds. What is done to the holdings is `machine/worker/reassignment.py`.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core.pytree import Array
from flegel.core.shard import Shard, make_shard
from flegel.datasets import scale
from flegel.machine.worker import reassignment
from flegel.machine.worker.point_store import PointStore
from flegel.machine.worker.worker import PointsReassigned
from flegel.messages import (
    AssignPoints,
    GiveUpPoints,
    ListPoints,
    LoadShard,
    PointsAssigned,
    PointsGivenUp,
    PointsListed,
    ResetPoints,
    Tending,
)
from flegel.runtime.worker.current_hook import inside
from flegel.runtime.worker.row_sources import open_ids


class PointReassigner:
    """Knows where the rows of a job are and what its points look like."""

    def __init__(self, load: LoadShard, algorithm: Algorithm, layout: str, scaling: tuple[Array, ...]) -> None:
        self._load, self._algorithm, self._layout, self._scaling = load, algorithm, layout, scaling
        self._rng = np.random.default_rng([load.seed, load.index, load.count])

    def tend(self, holdings: PointStore, order: Tending, arrays: tuple[Array, ...]) -> PointsReassigned:
        match order:
            case ListPoints(rows=rows):
                return PointsReassigned(
                    PointsListed(**reassignment.summary(holdings)), (reassignment.census(holdings, rows),)
                )
            case ResetPoints():
                reassignment.reset(holdings, lambda points: self._states(points, holdings.shares[0].columns))
                return PointsReassigned(None)
            case GiveUpPoints(points=points):
                gone = reassignment.part(holdings, points)
                return PointsReassigned(PointsGivenUp(**reassignment.summary(holdings)), gone)
            case AssignPoints():
                self._adopt(holdings, order, arrays)
                return PointsReassigned(PointsAssigned(**reassignment.summary(holdings)))

    def _adopt(self, holdings: PointStore, order: AssignPoints, arrays: tuple[Array, ...]) -> None:
        ids = arrays[0]
        if not order.visited:
            ids = self._rng.permutation(ids)  # numbers come in the order of the data, which may be sorted
            reassignment.adopt(
                holdings, self._share(ids, self._states(len(ids), holdings.shares[0].columns)), order.passes
            )
        else:
            _, states, halted, passes, anew = arrays
            own = np.array(states)  # what came over the wire is read-only
            reassignment.inherit(holdings, self._share(ids, own), halted, passes, anew)

    def _share(self, ids: Array, states: Array) -> Shard:
        features, labels, found = open_ids(self._load.source, ids)
        if self._scaling:
            features = scale.apply(features, scale.Scaling(*self._scaling))
        return make_shard(features, labels if self._algorithm.supervised else None, states, self._layout, found)

    def _states(self, points: int, columns: int) -> Array:
        with inside("initState"):
            return self._algorithm.initState(points, columns, self._rng)
