"""The metric in which a linear model takes its steps: gradient descent that does not mind scales and offsets.

With scores z = w·x + b and curvature of the loss by z at most c, the quadratic with curvature
H = c·mean((x, 1)(x, 1)ᵀ) + l2 bounds the loss from above, and θ − H⁻¹·gradient never overshoots. H is
estimated once, on the sample, about the mean and in units of the standard deviation. Its leading directions
are inverted exactly, as many as fit into `BUDGET` numbers; all the rest count as the steepest of them, which
is slower and still safe. The minimum is the same in any metric; only the path differs. Never sees data
beyond the sample.

A metric is one array of (2 + directions, columns + 1) numbers, because it travels with θ:

    row 0     the mean of every column; in the last place how far a step of 1 moves the bias (0: no bias)
    row 1     the unit of every column: a direction that is no leading one moves by gradient / unit²
    row 2 …   leading directions u in those units; H⁻¹ is I − Σ u·uᵀ
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithms.rows import rows_of, times
from flegel.core.pytree import Array
from flegel.core.shard import Sparse

BUDGET = 8192  # numbers in the leading directions: 64 kB at every barrier; all directions up to 90 columns
_DENSE_COLUMNS = 1024  # up to here all eigenvectors at once; beyond, only the leading ones by iteration


def plain(columns: int, intercept: bool) -> Array:
    """The metric of the plain gradient."""
    metric = np.zeros((2, columns + 1))
    metric[1] = 1.0
    metric[0, columns] = 1.0 if intercept else 0.0
    return metric


def scaled(features: Any, columns: int, curvature: float, l2: float, intercept: bool) -> Array:
    """The metric for such features. `curvature` is c; without an intercept the mean is not taken off."""
    rows = max(rows_of(features), 1)
    mean, deviation = _moments(features, columns, intercept)
    directions = min(columns, BUDGET // columns)
    shrink = min(1.0, 1e-6 + 0.1 * columns / rows)  # a small sample sees correlations that are none
    product = _product(features, mean, deviation, curvature, shrink, l2)
    values, vectors = _leading(product, columns, directions)
    rest = values[-1]
    metric = np.zeros((2 + directions, columns + 1))
    metric[0, :columns] = mean
    metric[0, columns] = 1.0 / curvature if intercept else 0.0
    metric[1, :columns] = deviation * np.sqrt(rest)
    metric[2:, :columns] = (vectors * np.sqrt(np.maximum(1.0 - rest / values, 0.0))).T[:directions]
    return metric


def descend(gradient: Array, metric: Array) -> Array:
    """H⁻¹·gradient for (outputs, columns + 1), the bias in the last column."""
    mean, unit, directions = metric[0, :-1], metric[1, :-1], metric[2:, :-1]
    by_weight = (gradient[:, :-1] - mean * gradient[:, -1:]) / unit
    by_weight -= (by_weight @ directions.T) @ directions
    move = np.empty_like(gradient)
    move[:, :-1] = by_weight / unit
    # The bias follows the weights so that the score at the mean does not change with them.
    move[:, -1] = gradient[:, -1] * metric[0, -1] - move[:, :-1] @ mean
    return move


def _moments(features: Any, columns: int, intercept: bool) -> tuple[Array, Array]:
    """Mean (0 without a bias, which could not undo it) and deviation of every column, never 0."""
    rows = max(rows_of(features), 1)
    if isinstance(features, Sparse):
        values = features.values.astype(np.float64)
        mean = np.bincount(features.indices, values, minlength=columns) / rows
        around = values - mean[features.indices]
        stored = np.bincount(features.indices, minlength=columns)
        squares = np.bincount(features.indices, around**2, minlength=columns) + (rows - stored) * mean**2
        variance = squares / rows
    else:
        dense = np.asarray(features, dtype=np.float64)
        mean, variance = dense.mean(axis=0), dense.var(axis=0)
    varying = np.sqrt(variance) > 1e-12 * np.abs(mean)
    if not intercept:
        variance, mean = variance + mean**2, np.zeros(columns)
        varying = variance > 0
    deviation = np.sqrt(variance)
    # A column that never changes in the sample is constant or rare. Constant ones never move; for rare ones
    # suppose one deviation of the usual size in as many rows as the sample has.
    usual = float(np.median(deviation[varying])) if varying.any() else 1.0
    rare = np.maximum(np.abs(mean), usual) / np.sqrt(rows)
    return mean, np.where(varying, deviation, rare)


def _product(features: Any, mean: Array, deviation: Array, curvature: float, shrink: float, l2: float) -> Any:
    """v ↦ H·v in units of the deviation, for matrices v of (columns, any)."""
    rows = max(rows_of(features), 1)
    ridge = (curvature * shrink + l2 / deviation**2)[:, None]

    def apply(v: Array) -> Array:
        inner = v / deviation[:, None]
        scores = times(features, inner) - mean @ inner
        back = _transposed_times(features, scores) - np.outer(mean, scores.sum(axis=0))
        return np.asarray((1.0 - shrink) * curvature * back / rows / deviation[:, None] + ridge * v)

    return apply


def _transposed_times(features: Any, scores: Array) -> Array:
    if not isinstance(features, Sparse):
        return np.asarray(np.asarray(features, dtype=np.float64).T @ scores)
    row = np.repeat(np.arange(len(scores)), np.diff(features.indptr))
    columns = [
        np.bincount(features.indices, features.values * scores[row, k], minlength=features.columns)
        for k in range(scores.shape[1])
    ]
    return np.stack(columns, axis=1)


def _leading(product: Any, columns: int, directions: int) -> tuple[Array, Array]:
    """The largest eigenvalues and their vectors, falling: the leading ones and one more, or all there are."""
    wanted = min(directions + 1, columns)
    if columns <= _DENSE_COLUMNS:
        matrix = product(np.eye(columns))
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return values[::-1][:wanted], vectors[:, ::-1][:, :wanted]
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((columns, wanted)))[0]
    for _ in range(30):
        basis = np.linalg.qr(product(basis))[0]
    values, turn = np.linalg.eigh(basis.T @ product(basis))
    values[0] *= 1.1  # the iteration approaches the steepest of the rest from below
    return np.maximum(values[::-1], values[0]), (basis @ turn)[:, ::-1]
