"""K-means over sparse rows: the block kernel, starts from a sample, and the nearest centroids of new rows.

Sums are taken about 0, so that a row costs its stored entries only. A distance is ½‖c‖² − x·c in float64. Never makes a
dense matrix of more rows than there are centroids.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithms.rows import rows_of, times
from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array
from flegel.core.shard import Shard, Sparse
from flegel.declarations.kernels import Kernel

LABEL_PIECES = 32  # pieces in which clusters are summed by several threads: enough that none waits long for another
SCORES_AT_ONCE = 1 << 21  # of rows with centroids, 16 MB: not as many as there are rows
_TRAIN = EntryPoint("flegel.algorithms.kmeans.sparse_kernel", "train")
_ADD_BY_LABEL = EntryPoint("flegel.algorithms.sparse_products", "add_by_label")


def sparse_kernel() -> Kernel:
    """A kernel for sparse rows, which keeps what it has computed of the centroids between its calls."""
    last: Array | None = None
    """The centroids that `by_column` and `half` were made of: a call may visit a few rows only."""
    by_column = half = np.empty(0)

    def kernel(shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array) -> int:
        nonlocal last, by_column, half
        rows = shard.features
        assert isinstance(rows, Sparse)
        if last is not parameter.centroids:
            last = parameter.centroids
            by_column = np.ascontiguousarray(last.T)
            half = 0.5 * np.einsum("jt,jt->j", last, last)
        return int(
            _TRAIN(
                rows.indptr,
                rows.indices,
                rows.values,
                shard.state,
                shard.weights,
                by_column,
                half,
                aggregator.sums,
                aggregator.counts,
                aggregator.squares,
                start,
                min(end, shard.points),
                flag,
            )
        )

    return kernel


def some_rows(rows: Sparse, first: int, stop: int) -> Sparse:
    """Rows from `first` to `stop`, without a copy of their entries."""
    low, high = int(rows.indptr[first]), int(rows.indptr[stop])
    return Sparse(rows.indptr[first : stop + 1] - low, rows.indices[low:high], rows.values[low:high], rows.columns)


def take_rows(rows: Sparse, ids: Array) -> Sparse:
    """Some rows, as CSR."""
    starts, lengths = rows.indptr[ids], np.diff(rows.indptr)[ids]
    ends = np.cumsum(lengths)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
    return Sparse(np.concatenate([[0], ends]), rows.indices[places], rows.values[places], rows.columns)


def dense_rows(rows: Sparse, ids: Array) -> Array:
    few = take_rows(rows, np.asarray(ids))
    found = np.zeros((len(few.indptr) - 1, rows.columns))
    found[np.repeat(np.arange(len(found)), np.diff(few.indptr)), few.indices] = few.values
    return found


def squared_norms(rows: Sparse) -> Array:
    row = np.repeat(np.arange(rows_of(rows)), np.diff(rows.indptr))
    return np.bincount(row, rows.values.astype(np.float64) ** 2, minlength=rows_of(rows))


def nearest_of(rows: Sparse, centroids: Array, norms: Array | None = None) -> tuple[Array, Array]:
    """Cluster and squared distance of each row; `norms` are their squared ones, where they are known."""
    half, by_column = 0.5 * (centroids**2).sum(axis=1), np.ascontiguousarray(centroids.T)
    count = rows_of(rows)
    nearest, least = np.empty(count, np.int32), np.empty(count)
    step = max(SCORES_AT_ONCE // len(centroids), 1)
    for first in range(0, count, step):
        part = some_rows(rows, first, min(first + step, count))
        scores = half - times(part, by_column)
        own = scores.argmin(axis=1)
        nearest[first : first + step] = own
        least[first : first + step] = scores[np.arange(len(own)), own]
    norms = squared_norms(rows) if norms is None else norms
    return nearest, np.maximum(2.0 * least + norms, 0.0)


def distances_of(rows: Sparse, centroids: Array) -> Array:
    """Squared distances, (rows, centroids)."""
    scores = 0.5 * (centroids**2).sum(axis=1) - times(rows, np.ascontiguousarray(centroids.T))
    return np.asarray(np.maximum(2.0 * scores + squared_norms(rows)[:, None], 0.0))


def sparse_seed(rows: Sparse, norms: Array, k: int, rng: np.random.Generator) -> Array:
    """k rows by greedy k-means++."""
    chosen = [dense_rows(rows, rng.integers(len(norms), size=1))[0]]
    least = nearest_of(rows, chosen[0][None, :], norms)[1]
    trials = 2 + int(np.log(k + 1))
    while len(chosen) < k:
        total = least.sum()
        if total > 0:
            places = np.searchsorted(least.cumsum(), rng.random(trials) * total).clip(max=len(norms) - 1)
        else:  # fewer distinct rows than clusters
            places = rng.integers(len(norms), size=1)
        candidates = dense_rows(rows, places)
        squared = norms[:, None] - 2.0 * times(rows, np.ascontiguousarray(candidates.T)) + norms[places]
        squared[places, np.arange(len(places))] = 0.0
        shrunk = np.minimum(least[:, None], np.maximum(squared, 0.0))
        best = int(shrunk.sum(axis=0).argmin())
        chosen.append(candidates[best])
        least = shrunk[:, best]
    return np.array(chosen)


def far_rows(rows: Sparse, squared: Array, count: int, rng: np.random.Generator) -> Array:
    """At most `count` different rows, drawn by their squared distances to the nearest centroid, all at once: to draw
    one after the other takes a product with all rows each."""
    ends = squared.cumsum()
    if not ends[-1] > 0:
        return dense_rows(rows, np.arange(min(count, len(squared))))
    return dense_rows(rows, np.unique(np.searchsorted(ends, rng.random(count) * ends[-1]).clip(max=len(squared) - 1)))


def best_sparse_lloyd(rows: Sparse, norms: Array, k: int, starts: int, trial: int, rng: np.random.Generator) -> Array:
    """Centres after a few passes from the best of several starts by k-means++. These are drawn and compared on `trial`
    rows, and only the best goes on, with all rows."""
    few, few_norms = rows, norms
    if trial < len(norms):
        chosen = np.sort(rng.choice(len(norms), trial, replace=False))
        few, few_norms = take_rows(rows, chosen), norms[chosen]
    rules = active().starts
    begun = [_lloyd(few, few_norms, sparse_seed(few, few_norms, k, rng), rules.trial_passes) for _ in range(starts)]
    centres = min(begun, key=lambda trial: trial[1])[0]
    return _lloyd(rows, norms, centres, rules.lloyd_passes - rules.trial_passes)[0]


def _lloyd(rows: Sparse, norms: Array, centres: Array, passes: int) -> tuple[Array, float]:
    """Centres after so many passes, and the sum of squared distances. A cluster without rows keeps its centre."""
    labels, distances = nearest_of(rows, centres, norms)
    for _ in range(passes):
        counts = np.bincount(labels, minlength=len(centres))
        sums = _sums_by_label(rows, labels, len(centres))
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        before, (labels, distances) = labels, nearest_of(rows, centres, norms)
        if np.array_equal(before, labels):
            break
    return centres, float(distances.sum())


def _sums_by_label(rows: Sparse, labels: Array, k: int) -> Array:
    if len(rows.values) * k < active().shapes.compiled_sparse_products:
        place = np.repeat(labels.astype(np.int64), np.diff(rows.indptr)) * rows.columns + rows.indices
        return np.bincount(place, rows.values, minlength=k * rows.columns).reshape(k, rows.columns)
    sums = np.zeros((k, rows.columns))

    def add(low: int, high: int) -> None:
        _ADD_BY_LABEL(rows.indptr, rows.indices, rows.values, labels, sums, low, high)

    in_pieces(k, max(k // LABEL_PIECES, 1), add)
    return sums
