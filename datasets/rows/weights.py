"""Weights of rows: beside the rows of another source, or split off from one of its columns.

Checks that weights are finite and not negative. Never changes what the other source reads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.descriptions import source_from
from flegel.datasets.rows.source import Description, Rows, Source, WrappedSource
from flegel.errors import DataError
from flegel.wording import number


def weights_from_column(source: Source, wanted: str | int) -> WeightedSource:
    """The rows without one of their columns, which holds the weights."""
    if source.sparse:
        raise DataError(f"{source.origin} is sparse, so no column of it can hold weights; give (X, y, weights).")
    at = source.feature_of(wanted, "weight column")
    if source.columns == 1:
        raise DataError(f"{source.origin} has no column but the weights; give a file with features.")
    weighted = WeightedSource(source, at=at)
    if source.treatment is not None:
        weighted.treatment = source.treatment.without(at)
        weighted.report = source.report
    return weighted


class WeightedSource(WrappedSource):
    """Rows of `inner`, each with a weight: of the array `weights`, or of the column `at`, which is then no feature."""

    kind = "weighted"
    weighted = True

    def __init__(self, inner: Source, weights: Array | None = None, at: int | None = None) -> None:
        """Weights come from an array, or from column `at` of the features, which is no feature then."""
        self.inner, self.weights, self.at = inner, weights, at
        self.rows, self.origin = inner.rows, inner.origin
        self.labelled, self.classes, self.sparse = inner.labelled, inner.classes, inner.sparse
        self.columns, self.label_values = inner.columns - (at is not None), inner.label_values
        self.names = inner.names
        if inner.names is not None and at is not None:
            self.names = inner.names[:at] + inner.names[at + 1 :]
        if weights is not None:
            if weights.shape != (self.rows,):
                raise DataError(
                    f"{self.origin} has {self.rows} rows, and weights of shape {weights.shape}; give one per row."
                )
            self.weights = _exact(_checked(weights, np.arange(self.rows), self.origin))

    def take(self, ranges: Array, rng: np.random.Generator | None = None) -> Rows:
        return self._weighted(self.inner.take(ranges, rng))

    def pick(self, ids: Array) -> Rows:
        return self._weighted(self.inner.pick(ids))

    def _weighted(self, rows: Rows) -> Rows:
        if self.weights is not None:
            return rows._replace(weights=self.weights[rows.ids])
        assert self.at is not None and not isinstance(rows.features, Sparse)
        weights = _checked(rows.features[:, self.at], rows.ids, self.origin)
        return rows._replace(features=np.delete(rows.features, self.at, axis=1), weights=weights)

    def row_weights(self) -> Array:
        if self.weights is not None:
            return self.weights
        assert self.at is not None
        return _checked(self.inner.column(self.at), np.arange(self.rows), self.origin)

    def in_place(self) -> Rows | None:
        rows = self.inner.in_place() if self.weights is not None else None
        return None if rows is None else rows._replace(weights=self.weights)

    def edges(self) -> Array | None:
        return self.inner.edges()

    def windows(self, ranges: Array) -> Iterator[Array]:
        return self.inner.windows(ranges)

    def record(self, job: str) -> None:
        self.inner.record(job)

    def finish_recording(self, index: int, count: int, good: bool) -> None:
        self.inner.finish_recording(index, count, good)

    def labels_of(self, window: Array) -> Array:
        return self.inner.labels_of(window)

    def column(self, index: int) -> Array:
        return self.inner.column(index + 1 if self.at is not None and index >= self.at else index)

    def describe(self) -> Description:
        described = self.inner.describe()  # raises where the rows are in the memory of this process only
        return {"kind": self.kind, "inner": described, "dtype": self.dtype.name, "at": self.at}

    @classmethod
    def from_description(cls, description: Description) -> Source:
        return cls(source_from(description["inner"]), at=description["at"])


def _exact(weights: Array) -> Array:
    """Rounded to multiples of 2^-50 of a power of two above their sum: sums of any of them, also by difference, then
    have no rounding error, so that a cluster that has lost all its points weighs exactly 0."""
    total = float(weights.sum())
    if not 0 < total < np.inf:
        return weights
    step = 2.0 ** (np.ceil(np.log2(total)) - 50)
    return np.asarray(np.round(weights / step) * step) if step > 0 else weights


def _checked(weights: Array, ids: Array, origin: str) -> Array:
    """In float64."""
    if weights.dtype.kind not in "fiub":
        raise DataError(f"{origin}: weights hold {weights.dtype}, not numbers.")
    checked = weights.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(checked) & (checked >= 0)))
    if len(bad):
        raise DataError(
            f"{origin}: row {number(ids[bad[0]])} has the weight {checked[bad[0]]:g}; weights must be finite and not "
            "negative."
        )
    return checked
