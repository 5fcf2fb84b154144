"""K-means over sparse rows: the block kernel, starts from a sample, and the nearest centroids of new rows.

Sums are taken about 0, so that a row costs its stored entries only. A distance is ½‖c‖² − x·c in float64. Never makes a
dense matrix of more rows than there are centroids.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithms.kmeans.moved_points import ADDED_AT_ONCE, MovedPoints
from flegel.algorithms.kmeans.spread_out import spread_out
from flegel.algorithms.rows import rows_of, times
from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, Sparse

COLUMNS_TURNED = 4096  # at a time
_TRAIN = EntryPoint("flegel.algorithms.kmeans.sparse_kernel", "train")
_ADD_MOVES = EntryPoint("flegel.algorithms.kmeans.sparse_kernel", "add_moves")
_ADD_BY_LABEL = EntryPoint("flegel.algorithms.sparse_products", "add_by_label")


class SparseKernel:
    """The kernel for sparse rows, which keeps what it has computed of the centroids between its calls. Call it as
    `flegel.algorithm.Kernel` says; the threads of a team share it (`flegel.declarations.kernels.TwoStepKernel`)."""

    unit = TILE

    def __init__(self) -> None:
        self._of: Array | None = None
        """The centroids that the next two were made of: a call may visit a few rows only."""
        self._by_column = self._half = np.empty(0)
        self._moved = MovedPoints()

    def __call__(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        self._take(parameter.centroids)
        return self._visit(shard, aggregator, ADDED_AT_ONCE, start, end, flag)

    def prepare(self, shard: Shard, parameter: Any) -> None:
        self._take(parameter.centroids)
        if self._moved.make_room(shard.points):  # the first time: what training compiles
            self._moved.compile(shard.state)
            self._add(shard, (np.zeros((0, shard.columns)), np.zeros(0), np.zeros(0)), 0, 0)

    def decide(
        self, shard: Shard, parameter: Any, aggregator: Any, start: int, end: int, iteration: int, flag: Array
    ) -> int:
        return self._visit(shard, aggregator, self._moved.clusters, start, end, flag)

    def collect(self, shard: Shard, start: int, end: int) -> int:
        rows = shard.features
        assert isinstance(rows, Sparse)
        entries = float(rows.indptr[end] - rows.indptr[start]) / max(end - start, 1)
        return self._moved.collect(shard.state, len(self._half), entries, start, end)

    def add(self, shard: Shard, parameter: Any, aggregator: Any, part: int) -> None:
        self._add(shard, aggregator, *self._moved.part(part))

    def _take(self, centroids: Array) -> None:
        if self._of is not centroids:
            self._by_column = _turned(centroids)
            self._half = 0.5 * np.einsum("jt,jt->j", centroids, centroids)
            self._of = centroids

    def _visit(self, shard: Shard, sums: tuple[Array, ...], clusters: Array, start: int, end: int, flag: Array) -> int:
        rows = shard.features
        assert isinstance(rows, Sparse)
        points = (rows.indptr, rows.indices, rows.values, shard.state, shard.weights)
        span = (start, min(end, shard.points), flag)
        return int(_TRAIN(*points, self._by_column, self._half, *sums, clusters, *span))

    def _add(self, shard: Shard, sums: tuple[Array, ...], low: int, high: int) -> None:
        rows = shard.features
        assert isinstance(rows, Sparse)
        moves = (self._moved.starts, self._moved.moves, low, high)
        _ADD_MOVES(rows.indptr, rows.indices, rows.values, shard.weights, *sums, *moves)


def _turned(centroids: Array) -> Array:
    """The centroids by column."""
    made = np.empty(centroids.shape[::-1], centroids.dtype)

    def some(low: int, high: int) -> None:
        made[low:high] = centroids[:, low:high].T

    in_pieces(len(made), COLUMNS_TURNED, some)
    return made


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
    half, by_column = 0.5 * np.einsum("jt,jt->j", centroids, centroids), _turned(centroids)
    count = rows_of(rows)
    nearest, least = np.empty(count, np.int32), np.empty(count)
    step = max(active().kmeans.sparse_scores_at_once // len(centroids), 1)
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
    scores = 0.5 * (centroids**2).sum(axis=1) - times(rows, _turned(centroids))
    return np.asarray(np.maximum(2.0 * scores + squared_norms(rows)[:, None], 0.0))


def candidates_at_once(columns: int) -> int:
    """Of sparse rows as dense ones, so wide, that exist at a time as candidates of a start."""
    return max(active().kmeans.sparse_candidate_numbers // max(columns, 1), 1)


def distances_within(rows: Sparse, norms: Array, chosen: Array) -> Array:
    """Squared distances (chosen, rows) of all rows to some of them; exactly 0 from a row to itself."""
    candidates = dense_rows(rows, chosen)
    squared = norms[:, None] - 2.0 * times(rows, np.ascontiguousarray(candidates.T)) + norms[chosen]
    squared[chosen, np.arange(len(chosen))] = 0.0
    return np.maximum(squared, 0.0).T


def sparse_seed(rows: Sparse, norms: Array, k: int, rng: np.random.Generator) -> Array:
    """k rows by k-means++."""
    chosen = spread_out(
        len(norms),
        k,
        lambda some: distances_within(rows, norms, some),
        rng,
        None,
        at_once=candidates_at_once(rows.columns),
    )
    return dense_rows(rows, chosen)


def far_rows(rows: Sparse, squared: Array, count: int, rng: np.random.Generator) -> Array:
    """At most `count` different rows, drawn by their squared distances to the nearest centroid, all at once: to draw
    one after the other takes a product with all rows each."""
    ends = squared.cumsum()
    if not ends[-1] > 0:
        return dense_rows(rows, np.arange(min(count, len(squared))))
    return dense_rows(rows, np.unique(np.searchsorted(ends, rng.random(count) * ends[-1]).clip(max=len(squared) - 1)))


def best_sparse_lloyd(rows: Sparse, norms: Array, k: int, starts: int, trial: int, rng: np.random.Generator) -> Array:
    """Centres after a few passes from the best of several starts by k-means++. These are drawn and compared on `trial`
    rows, or on half of them where they are few. The best goes on with all rows; with the same where these are half of
    all, because training begins with a pass over the others as well. Where clusters are many, one start is made, and
    training goes on from its first passes: more starts change little there, and each takes as long as several passes.
    """
    few, few_norms, rules = rows, norms, active().starts
    trial = min(trial, max(len(norms) // 2, rules.kmeans_fewest_trial_rows, k))
    if trial < len(norms):
        chosen = np.sort(rng.choice(len(norms), trial, replace=False))
        few, few_norms = take_rows(rows, chosen), norms[chosen]
    many = k >= rules.kmeans_sample_from_clusters
    starts = 1 if many else starts
    begun = [_lloyd(few, few_norms, sparse_seed(few, few_norms, k, rng), rules.trial_passes) for _ in range(starts)]
    centres = min(begun, key=lambda trial: trial[1])[0]
    if many:
        return centres
    if 2 * trial < len(norms):
        few, few_norms = rows, norms
    return _lloyd(few, few_norms, centres, rules.lloyd_passes - rules.trial_passes)[0]


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
    """The sum of the sparse rows of each label, as a dense array (k, columns)."""
    if len(rows.values) * k < active().shapes.compiled_sparse_products:
        place = np.repeat(labels.astype(np.int64), np.diff(rows.indptr)) * rows.columns + rows.indices
        return np.bincount(place, rows.values, minlength=k * rows.columns).reshape(k, rows.columns)
    sums = np.zeros((k, rows.columns))

    def add(low: int, high: int) -> None:
        _ADD_BY_LABEL(rows.indptr, rows.indices, rows.values, labels, sums, low, high)

    in_pieces(k, max(k // active().kmeans.sparse_pieces, 1), add)
    return sums
