"""Distributed standardization: the moments of each shard are merged, and every shard is scaled by the result.

Moments are (rows, mean, sum of squared deviations, minimum, maximum) per column, in float64; merging is
exact up to rounding and does not depend on how rows are spread. Sparse rows are scaled without being
shifted, so that they stay sparse. Never looks at labels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flegel.core.gaps import GAP
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.source import WINDOW_BYTES
from flegel.errors import UsageError, nearest
from flegel.wording import option

METHODS = ("none", "standard", "minmax")
ADVICE_ROWS = 10_000
"""Rows that are enough to see orders of magnitude."""
ORDERS = 1000.0
"""Columns whose standard deviations differ by this factor differ by orders of magnitude."""
SQUARED = 1e140
"""Sums of squares of larger numbers may be infinite; those of numbers below its inverse lose digits."""


class ColumnMoments(NamedTuple):
    """Moments of some rows, column by column; `rows` is their number."""

    rows: Array
    mean: Array
    squares: Array
    low: Array
    high: Array


class Scaling(NamedTuple):
    """A row is scaled as (row - shift) * factor."""

    shift: Array
    factor: Array


def check_method(method: str) -> str:
    if method not in METHODS:
        raise UsageError(f"{option('scale', method)} is not known{nearest(method, list(METHODS))}")
    return method


def moments(features: Array | Sparse) -> ColumnMoments:
    """Moments of the rows of one shard, window by window. Missing entries of sparse rows are zeros."""
    if isinstance(features, Sparse):
        return _sparse_moments(features)
    rows, columns = features.shape
    found = empty_moments(columns)
    step = max(1, WINDOW_BYTES // max(1, columns * 8))
    for lo in range(0, rows, step):
        part = features[lo : lo + step].astype(np.float64)
        mean = part.mean(axis=0)
        low, high = part.min(axis=0), part.max(axis=0)
        part -= mean
        squares = np.einsum("ij,ij->j", part, part)  # beyond float64 for numbers above 1e154: see `scaling`
        found = merge(found, ColumnMoments(np.array(float(len(part))), mean, squares, low, high))
    return found


def empty_moments(columns: int) -> ColumnMoments:
    """The moments of no rows."""
    return ColumnMoments(
        np.array(0.0),
        np.zeros(columns),
        np.zeros(columns),
        np.full(columns, np.inf),
        np.full(columns, -np.inf),
    )


def merge(one: ColumnMoments, other: ColumnMoments) -> ColumnMoments:
    """Moments of both sets of rows together."""
    count = one.rows + other.rows
    if count == 0:
        return one
    delta = other.mean - one.mean
    with np.errstate(over="ignore", invalid="ignore"):
        between = np.nan_to_num(delta**2 * (one.rows * other.rows / count), nan=0.0, posinf=np.inf)
    return ColumnMoments(
        count,
        one.mean + delta * (other.rows / count),
        one.squares + other.squares + between,
        np.minimum(one.low, other.low),
        np.maximum(one.high, other.high),
    )


def _sparse_moments(rows: Sparse) -> ColumnMoments:
    count = len(rows.indptr) - 1
    values = np.asarray(rows.values, np.float64)
    filled = np.bincount(rows.indices, minlength=rows.columns)
    mean = np.bincount(rows.indices, values, rows.columns) / max(1, count)
    with np.errstate(over="ignore"):
        around = np.bincount(rows.indices, (values - mean[rows.indices]) ** 2, rows.columns)
    low, high = np.full(rows.columns, np.inf), np.full(rows.columns, -np.inf)
    np.minimum.at(low, rows.indices, values)
    np.maximum.at(high, rows.indices, values)
    gaps = filled < count
    low[gaps], high[gaps] = np.minimum(low[gaps], 0.0), np.maximum(high[gaps], 0.0)
    return ColumnMoments(np.array(float(count)), mean, around + (count - filled) * mean**2, low, high)


def scaling(total: ColumnMoments, method: str) -> Scaling:
    """How to scale, from the moments of all rows. A constant column is shifted but not scaled."""
    check_method(method)
    columns = len(total.mean)
    if method == "none" or total.rows == 0:
        return Scaling(np.zeros(columns), np.ones(columns))
    if method == "standard":
        spread = deviations(total)
        constant = spread <= 1e-12 * np.maximum(1e-300, np.abs(total.mean))
        return Scaling(total.mean.copy(), 1.0 / np.where(constant | (spread == 0), 1.0, spread))
    width = total.high - total.low
    return Scaling(total.low.copy(), 1.0 / np.where(width == 0, 1.0, width))


def deviations(total: ColumnMoments) -> Array:
    """Standard deviations; of columns whose squares float64 cannot hold, half the range."""
    half = total.high / 2.0 - total.low / 2.0
    return np.where((half > SQUARED) | (half < 1.0 / SQUARED), half, np.sqrt(total.squares / total.rows))


def keep(how: Scaling, unscaled: Array) -> Scaling:
    """The same, but some columns stay as they are."""
    return Scaling(np.where(unscaled, 0.0, how.shift), np.where(unscaled, 1.0, how.factor))


def advice(features: Array | Sparse, names: list[str] | None, unscaled: Array) -> str | None:
    """A sentence where columns differ by orders of magnitude and nothing was said about scaling. Not for rows with gaps
    that are kept, whose columns cannot be scaled."""
    first = _first_rows(features, unscaled)
    if first is None or (not isinstance(first, Sparse) and bool((first == GAP).any())):
        return None
    found = moments(first)
    spread = deviations(found)
    counted = np.flatnonzero((spread > 0) & ~unscaled)
    if len(counted) < 2:
        return None
    small, large = counted[np.argmin(spread[counted])], counted[np.argmax(spread[counted])]
    with np.errstate(over="ignore"):
        ratio = spread[large] / spread[small]
    if not ratio >= ORDERS:
        return None
    wide, narrow = (repr(names[k]) if names else f"column {k}" for k in (large, small))
    return (
        f"Columns differ by orders of magnitude (standard deviation {spread[large]:.3g} of {wide}, {spread[small]:.3g} "
        f"of {narrow}); {option('scale', 'standard')} makes them count alike."
    )


def _first_rows(features: Array | Sparse, unscaled: Array) -> Array | Sparse | None:
    """Rows to look at; None where there is nothing to compare. Sparse ones only where text made them sparse: a word
    that is rare in all texts has a small deviation, and that is what it means."""
    if isinstance(features, Sparse):
        ends = features.indptr[: ADVICE_ROWS + 1]
        if not unscaled.any() or len(ends) < 3:
            return None
        return features._replace(indptr=ends, indices=features.indices[: ends[-1]], values=features.values[: ends[-1]])
    return features[:ADVICE_ROWS] if features.shape[1] > 1 and len(features) > 1 else None


def apply(features: Array | Sparse, how: Scaling) -> Array | Sparse:
    """Scaled rows, in place where the array may be written to. Sparse rows are not shifted."""
    if isinstance(features, Sparse):
        values = (features.values * how.factor[features.indices]).astype(features.values.dtype)
        return features._replace(values=values)
    if not features.flags.writeable:
        features = features.copy()
    step = max(1, WINDOW_BYTES // max(1, features.shape[1] * 8))
    for lo in range(0, len(features), step):
        part = features[lo : lo + step]
        part[...] = (part - how.shift) * how.factor
    return features
