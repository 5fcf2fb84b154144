"""The block kernel of k-means over sparse rows. Called through `sparse`."""

from __future__ import annotations

import numpy as np

from flegel.configuration.compiled import kernel_settings
from flegel.core.atomic_flag import raised
from flegel.core.code_cache import njit
from flegel.core.pytree import Array

LOOK = kernel_settings().sparse_rows_between_stop_reads


@njit(nogil=True, cache=True, error_model="numpy")
def train(
    indptr: Array,
    indices: Array,
    values: Array,
    state: Array,
    weights: Array | None,
    by_column: Array,
    half: Array,
    sums: Array,
    counts: Array,
    squares: Array,
    clusters: Array,
    start: int,
    end: int,
    flag: Array,
) -> int:
    """`by_column` holds the centroids column by column, so that an entry reads k numbers beside each other; `half` is
    half of their squared lengths. `clusters`: by point, where points are decided alone and moved later; or empty."""
    if start < end and raised(flag):
        return start
    k = len(half)
    scores = np.empty(k)
    for i in range(start, end):
        if (i - start) % LOOK == 0 and raised(flag):
            return i
        scores[:] = half
        square = 0.0
        for t in range(indptr[i], indptr[i + 1]):
            value = np.float64(values[t])
            square += value * value
            row = by_column[indices[t]]
            for j in range(k):
                scores[j] -= value * row[j]
        last, new = state[i, 0], 0
        for j in range(1, k):
            if scores[j] < scores[new]:
                new = j
        stays = new == last or (last >= 0 and not scores[new] < scores[last])
        if clusters.size:
            clusters[i] = last if stays else new
            continue
        if stays:
            continue
        weight = 1.0 if weights is None else weights[i]
        for t in range(indptr[i], indptr[i + 1]):
            sums[new, indices[t]] += weight * values[t]
        counts[new] += weight
        squares[new] += weight * square
        if last >= 0:
            for t in range(indptr[i], indptr[i + 1]):
                sums[last, indices[t]] -= weight * values[t]
            counts[last] -= weight
            squares[last] -= weight * square
        state[i, 0] = new
    return end


@njit(nogil=True, cache=True, error_model="numpy")
def add_moves(
    indptr: Array,
    indices: Array,
    values: Array,
    weights: Array | None,
    sums: Array,
    counts: Array,
    squares: Array,
    starts: Array,
    moves: Array,
    low: int,
    high: int,
) -> None:
    """Points that enter or leave clusters `low` to `high` (`moved_points.MovedPoints`), in their order."""
    for j in range(low, high):
        for place in range(starts[j], starts[j + 1]):
            i = moves[place] >> 1
            weight = 1.0 if weights is None else weights[i]
            square = 0.0
            if moves[place] & 1:
                for t in range(indptr[i], indptr[i + 1]):
                    value = np.float64(values[t])
                    square += value * value
                    sums[j, indices[t]] -= weight * values[t]
                counts[j] -= weight
                squares[j] -= weight * square
            else:
                for t in range(indptr[i], indptr[i + 1]):
                    value = np.float64(values[t])
                    square += value * value
                    sums[j, indices[t]] += weight * values[t]
                counts[j] += weight
                squares[j] += weight * square
