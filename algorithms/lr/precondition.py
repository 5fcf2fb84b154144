"""Coordinates and metric in which a linear model takes its steps, so that scales and offsets do not matter.

Coordinates: x̃ = ((x − mean) / unit, 1), from a sample. They only keep digits; a sample that misses values costs
digits, not correctness. Few columns need no more: their curvature is summed over all rows (`curvature.py`).

Metric for many columns: with curvature of the loss by the score at most c, the quadratic with curvature
H = c·mean(x̃·x̃ᵀ) + l2 bounds the loss from above. H is estimated on the sample. Its leading directions are inverted
exactly, as many as fit into `lr.direction_numbers`; all the rest count as the steepest of them. Columns that are larger
in all rows than in the sample are corrected by their summed curvature (`descend`). Never sees data beyond the sample.

A metric is one array of (2 or 2 + directions, columns + 1) numbers, because it travels with θ:

    row 0     the mean of every column; in the last place 1, or 0 where there is no bias
    row 1     the unit of every column; in the last place the curvature of the directions that are not leading
    row 2 …   leading directions u in those units; H⁻¹ is (I − Σ u·uᵀ) / that curvature

Imports no compiler.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.algorithms.rows import rows_of, times
from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import Sparse

LARGEST_VARIANCE = 1e280
"""Of a column whose squares are beyond float64."""
_ADD_TRANSPOSED = EntryPoint("flegel.algorithms.sparse_products", "add_transposed")


def plain(columns: int, intercept: bool) -> Array:
    """The metric of the plain gradient."""
    metric = np.zeros((2, columns + 1))
    metric[1] = 1.0
    metric[0, columns] = 1.0 if intercept else 0.0
    return metric


def coordinates(features: Any, columns: int, intercept: bool, centered: bool) -> Array:
    """Mean (0 where not centered) and unit of every column of the sample."""
    metric = plain(columns, intercept)
    mean, unit = _moments(features, columns, centered)
    metric[0, :columns] = mean
    metric[1, :columns] = np.clip(unit, 1e-140, 1e140)  # squares of units stay finite
    return metric


def scaled(
    features: Any, columns: int, curvature: float, l2: float, intercept: bool, centered: bool | None = None
) -> Array:
    """The metric for such features. `curvature` is c; without an intercept the mean is not subtracted."""
    rules = active().lr
    basis = coordinates(features, columns, intercept, intercept if centered is None else centered)
    if not isinstance(features, Sparse):
        features = features[:: max(rows_of(features) // rules.direction_rows, 1)]
    rows = max(rows_of(features), 1)
    # The penalty's curvature is part of a column's unit: in units of its deviation alone, that of a column which the
    # sample hardly shows would be larger than all others by orders of magnitude, and bound every step.
    basis[1, :columns] = np.sqrt(basis[1, :columns] ** 2 + l2 / curvature)
    mean, unit = basis[0, :columns], basis[1, :columns]
    directions = min(columns, rules.direction_numbers // columns)
    shrink = min(1.0, 1e-6 + 0.1 * columns / rows)  # a small sample shows correlations that the data do not have
    product = _product(features, mean, unit, curvature, shrink, l2)
    values, vectors = _leading(product, columns, directions)
    # Directions that the sample's rows do not have: collinear columns, or columns that it misses. Taken as flat as they
    # look, they would be the longest part of every step, and collinear columns would get any weights.
    flat = rules.flat_curvature * values[0]
    values = np.where(values - curvature * shrink > flat, values, np.maximum(values, curvature))
    least = float(values.min())
    metric = np.zeros((2 + directions, columns + 1))
    metric[:2] = basis
    metric[1, columns] = least
    metric[2:, :columns] = (vectors * np.sqrt(1.0 - least / values)).T[:directions]
    return metric


def descend(gradient: Array, metric: Array, larger: Array) -> Array:
    """H⁻¹·gradient in the metric's coordinates, (outputs, columns + 1) with the bias last.

    `larger`: by how much the curvature of every column exceeds that of the sample, 1 or more.
    """
    step = gradient / np.sqrt(larger)
    directions = metric[2:, :-1]
    step[:, :-1] -= (step[:, :-1] @ directions.T) @ directions
    step[:, :-1] /= metric[1, -1]
    return np.asarray(step / np.sqrt(larger))


def inward(gradient: Array, metric: Array) -> Array:
    """A gradient by raw weights and bias as a gradient in the metric's coordinates."""
    inner = np.empty_like(gradient)
    if metric[0, :-1].any():
        np.multiply(metric[0, :-1], -gradient[:, -1:], out=inner[:, :-1])
        inner[:, :-1] += gradient[:, :-1]
        inner[:, :-1] *= 1.0 / metric[1, :-1]
    else:
        np.multiply(gradient[:, :-1], 1.0 / metric[1, :-1], out=inner[:, :-1])
    inner[:, -1] = gradient[:, -1] * metric[0, -1]
    return inner


def outward(step: Array, metric: Array) -> Array:
    """A step in the metric's coordinates as a step of raw weights and bias.

    The bias follows the weights so that the score at the mean does not change with them.
    """
    outer = np.empty_like(step)
    np.multiply(step[:, :-1], 1.0 / metric[1, :-1], out=outer[:, :-1])
    outer[:, -1] = metric[0, -1] * (step[:, -1] - outer[:, :-1] @ metric[0, :-1])
    return outer


def _moments(features: Any, columns: int, centered: bool) -> tuple[Array, Array]:
    """Mean (0 where not centered) and deviation of every column, never 0, of the rows that are not far longer than the
    others."""
    features = _usual(features, columns)
    rows = max(rows_of(features), 1)
    if isinstance(features, Sparse):
        values = features.values.astype(np.float64)
        mean = np.bincount(features.indices, values, minlength=columns) / rows
        around = values - mean[features.indices]
        stored = np.bincount(features.indices, minlength=columns)
        squares = np.bincount(features.indices, around**2, minlength=columns) + (rows - stored) * mean**2
        variance = squares / rows
    else:
        mean, variance = _dense_moments(np.asarray(features))
    varying = np.sqrt(variance) > 1e-12 * np.abs(mean)
    if not centered:
        variance, mean = variance + mean**2, np.zeros(columns)
        varying = variance > 0
    deviation = np.sqrt(variance)
    # A column that never changes in the sample is constant or rare. Constant ones never move; for rare ones
    # suppose one deviation of the usual size in as many rows as the sample has.
    usual = float(np.median(deviation[varying])) if varying.any() else 1.0
    rare = np.maximum(np.abs(mean), usual) / np.sqrt(rows)
    return mean, np.where(varying, deviation, rare)


def _usual(features: Any, columns: int) -> Any:
    """The rows without those of which a number is `lr.long_row` times as large as others of its column. A mean and unit
    that follow such a row leave no digits for the curvature of all others: those differ by next to nothing in them."""
    limit = active().lr.long_row
    if isinstance(features, Sparse):
        sizes = np.abs(features.values.astype(np.float64))
        stored = np.bincount(features.indices, minlength=columns)
        logs = np.log(np.where(sizes > 0.0, sizes, 1.0))
        typical = np.exp(np.bincount(features.indices, logs, minlength=columns) / np.maximum(stored, 1))
        far = np.flatnonzero(sizes > limit * typical[features.indices])
        if not len(far):
            return features
        long = np.unique(np.searchsorted(features.indptr, far, side="right") - 1)
        values = features.values.copy()
        for row in long:
            values[features.indptr[row] : features.indptr[row + 1]] = 0
        return features._replace(values=values)
    rows = np.asarray(features)
    if rows.dtype.kind != "f" or not len(rows):
        return features
    columns_of_some = np.ascontiguousarray(rows[:: max(len(rows) // active().lr.moment_rows, 1)].T, dtype=np.float64)
    middle = _middle_above(columns_of_some, -np.inf)
    usual = _middle_above(np.abs(columns_of_some - middle[:, None]), 0.0)
    bound = np.where(usual > 0.0, limit * usual, np.inf)  # a column that does not change there has no usual size
    long = np.zeros(len(rows), dtype=bool)
    with np.errstate(over="ignore"):
        low, high = (middle - bound).astype(rows.dtype), (middle + bound).astype(rows.dtype)
    for at in range(0, len(rows), active().lr.moment_rows):
        part = rows[at : at + active().lr.moment_rows]
        beyond = (part > high) | (part < low)
        if beyond.any():
            long[at : at + len(part)] = beyond.any(axis=1)
    return rows[~long] if long.any() and not long.all() else features


def _middle_above(columns: Array, least: float) -> Array:
    """The median of the numbers above `least` in each of these (columns, rows), by one sort; `least` where there are
    none."""
    columns = np.sort(columns, axis=1)
    below, above = (columns <= least).sum(axis=1), (columns > least).sum(axis=1)
    places = np.arange(len(columns))
    lower = columns[places, below + np.maximum(above - 1, 0) // 2 - (above == 0)]
    upper = columns[places, below + above // 2 - (above == 0)]
    return np.where(above > 0, (lower + upper) / 2.0, least)


def _dense_moments(rows: Array) -> tuple[Array, Array]:
    """Mean and variance of every column, in float64 but without a copy of all rows: about the mean of the first."""
    rules = active().lr
    about = np.asarray(rows[: rules.moment_rows], dtype=np.float64).mean(axis=0)
    sums, squares = np.zeros_like(about), np.zeros_like(about)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers above 1e154: units are bounded below that
        for at in range(0, len(rows), rules.moment_rows):
            away = rows[at : at + rules.moment_rows] - about
            sums += np.ones(len(away)) @ away
            away *= away
            squares += np.ones(len(away)) @ away
        mean = sums / max(len(rows), 1)
        variance = squares / max(len(rows), 1) - mean**2
    return about + mean, np.nan_to_num(np.maximum(variance, 0.0), nan=LARGEST_VARIANCE, posinf=LARGEST_VARIANCE)


def _product(features: Any, mean: Array, deviation: Array, curvature: float, shrink: float, l2: float) -> Any:
    """v ↦ H·v in units of the deviation, for matrices v of (columns, any)."""
    rows = max(rows_of(features), 1)
    ridge = (curvature * shrink + l2 / deviation**2)[:, None]
    if (
        not isinstance(features, Sparse) and len(mean) <= active().shapes.lr_all_eigenvectors_columns
    ):  # the matrix itself, once
        away = (np.asarray(features, dtype=np.float64) - mean) / deviation
        matrix = (1.0 - shrink) * curvature / rows * (away.T @ away)
        return lambda v: np.asarray(matrix @ v + ridge * v)

    def apply(v: Array) -> Array:
        inner = v / deviation[:, None]
        scores = times(features, inner) - mean @ inner
        back = _transposed_times(features, scores) - np.outer(mean, scores.sum(axis=0))
        return np.asarray((1.0 - shrink) * curvature * back / rows / deviation[:, None] + ridge * v)

    return apply


def _transposed_times(features: Any, scores: Array) -> Array:
    if not isinstance(features, Sparse):
        return np.asarray(np.asarray(features, dtype=np.float64).T @ scores)
    sums = np.zeros((features.columns, scores.shape[1]))
    _ADD_TRANSPOSED(features.indptr, features.indices, features.values, np.ascontiguousarray(scores), sums)
    return sums


def _leading(product: Any, columns: int, directions: int) -> tuple[Array, Array]:
    """The largest `directions` + 1 eigenvalues (or all), in descending order, and their eigenvectors as columns."""
    wanted = min(directions + 1, columns)
    if columns <= active().shapes.lr_all_eigenvectors_columns and columns <= active().lr.direction_rounds * wanted:
        matrix = product(np.eye(columns))
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return values[::-1][:wanted], vectors[:, ::-1][:, :wanted]
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((columns, wanted)))[0]
    for _ in range(active().lr.direction_rounds):
        basis = np.linalg.qr(product(basis))[0]
    values, turn = np.linalg.eigh(basis.T @ product(basis))
    values[0] *= 1.1  # subspace iteration underestimates it, and it must bound the eigenvalues that are left out
    return np.maximum(values[::-1], values[0]), (basis @ turn)[:, ::-1]
