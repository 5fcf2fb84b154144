"""The block kernel of a class whose statistics are constant: points that were not counted yet are given to its
`contributions` some at a time, as arrays of float64: sums of products in the precision of the rows would lose digits
that nothing shows. Computes nothing itself.

The first number of a point's state is 1 once the point is in the statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import DataPoint, Shard, Sparse

COUNTED_AT_ONCE = 2**16
"""Of rows that are given to `contributions` at a time: half a megabyte in float64, which stays in a core's cache while
sums and products are formed of it. Moments of 1,000,000 x 20 rows: with 2**13 and 2**20 numbers 1.2 and 1.5 times as
long."""

NUMBERS_PER_SUM = 4
"""Of rows at least, for each number of the statistics: to add what a block returns then costs less than to form it."""


def counting_kernel(contributions: Callable[..., Tree]) -> Any:
    """A `flegel.declarations.kernels.Kernel`."""

    def kernel(
        shard: Shard, parameter: Tree, aggregator: Tree, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        end, at = min(end, shard.points), start
        sums = sum(array.size for array in pytree.flatten(aggregator))
        several = max(max(COUNTED_AT_ONCE, NUMBERS_PER_SUM * sums) // max(stored_columns(shard), 1), 1)
        theta, room = pytree.presented(parameter), _room(shard, min(several, end - at))
        while at < end and not flag[0]:
            stop = min(at + several, end)
            counted = shard.state[at:stop, 0]
            new = np.flatnonzero(counted == 0) if counted.any() else None
            if new is None or len(new):
                whole = slice(at, stop) if new is None else at + new
                weights = None if shard.weights is None else shard.weights[whole]
                features, labels = _chosen(shard.features, whole, room), shard.labels[whole]
                pytree.add(aggregator, contributions(features, labels, weights, theta))
                counted[:] = 1
            at = stop
        return at

    return kernel


def one_point(algorithm: Any, point: DataPoint, parameter: Tree) -> Tree:
    """`contribution` of a class that defines `contributions`. The engine multiplies by the weight."""
    row: Any = point.features
    if isinstance(row, np.ndarray):
        features: Any = row[None].astype(np.float64)
    else:
        columns = int(row.indices.max(initial=-1)) + 1
        features = Sparse(np.array([0, len(row.indices)]), row.indices, row.values.astype(np.float64), columns)
    return algorithm.contributions(features, np.array([point.label]), None, parameter)


def stored_columns(shard: Shard) -> int:
    """Numbers of a row; of sparse ones the mean, as far as they are stored."""
    if isinstance(shard.features, Sparse):
        return -(-len(shard.features.values) // max(shard.points, 1))
    return shard.columns


def _room(shard: Shard, rows: int) -> Array | None:
    """For rows in float64 where theirs are not: made once, since new memory for each block takes longer than the
    conversion."""
    if isinstance(shard.features, Sparse) or shard.features.dtype == np.float64:
        return None
    return np.empty((max(rows, 0), shard.columns))


def _chosen(features: Array | Sparse, which: Any, room: Array | None) -> Array | Sparse:
    if not isinstance(features, Sparse):
        chosen: Array = features[which]
        if room is None:
            return chosen
        np.copyto(room[: len(chosen)], chosen)
        return room[: len(chosen)]
    if isinstance(which, slice):
        edges = features.indptr[which.start : which.stop + 1]
        inside = slice(int(edges[0]), int(edges[-1]))
        edges, indices, values = edges - edges[0], features.indices[inside], features.values[inside]
    else:
        lengths = np.diff(features.indptr)[which]
        edges = np.concatenate([[0], np.cumsum(lengths)])
        place = np.repeat(features.indptr[which] - edges[:-1], lengths) + np.arange(edges[-1])
        indices, values = features.indices[place], features.values[place]
    return Sparse(edges, indices, np.asarray(values, np.float64), features.columns)
