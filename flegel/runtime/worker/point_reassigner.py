"""Reads the rows of points that are reassigned to this worker and makes shards of them. Owns no socket.

Runs in the trainer thread, between rounds. What is done to the points is `machine/worker/reassignment.py`.
"""

from __future__ import annotations

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core.key_borders import order_by_key
from flegel.core.pytree import Array
from flegel.core.shard import Shard, make_shard
from flegel.datasets.rows import scale
from flegel.declarations.accepts import RowHooks
from flegel.declarations.optional import hook
from flegel.messages import LoadShard
from flegel.runtime.transport.shared_memory import open_shared
from flegel.runtime.worker.current_hook import EnteredHook
from flegel.runtime.worker.row_sources import open_ids
from flegel.runtime.worker.rows_in_place import OpenArray


class PointReassigner:
    """Knows where the rows of a job are and what its points look like."""

    def __init__(
        self,
        load: LoadShard,
        algorithm: Algorithm,
        layout: str,
        scaling: tuple[Array, ...],
        columns: int,
        open_array: OpenArray = open_shared,
        keys: Array | None = None,
    ) -> None:
        """`layout` of shards, `scaling`: shift and factor of each column, `columns` after that; `open_array` opens
        arrays that another process describes. `keys`: of all rows, where those of one key stay together."""
        self._keys = keys
        self._open_array = open_array
        self._load, self._algorithm, self._layout, self._scaling = load, algorithm, layout, scaling
        self._columns = columns
        self._rng = np.random.default_rng([load.seed, load.index, load.count])

    def unvisited(self, ids: Array) -> Shard:
        """In random order: numbers come in the order of the data, which may be sorted. Rows of one key stay beside
        each other where they are to."""
        ids = self._rng.permutation(ids) if self._keys is None else ids[order_by_key(self._keys[ids], self._rng)]
        return self._shard(ids, self.fresh_states(len(ids)))

    def visited(self, ids: Array, states: Array) -> Shard:
        return self._shard(ids, np.array(states))  # a copy: arrays of a message are read-only

    def fresh_states(self, points: int) -> Array:
        with EnteredHook("initState"):
            return self._algorithm.initState(points, self._columns, self._rng)

    def _shard(self, ids: Array, states: Array) -> Shard:
        rows = open_ids(self._load.source, ids, self._open_array)
        features = scale.apply(rows.features, scale.Scaling(*self._scaling)) if self._scaling else rows.features
        labels = self._algorithm.accepts.kept_labels(rows.labels)
        unit = hook(self._algorithm, RowHooks.unit_rows)()
        return make_shard(features, labels, states, self._layout, rows.ids, weights=rows.weights, unit=unit)
