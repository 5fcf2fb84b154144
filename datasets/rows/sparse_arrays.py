"""Sparse rows in CSR arrays: in the memory of this process, or mapped from `.npy` files.

Rows are converted when they are read. Never parses text, never copies a whole set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.arrays import About, KeptSource, described, open_npy, wanted_dtype
from flegel.datasets.rows.memory import allocate
from flegel.datasets.rows.row_ranges import expand
from flegel.datasets.rows.source import Description, Rows, Source, check_finite, column_name
from flegel.errors import DataError
from flegel.wording import number


class SparseSource(KeptSource):
    """Sparse rows (CSR) in arrays, in memory or mapped."""

    kind = "csr"
    sparse = True

    def __init__(
        self,
        matrix: Sparse,
        labels: Array | None = None,
        *,
        origin: str,
        dtype: str | None = None,
        **about: Unpack[About],
    ) -> None:
        self.matrix = matrix
        self.rows, self.columns = len(matrix.indptr) - 1, matrix.columns
        if self.rows <= 0 or self.columns <= 0:
            raise DataError(
                f"{origin} has the shape ({self.rows}, {self.columns}), which holds no rows; "
                "give at least one row and one column."
            )
        self._keep(origin, wanted_dtype(matrix.values.dtype, dtype), labels, about)

    def take(self, ranges: Array, rng: np.random.Generator | None = None) -> Rows:
        """Copies only the entries of the wanted rows; rows are shuffled before they are read."""
        ids = expand(ranges)
        if rng is not None:
            ids = rng.permutation(ids)
        starts, stops = np.asarray(self.matrix.indptr[ids]), np.asarray(self.matrix.indptr[ids + 1])
        indptr = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(stops - starts, out=indptr[1:])
        indices = allocate((int(indptr[-1]),), np.dtype(np.int32))
        values = allocate((int(indptr[-1]),), self.dtype)
        step = 1 << 16
        for lo in range(0, len(ids), step):
            part = slice(lo, lo + step)
            where = expand(np.stack([starts[part], stops[part]], axis=1))
            span = slice(int(indptr[lo]), int(indptr[lo]) + len(where))
            indices[span] = self.matrix.indices[where]
            values[span] = self.matrix.values[where]
        labels = None if self.labels is None else np.array(self.labels[ids], np.float64)
        found = Sparse(indptr, indices, values, self.columns)
        check_finite_entries(found, ids, self.names, self.origin)
        check_finite(np.empty((0, 0)), labels, ids, self.names, self.origin)
        return Rows(found, labels, ids)

    def column(self, index: int) -> Array:
        if index < 0:
            return np.array(self.labels, np.float64)
        values = np.zeros(self.rows)
        at = np.flatnonzero(np.asarray(self.matrix.indices) == index)
        values[np.searchsorted(self.matrix.indptr, at, side="right") - 1] = self.matrix.values[at]
        return values

    def describe(self) -> Description:
        """What a worker needs to open the same rows: only arrays that lie in files can be opened elsewhere."""
        return {**super().describe(), "columns": self.columns}

    @classmethod
    def from_description(cls, description: Description) -> Source:
        indptr, indices, values, labels = (
            None if path is None else open_npy(Path(path)) for path in description["paths"]
        )
        assert indptr is not None and indices is not None and values is not None
        return cls(
            Sparse(indptr, indices, values, description["columns"]),
            labels,
            **described(description),
        )


def check_finite_entries(rows: Sparse, ids: Array, names: list[str] | None, origin: str) -> None:
    """Raise for the first NaN or infinity among the stored entries, by row and column."""
    values = rows.values
    if len(values) and not np.isfinite(values.sum(dtype=np.float64)):
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            row = ids[np.searchsorted(rows.indptr, bad[0], side="right") - 1]
            where = column_name(names, int(rows.indices[bad[0]]))
            raise DataError(
                f"{origin}: row {number(row)}, {where} is {values[bad[0]]}; every value must be a finite "
                f"{values.dtype.name} number, so drop or fill such rows first."
            )


def checked_csr(indptr: Array, indices: Array, values: Array, shape: Array, origin: str) -> Sparse:
    """Rows of arrays that a file holds: refused where they are no matrix, because kernels read and write at `indices`
    without looking; entries in ascending order, and those that are given twice added."""
    wrong = _what_is_wrong(indptr, indices, values, shape)
    if wrong:
        raise DataError(f"{origin} holds no sparse matrix: {wrong}; save it again with scipy.sparse.save_npz.")
    kept, indptr = int(indptr[-1]), indptr.astype(np.int64)
    indices, values = indices[:kept], values[:kept]
    row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if not ((row[1:] != row[:-1]) | (indices[1:] > indices[:-1])).all():
        order = np.lexsort((indices, row))
        row, indices, values = row[order], indices[order], values[order]
        first = np.flatnonzero(np.append(True, (row[1:] != row[:-1]) | (indices[1:] != indices[:-1])))
        row, indices = row[first], indices[first]
        values = np.add.reduceat(values.astype(np.result_type(values, np.float32)), first)
        indptr = np.searchsorted(row, np.arange(len(indptr)))
    return Sparse(indptr, indices, values, int(shape[1]))


def _what_is_wrong(indptr: Array, indices: Array, values: Array, shape: Array) -> str | None:
    """Why arrays are no CSR matrix, as the part of a sentence."""
    whole = (("shape", shape), ("indptr", indptr), ("indices", indices))
    odd = next((name for name, each in whole if each.ndim != 1 or each.dtype.kind not in "iu"), None)
    if odd is not None:
        return f"{odd} is no list of whole numbers"
    if values.ndim != 1 or values.dtype.kind not in "fiub" or values.dtype.itemsize > 8:
        return f"data holds {values.dtype} values in {values.ndim} dimensions, not a list of real numbers"
    if len(shape) != 2:
        return f"shape has {len(shape)} numbers in place of 2"
    if len(indptr) != int(shape[0]) + 1:
        return f"indptr has {len(indptr)} numbers for {int(shape[0])} rows"
    if indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        return "indptr does not ascend from 0"
    kept = int(indptr[-1])
    if kept > min(len(indices), len(values)):
        return f"it announces {kept} entries and has {min(len(indices), len(values))}"
    if kept and (indices[:kept].min() < 0 or int(indices[:kept].max()) >= int(shape[1])):
        return f"it has entries outside of its {int(shape[1])} columns"
    return None
