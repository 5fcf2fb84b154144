"""Rows of a block in the coordinates of a search, dense or sparse: scores, and sums of first and second derivatives.

A row is ((x − shift) / unit, 1). Sparse rows are not shifted. Never decides what is done with the sums.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from flegel.algorithms.rows import times
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array, protected
from flegel.core.shard import Sparse

_ADD_OUTER = EntryPoint("flegel.algorithms.sparse_products", "add_outer")


class GlmRows(Protocol):
    def scores(self, theta: Array) -> Array:
        """Of each row; the bias is the last number."""

    def gradient(self, steps: Array) -> Array:
        """Σ steps · row."""

    def curvature(self, steps: Array, full: bool) -> Array:
        """Σ steps · row·rowᵀ, or its diagonal as one row."""


def rows_for_glm(features: Any, metric: Array) -> GlmRows:
    return _SparseRows(features, metric) if isinstance(features, Sparse) else _DenseRows(features, metric)


class _DenseRows:
    def __init__(self, features: Array, metric: Array) -> None:
        count, columns = features.shape
        self._rows = np.empty((count, columns + 1))
        np.subtract(features, metric[0], out=self._rows[:, :columns])
        self._rows[:, :columns] /= metric[1]
        self._rows[:, columns] = 1.0

    def scores(self, theta: Array) -> Array:
        return np.asarray(self._rows @ theta)

    def gradient(self, steps: Array) -> Array:
        return np.asarray(steps @ self._rows)

    def curvature(self, steps: Array, full: bool) -> Array:
        if not full:
            return np.asarray(steps @ self._rows**2)[None]
        return np.asarray((self._rows * steps[:, None]).T @ self._rows)


class _SparseRows:
    def __init__(self, features: Sparse, metric: Array) -> None:
        self._columns = metric.shape[1]
        values = np.asarray(features.values, np.float64) / metric[1][features.indices]
        self._rows = Sparse(np.asarray(features.indptr, np.int64), features.indices, values, self._columns)
        self._owner = np.repeat(np.arange(len(features.indptr) - 1), np.diff(features.indptr))

    def scores(self, theta: Array) -> Array:
        return np.asarray(times(self._rows, theta[: self._columns, None])[:, 0] + theta[-1])

    def gradient(self, steps: Array) -> Array:
        terms = self._rows.values * steps[self._owner]
        return np.append(np.bincount(self._rows.indices, terms, minlength=self._columns), steps.sum())

    def curvature(self, steps: Array, full: bool) -> Array:
        if not full:
            terms = self._rows.values**2 * steps[self._owner]
            return np.append(np.bincount(self._rows.indices, terms, minlength=self._columns), steps.sum())[None]
        sums = np.zeros((self._columns + 1, self._columns + 1))
        rows = (self._rows.indptr, self._rows.indices, self._rows.values, np.ascontiguousarray(steps))
        _ADD_OUTER(*map(protected, rows), sums)
        sums += np.tril(sums, -1).T
        sums[-1] = sums[:, -1] = self.gradient(steps)
        return sums
