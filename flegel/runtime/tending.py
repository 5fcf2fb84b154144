"""A worker's holdings when the crew of its job changes: counts, begins again, gives up, takes over. Owns no socket.

Runs in the trainer thread, between rounds. What is done to the holdings is `machine/estate.py`.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Algorithm
from flegel.datasets import scale
from flegel.machine import estate
from flegel.machine.holdings import Holdings
from flegel.machine.worker import Tended
from flegel.messages import Adopt, Adopted, Census, Held, Load, Part, Parted, Reset, Tending
from flegel.runtime.hooks import inside
from flegel.runtime.rows import open_ids
from flegel.share import Share, make_share
from flegel.tree import Array


class Tender:
    """Knows where the rows of a job are and what its points look like."""

    def __init__(self, load: Load, algorithm: Algorithm, layout: str, scaling: tuple[Array, ...]) -> None:
        self._load, self._algorithm, self._layout, self._scaling = load, algorithm, layout, scaling
        self._rng = np.random.default_rng([load.seed, load.index, load.count])

    def tend(self, holdings: Holdings, order: Tending, arrays: tuple[Array, ...]) -> Tended:
        match order:
            case Census(rows=rows):
                return Tended(Held(**estate.summary(holdings)), (estate.census(holdings, rows),))
            case Reset():
                estate.reset(holdings, lambda points: self._states(points, holdings.shares[0].columns))
                return Tended(None)
            case Part(points=points):
                gone = estate.part(holdings, points)
                return Tended(Parted(**estate.summary(holdings)), gone)
            case Adopt():
                self._adopt(holdings, order, arrays)
                return Tended(Adopted(**estate.summary(holdings)))

    def _adopt(self, holdings: Holdings, order: Adopt, arrays: tuple[Array, ...]) -> None:
        ids = arrays[0]
        if not order.visited:
            ids = self._rng.permutation(ids)  # numbers come in the order of the data, which may be sorted
            estate.adopt(holdings, self._share(ids, self._states(len(ids), holdings.shares[0].columns)), order.passes)
        else:
            _, states, halted, passes, anew = arrays
            own = np.array(states)  # what came over the wire is read-only
            estate.inherit(holdings, self._share(ids, own), halted, passes, anew)

    def _share(self, ids: Array, states: Array) -> Share:
        features, labels, found = open_ids(self._load.source, ids)
        if self._scaling:
            features = scale.apply(features, scale.Scaling(*self._scaling))
        return make_share(features, labels if self._algorithm.supervised else None, states, self._layout, found)

    def _states(self, points: int, columns: int) -> Array:
        with inside("initState"):
            return self._algorithm.initState(points, columns, self._rng)
