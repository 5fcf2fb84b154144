"""First and second moments of rows, exact after one pass: what PCA, covariances and least squares are made of.

Rows are shifted by an origin, the mean of the sample that θ(0) is made of, before anything is summed: so the sums keep
their digits however far from 0 the rows lie. Sparse rows are not shifted. Labels, where an algorithm has them, are one
more column. Never fits a model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.rows import row_parts, rows_of
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.declarations.statistics import Statistics
from flegel.errors import UsageError

MOST_COLUMNS = 8192
"""The statistics have a number for each pair of columns: 512 MB, and half a minute to decompose them."""
_ADD_OUTER = EntryPoint("flegel.algorithms.sparse_products", "add_outer")


class Moments(NamedTuple):
    """Sums over points, each counted at its weight."""

    mass: Any
    """The sum of weights: the number of points where they have none."""
    sums: Array
    """Σ z, where z = row − origin."""
    squares: Array
    """Σ z·zᵀ."""


class MomentModel(Algorithm):
    """Base of algorithms whose θ follows from the moments of all rows. θ has the fields `internal_origin` (see above),
    and whatever `updateParameter` makes of the statistics."""

    statistics = Statistics(constant=True)

    def contributions(self, features: Any, labels: Array, weights: Array | None, parameter: Any) -> Any:
        return moments_of(features, labels if self.accepts.supervised else None, weights, parameter.internal_origin)

    def validate(self, sample: Sample) -> None:
        if sample.columns > MOST_COLUMNS:
            raise UsageError(
                f"{type(self).__name__} keeps a number for each pair of columns, and takes at most {MOST_COLUMNS} "
                f"columns, not {sample.columns}; choose columns, or hash them into fewer."
            )

    def work(self, columns: int) -> float:
        return 0.25 * columns * columns + 4.0 * columns  # products of matrices take a quarter of a loop's time

    def origin(self, sample: Sample) -> Array:
        """The mean of these rows, and of their labels; 0 for columns of sparse rows."""
        mean = mean_of_sample(sample)
        if not self.accepts.supervised:
            return mean
        assert sample.labels is not None
        return np.append(mean, shares_of(sample) @ np.asarray(sample.labels, np.float64))


def shares_of(sample: Sample) -> Array:
    """Weights of the rows of a sample, which sum to 1."""
    weights = np.ones(rows_of(sample.features)) if sample.weights is None else sample.weights
    return np.asarray(weights / max(float(weights.sum()), 1e-300))


def mean_of_sample(sample: Sample) -> Array:
    """The mean of dense rows; 0 for sparse ones."""
    mean, share = np.zeros(sample.columns), shares_of(sample)
    if not isinstance(sample.features, Sparse):
        for first, end, rows in row_parts(sample.features, sample.columns):
            mean += share[first:end] @ np.asarray(rows, np.float64)
    return mean


def moments_of(features: Any, labels: Array | None, weights: Array | None, origin: Array) -> Moments:
    """Of rows, dense or sparse, with their labels as the last column where they have some."""
    count, columns = rows_of(features), len(origin) - (labels is not None)
    if isinstance(features, Sparse):
        return _of_sparse(features, labels, np.ones(count) if weights is None else weights, origin)
    shifted = np.empty((count, len(origin)))
    np.subtract(features, origin[:columns], out=shifted[:, :columns])
    if labels is not None:
        np.subtract(labels, origin[columns], out=shifted[:, columns])
    with np.errstate(over="ignore", invalid="ignore"):  # `centred` refuses squares beyond float64
        if weights is None:
            return Moments(float(count), np.ones(count) @ shifted, shifted.T @ shifted)
        sums = weights @ shifted
        shifted *= np.sqrt(weights)[:, None]
        return Moments(float(weights.sum()), sums, shifted.T @ shifted)


def _of_sparse(rows: Sparse, labels: Array | None, weights: Array, origin: Array) -> Moments:
    width = len(origin)
    squares, edges = np.zeros((width, width)), np.asarray(rows.indptr, np.int64)
    values = np.asarray(rows.values, np.float64)
    _ADD_OUTER(edges, rows.indices, values, np.ascontiguousarray(weights, np.float64), squares)
    squares += np.tril(squares, -1).T
    owner = np.repeat(np.arange(len(weights)), np.diff(edges))
    sums = np.bincount(rows.indices, values * weights[owner], minlength=width).astype(np.float64)
    if labels is not None:
        away = weights * (np.asarray(labels, np.float64) - origin[-1])
        sums[-1] = away.sum()
        squares[-1] = squares[:, -1] = np.bincount(rows.indices, values * away[owner], minlength=width)
        squares[-1, -1] = away @ (labels - origin[-1])
    return Moments(float(weights.sum()), sums, squares)


def centred(moments: Moments, origin: Array) -> tuple[Array, Array]:
    """Mean, and Σ (row − mean)·(row − mean)ᵀ."""
    if not np.isfinite(moments.squares).all():
        raise UsageError("The squares of these numbers are beyond the range of float64; scale the columns.")
    mass = max(float(moments.mass), 1e-300)
    away = moments.sums / mass
    scatter = moments.squares - mass * np.outer(away, away)
    places = np.arange(len(scatter))
    scatter[places, places] = np.maximum(scatter[places, places], 0.0)
    return origin + away, scatter
