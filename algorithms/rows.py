"""A point's features, dense or sparse, behind two verbs: `dot` and `add_scaled`.

They let one per-point hook serve both kinds of row, interpreted and compiled alike. Never used by the block
kernels, which know their layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flegel.configuration.active import active
from flegel.core.entry_point import EntryPoint
from flegel.core.overloads import is_array, overload
from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array
from flegel.core.shard import Sparse, SparseRow

NUMBERS_AT_ONCE = 2**20
"""Of rows in float64, or of what is computed of them: 8 MB, which a cache holds."""
_MULTIPLY = EntryPoint("flegel.algorithms.sparse_products", "multiply")


def dot(row: Array | SparseRow, weights: Array) -> float:
    """Σ row[t] · weights[t] in float64; `weights` may be longer than the row."""
    if isinstance(row, SparseRow):
        return float(row.values.astype(np.float64) @ weights[row.indices])
    return float(row.astype(np.float64) @ weights[: len(row)])


def add_scaled(row: Array | SparseRow, scale: float, target: Array) -> None:
    """target[t] += scale · row[t]."""
    if isinstance(row, SparseRow):
        np.add.at(target, row.indices, scale * row.values.astype(np.float64))
    else:
        target[: len(row)] += scale * row.astype(np.float64)


def rows_of(features: Any) -> int:
    """Number of rows, dense or sparse."""
    return len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)


def row_parts(features: Any, width: int) -> Iterator[tuple[int, int, Any]]:
    """Where a part begins and ends, and its rows; in float64, `width` numbers a row of it fill `NUMBERS_AT_ONCE`."""
    rows = rows_of(features)
    several = max(NUMBERS_AT_ONCE // max(width, 1), 1)
    for first in range(0, rows, several):
        end = min(first + several, rows)
        if isinstance(features, Sparse):
            part = features.indptr[first : end + 1]
            inside = slice(int(part[0]), int(part[-1]))
            yield (
                first,
                end,
                Sparse(part - part[0], features.indices[inside], features.values[inside], features.columns),
            )
        else:
            yield first, end, features[first:end]


def times(features: Any, weights: Array) -> Array:
    """features · weights for whole matrices in float64; `weights` is (columns, outputs)."""
    if not isinstance(features, Sparse):
        result = np.empty((rows_of(features), weights.shape[1]))
        for first, end, rows in row_parts(features, weights.shape[0]):
            np.matmul(np.asarray(rows, dtype=np.float64), weights, out=result[first:end])
        return result
    result = np.zeros((rows_of(features), weights.shape[1]))
    if len(features.values) * weights.shape[1] >= active().shapes.compiled_sparse_products:
        dense, rows = np.ascontiguousarray(weights, np.float64), features

        def multiply(first: int, stop: int) -> None:
            _MULTIPLY(rows.indptr[first : stop + 1], rows.indices, rows.values, dense, result[first:stop])

        in_pieces(len(result), active().processors.sparse_rows_at_once, multiply)
        return result
    row = np.repeat(np.arange(len(result)), np.diff(features.indptr))
    for output in range(weights.shape[1]):
        terms = features.values * weights[features.indices, output]
        result[:, output] = np.bincount(row, terms, minlength=len(result))
    return result


@overload(dot)
def _dot(row: Any, weights: Any) -> Any:
    def dense(row: Any, weights: Any) -> Any:
        value = 0.0
        for t in range(row.shape[0]):
            value += np.float64(row[t]) * weights[t]
        return value

    def sparse(row: Any, weights: Any) -> Any:
        value = 0.0
        for t in range(row.indices.shape[0]):
            value += np.float64(row.values[t]) * weights[row.indices[t]]
        return value

    return dense if is_array(row) else sparse


@overload(add_scaled)
def _add_scaled(row: Any, scale: Any, target: Any) -> Any:
    def dense(row: Any, scale: Any, target: Any) -> Any:
        for t in range(row.shape[0]):
            target[t] += scale * row[t]

    def sparse(row: Any, scale: Any, target: Any) -> Any:
        for t in range(row.indices.shape[0]):
            target[row.indices[t]] += scale * row.values[t]

    return dense if is_array(row) else sparse
