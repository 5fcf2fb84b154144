"""Second derivatives of logistic regression, summed over points: Σ h·x̃·x̃ᵀ by difference, dense and sparse.

x̃ = ((x − mean) / unit, 1), so that sums of features with large offsets or scales keep their digits. h is the second
derivative of a point's loss by its score. A point's h is counted again only where it has changed by more than a given
part: as the weights settle, passes cost no more than their gradients. Only the lower triangle is summed; where columns
are many, only the diagonal. Never decides what is done with the sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from flegel.algorithms.simd.registers import ONE_REGISTER, VECTOR_BYTES
from flegel.algorithms.simd.vectors import fma_each, lane_count, load, loads, splats, store_each
from flegel.core.code_cache import njit
from flegel.core.pytree import Array
from flegel.core.shard import SparseRow

POINTS_IN_REGISTERS = 128
"""Points whose products are summed in registers before they go to memory."""
TILE_ROWS = 8
"""A register tile is so many registers of sums: independent ones, as many as keep two multipliers busy."""
SIDE = max(VECTOR_BYTES // 4, TILE_ROWS)
"""Widths are a multiple of it, so that no register tile reaches beyond the sums: a register has 4 to 16 numbers of
float32, and half as many of float64."""


def add_outer(row: Array | SparseRow, step: float, metric: Array, target: Array) -> None:
    """target += step · x̃·x̃ᵀ, lower triangle; target += step · x̃² where it holds a diagonal only."""
    columns = metric.shape[1] - 1
    full = np.zeros(columns + 1)
    full[columns] = 1.0
    if isinstance(row, SparseRow):
        full[row.indices] = row.values / metric[1, row.indices]
    else:
        full[:columns] = (row - metric[0, :columns]) / metric[1, :columns]
    target += step * full**2 if target.shape[0] == 1 else np.tril(step * np.outer(full, full))


@overload(add_outer)
def _add_outer(row: Any, step: Any, metric: Any, target: Any) -> Any:
    """Compiled: add `step` times the outer product of a row, dense or sparse, in the coordinates of `metric`."""

    def dense(row: Any, step: Any, metric: Any, target: Any) -> Any:
        dense_outer(row, step, metric, target)

    def sparse(row: Any, step: Any, metric: Any, target: Any) -> Any:
        sparse_outer(row.indices, row.values, step, metric, target)

    return dense if isinstance(row, types.Array) else sparse


@njit(nogil=True, cache=True)
def dense_outer(row, step, metric, target):
    """Add step · x xᵀ in standard coordinates, the lower triangle only; the diagonal alone where the target has one
    row."""
    columns = metric.shape[1] - 1
    full = np.empty(columns + 1)
    for t in range(columns):
        full[t] = (row[t] - metric[0, t]) / metric[1, t]
    full[columns] = 1.0
    if target.shape[0] == 1:
        for t in range(columns + 1):
            target[0, t] += step * full[t] * full[t]
        return
    for t in range(columns + 1):
        scaled = step * full[t]
        for s in range(t + 1):
            target[t, s] += scaled * full[s]


@njit(nogil=True, cache=True)
def sparse_outer(indices, values, step, metric, target):
    """Sparse rows are not centered: `metric[0]` is 0 for them."""
    columns = metric.shape[1] - 1
    full = target.shape[0] > 1
    for i in range(indices.shape[0]):
        t = indices[i]
        mine = values[i] / metric[1, t]
        scaled = step * mine
        if not full:
            target[0, t] += scaled * mine
            continue
        for j in range(i + 1):
            s = indices[j]
            target[max(s, t), min(s, t)] += scaled * (values[j] / metric[1, s])
        target[columns, t] += scaled
    if full:
        target[columns, columns] += step
    else:
        target[0, columns] += step


@njit(nogil=True, cache=True)
def width_of(columns):
    """Columns and the bias, filled up to whole register tiles."""
    return (columns + SIDE) // SIDE * SIDE


@njit(nogil=True, cache=True)
def gather(features, tile, lane, metric, inverse, rows, place):
    """x̃ of one point of a tile into a row of the block."""
    columns = metric.shape[1] - 1
    for t in range(columns):
        rows[place, t] = (features[tile, t, lane] - metric[0, t]) * inverse[t]
    rows[place, columns] = 1.0


@njit(nogil=True, cache=True)
def squares(features, tile, lane, metric, inverse, row):
    """x̃² of one point of a tile: what it adds to a diagonal, but for h."""
    columns = metric.shape[1] - 1
    for t in range(columns):
        value = (features[tile, t, lane] - metric[0, t]) * inverse[t]
        row[t] = value * value
    row[columns] = 1.0


@njit(nogil=True, cache=True)
def add_squares(row, step, target):
    for t in range(target.shape[0]):
        target[t] += step * row[t]


@njit(nogil=True, cache=True)
def add_block(rows, steps, count, scaled, sums):
    """sums[k] += Σ over the block's points of steps[k]·x̃·x̃ᵀ, lower triangle, in whole register tiles; the width is
    a multiple of their sides."""
    width, lanes = rows.shape[1], lane_count(rows, ONE_REGISTER)
    for k in range(sums.shape[0]):
        for p in range(count):
            for t in range(width):
                scaled[p, t] = steps[k, p] * rows[p, t]
        for r in range(0, width, TILE_ROWS):
            for c in range(0, r + TILE_ROWS, lanes):
                into = (k * width + r) * width + c
                tile = loads(sums, into, width, TILE_ROWS, ONE_REGISTER)
                for p in range(count):
                    x = load(rows, p * width + c, ONE_REGISTER)
                    tile = fma_each(x, splats(scaled, p * width + r, TILE_ROWS, ONE_REGISTER), tile)
                store_each(sums, into, width, tile)


@njit(nogil=True, cache=True)
def unload(sums, curvature):
    """The block's sums, lower triangle without the filling, into the statistics."""
    for k in range(curvature.shape[0]):
        for t in range(curvature.shape[1]):
            for s in range(t + 1):
                curvature[k, t, s] += sums[k, t, s]
