"""One visit to one point in k-means, dense or sparse: the nearest centroid, and the move from cluster to cluster.

Used by the per-point hooks, interpreted and compiled alike; the block kernels do the same for many points.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.core.overloads import is_array, overload
from flegel.core.pytree import Array
from flegel.core.shard import SparseRow


def nearest_centroid(row: Array | SparseRow, centroids: Array, last: int) -> int:
    """The number of the nearest centroid; `last` where that is as near, so that a point moves only to a nearer one."""
    if isinstance(row, SparseRow):
        scores = 0.5 * (centroids**2).sum(axis=1) - centroids[:, row.indices] @ row.values.astype(np.float64)
    else:
        scores = ((row - centroids) ** 2).sum(axis=1)
    best = int(scores.argmin())
    return int(last) if last >= 0 and scores[last] == scores[best] else best


def reassign(row: Array | SparseRow, origin: Array, last: int, nearest: int, weight: float, sums: Array) -> float:
    """Take a point of this weight from one cluster's sum to another's; its squared distance from the origin, which is 0
    for sparse rows."""
    if isinstance(row, SparseRow):
        np.add.at(sums[nearest], row.indices, weight * row.values)
        if last >= 0:
            np.subtract.at(sums[last], row.indices, weight * row.values)
        return float((row.values.astype(np.float64) ** 2).sum())
    away = row - origin
    sums[nearest] += weight * away
    if last >= 0:
        sums[last] -= weight * away
    return float((away * away).sum())


@overload(nearest_centroid)
def _nearest_centroid(row: Any, centroids: Any, last: Any) -> Any:
    """The compiled nearest centroid of one row, dense or sparse; a tie keeps the `last` one."""

    def dense(row: Any, centroids: Any, last: Any) -> Any:
        nearest, least = 0, np.inf
        for j in range(centroids.shape[0]):
            distance = 0.0
            for t in range(row.shape[0]):
                difference = row[t] - centroids[j, t]
                distance += difference * difference
            if distance < least or (distance == least and j == last):
                nearest, least = j, distance
        return nearest

    def sparse(row: Any, centroids: Any, last: Any) -> Any:
        nearest, least = 0, np.inf
        for j in range(centroids.shape[0]):
            score = 0.0
            for t in range(centroids.shape[1]):
                score += 0.5 * centroids[j, t] * centroids[j, t]
            for t in range(row.indices.shape[0]):
                score -= row.values[t] * centroids[j, row.indices[t]]
            if score < least or (score == least and j == last):
                nearest, least = j, score
        return nearest

    return dense if is_array(row) else sparse


@overload(reassign)
def _reassign(row: Any, origin: Any, last: Any, nearest: Any, weight: Any, sums: Any) -> Any:
    """Compiled: move a row from cluster `last` (-1: none) to `nearest` in the sums; returns its squared distance to the
    origin."""

    def dense(row: Any, origin: Any, last: Any, nearest: Any, weight: Any, sums: Any) -> Any:
        square = 0.0
        for t in range(row.shape[0]):
            away = row[t] - origin[t]
            square += away * away
            sums[nearest, t] += weight * away
            if last >= 0:
                sums[last, t] -= weight * away
        return square

    def sparse(row: Any, origin: Any, last: Any, nearest: Any, weight: Any, sums: Any) -> Any:
        square = 0.0
        for t in range(row.indices.shape[0]):
            value = np.float64(row.values[t])
            square += value * value
            sums[nearest, row.indices[t]] += weight * value
            if last >= 0:
                sums[last, row.indices[t]] -= weight * value
        return square

    return dense if is_array(row) else sparse
