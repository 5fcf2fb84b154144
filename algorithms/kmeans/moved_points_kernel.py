"""The compiled part of `moved_points`. Called through it."""

from __future__ import annotations

import numpy as np

from flegel.core.code_cache import njit
from flegel.core.pytree import Array


@njit(nogil=True, cache=True, error_model="numpy")
def sort_by_cluster(state: Array, clusters: Array, start: int, end: int, starts: Array, moves: Array) -> None:
    """Points whose new cluster is not that of their state, by cluster and in their order: first counted (`starts`, of
    zeros, as many as clusters and one more), then written to `moves`. States take the new clusters."""
    for i in range(start, end):
        old, new = state[i, 0], clusters[i]
        if old != new:
            starts[new + 1] += 1
            if old >= 0:
                starts[old + 1] += 1
    places = np.empty(starts.size, np.int64)
    for j in range(1, starts.size):
        starts[j] += starts[j - 1]
        places[j - 1] = starts[j - 1]
    for i in range(start, end):
        old, new = state[i, 0], clusters[i]
        if old != new:
            moves[places[new]] = 2 * i
            places[new] += 1
            if old >= 0:
                moves[places[old]] = 2 * i + 1
                places[old] += 1
            state[i, 0] = new
