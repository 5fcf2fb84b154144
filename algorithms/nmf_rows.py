"""One row of a factorization: its observed entries, its first weights, and the two ways to improve them.

Plain compiled code in float64, called by the per-point hooks and for new rows. Never touches statistics; the block
kernels have a faster form of `solve_row`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.core import types
from numba.extending import overload

from flegel.share import Sparse, SparseRow
from flegel.tree import Array

EPSILON = float(np.finfo(np.float32).eps)
"""Stands for a zero below the fraction bar."""


def observed(row: Array | SparseRow) -> tuple[Array, Array]:
    """Columns and values of the entries a row has: the stored ones, or all that are not NaN."""
    if isinstance(row, SparseRow):
        return row.indices, row.values.astype(np.float64)
    columns = np.flatnonzero(~np.isnan(row))
    return columns, row[columns].astype(np.float64)


@overload(observed)  # type: ignore[untyped-decorator]
def _observed(row: Any) -> Any:
    def dense(row: Any) -> Any:
        columns = np.flatnonzero(~np.isnan(row))
        return columns, row[columns].astype(np.float64)

    def sparse(row: Any) -> Any:
        return row.indices, row.values.astype(np.float64)

    return dense if isinstance(row, types.Array) else sparse


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def start_row(factors: Array, columns: Array, values: Array, weights: Array) -> None:
    """Equal weights that fit the row best, unless it was given some; of an empty row those that predict 1."""
    if weights.any():
        return
    above, below = 0.0, 0.0
    for t in range(columns.shape[0]):
        whole = factors[columns[t]].sum()
        above += whole * values[t]
        below += whole * whole
    weights[:] = above / below if below > 0.0 else 1.0 / np.sqrt(weights.shape[0])


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def solve_row(factors: Array, columns: Array, values: Array, weights: Array, penalty: float, sweeps: int) -> float:
    """Coordinate descent on Σ(x − w·h)² + n·penalty·‖w‖², w ≥ 0, in place; the value reached."""
    rank, entries = weights.shape[0], columns.shape[0]
    if entries == 0:
        return 0.0
    gram = np.zeros((rank, rank))
    pull = np.zeros(rank)  # minus half the gradient
    for t in range(entries):
        h = factors[columns[t]]
        for f in range(rank):
            pull[f] += values[t] * h[f]
            for g in range(rank):
                gram[f, g] += h[f] * h[g]
    for f in range(rank):
        gram[f, f] += entries * penalty
    for f in range(rank):
        for g in range(rank):
            pull[f] -= gram[f, g] * weights[g]
    for _ in range(sweeps):
        for f in range(rank):
            if gram[f, f] > 0.0:
                step = max(pull[f] / gram[f, f], -weights[f])
                weights[f] += step
                for g in range(rank):
                    pull[g] -= step * gram[f, g]
    value = entries * penalty * (weights * weights).sum()
    for t in range(entries):
        error = values[t] - (weights * factors[columns[t]]).sum()
        value += error * error
    return value


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def multiply_row(factors: Array, columns: Array, values: Array, weights: Array, penalty: float) -> float:
    """Lee and Seung's rule for one row, in place; the sum of its squares. Needs all of H, for the gram of H."""
    return multiply_row_with(factors, gram_of(factors), columns, values, weights, penalty)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def multiply_row_with(
    factors: Array, gram: Array, columns: Array, values: Array, weights: Array, penalty: float
) -> float:
    rank = weights.shape[0]
    above = np.zeros(rank)
    squares = 0.0
    for t in range(columns.shape[0]):
        squares += values[t] * values[t]
        for f in range(rank):
            above[f] += values[t] * factors[columns[t], f]
    below = np.zeros(rank)
    for f in range(rank):
        below[f] = penalty * factors.shape[0] * weights[f]
        for g in range(rank):
            below[f] += gram[f, g] * weights[g]
    for f in range(rank):
        weights[f] *= above[f] / (below[f] if below[f] > 0.0 else EPSILON)
    return squares


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def gram_of(factors: Array) -> Array:
    rank = factors.shape[1]
    gram = np.zeros((rank, rank))
    for j in range(factors.shape[0]):
        for f in range(rank):
            for g in range(rank):
                gram[f, g] += factors[j, f] * factors[j, g]
    return gram


def fold_in(features: Any, factors: Array, scale: float, penalty: float, only_observed: bool) -> Array:
    """Weights of new rows for a given H: each solved to convergence, over observed entries or over all columns."""
    factors = np.ascontiguousarray(factors, dtype=np.float64)
    rows = len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)
    weights = np.zeros((rows, factors.shape[1]))
    gram = factors.T @ factors
    for i in range(rows):
        columns, entries = observed(_row(features, i))
        values = entries / scale
        start_row(factors, columns, values, weights[i])
        if only_observed:
            solve_row(factors, columns, values, weights[i], penalty, 50)
        else:
            _solve_whole(gram + len(factors) * penalty * np.eye(len(gram)), factors[columns].T @ values, weights[i])
    return weights


def _row(features: Any, i: int) -> Any:
    if not isinstance(features, Sparse):
        return np.asarray(features[i])
    lo, hi = features.indptr[i : i + 2]
    return SparseRow(features.indices[lo:hi], features.values[lo:hi])


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _solve_whole(gram: Array, target: Array, weights: Array) -> None:
    """Coordinate descent on wᵀ·gram·w − 2·target·w, w ≥ 0, in place."""
    for _ in range(200):
        for f in range(weights.shape[0]):
            if gram[f, f] > 0.0:
                weights[f] = max(weights[f] + (target[f] - (gram[f] * weights).sum()) / gram[f, f], 0.0)
