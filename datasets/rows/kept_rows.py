"""Rows of another source without those that are held out of training. Never decides how many these are.

Which rows are held out follows from their number and a seed alone, one out of each run of neighbours of the same
length: every process finds the same ones without reading a row.
"""

from __future__ import annotations

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.descriptions import source_from
from flegel.datasets.rows.row_ranges import compress, expand
from flegel.datasets.rows.source import Description, Rows, Source, WrappedSource
from flegel.errors import DataError


def held_out_ids(rows: int, part: float, seed: int) -> Array:
    """Ascending numbers of the rows that are held out: `part` of them, rounded, at least one."""
    count = max(1, round(part * rows))
    if count >= rows:
        raise DataError(
            f"Of {rows} rows {count} would be held out, and none left to train on; hold a smaller part out."
        )
    bounds = np.linspace(0, rows, count + 1).astype(np.int64)
    return np.random.default_rng([seed & (2**64 - 1), 1]).integers(bounds[:-1], bounds[1:])


class KeptRows(WrappedSource):
    """The first `rows` rows of `inner` without those that are held out, numbered anew without gaps."""

    kind = "kept"

    def __init__(self, inner: Source, rows: int, part: float, seed: int) -> None:
        self.inner, self._told = inner, (rows, part, seed)
        self._held = held_out_ids(rows, part, seed)
        self._before = self._held - np.arange(len(self._held))
        """How many kept rows come before each row that is held out."""
        self.rows, self.columns, self.origin = rows - len(self._held), inner.columns, inner.origin
        self.names, self.labelled, self.classes = inner.names, inner.labelled, inner.classes
        self.sparse, self.weighted, self.label_values = inner.sparse, inner.weighted, inner.label_values
        self.keyed = inner.keyed
        self.treatment, self.report = inner.treatment, inner.report

    def over(self, inner: Source) -> KeptRows:
        """The same rows out of another source that holds the same."""
        return KeptRows(inner, *self._told)

    def _inner_ids(self, ids: Array) -> Array:
        return np.asarray(ids + np.searchsorted(self._before, ids, side="right"))

    def _wide(self, ranges: Array) -> Array:
        """From the first to the last row of each range, with held-out ones between them."""
        return np.stack([self._inner_ids(ranges[:, 0]), self._inner_ids(ranges[:, 1] - 1) + 1], axis=1)

    def _is_kept(self, inner_ids: Array) -> Array:
        place = np.searchsorted(self._held, inner_ids).clip(max=len(self._held) - 1)
        return np.asarray(self._held[place] != inner_ids)

    def _kept(self, rows: Rows) -> Rows:
        """With numbers of this source."""
        return rows._replace(ids=rows.ids - np.searchsorted(self._held, rows.ids))

    def take(self, ranges: Array, rng: np.random.Generator | None = None) -> Rows:
        """Ranges are read with the held-out rows inside them, which are then left out: reading in many short ranges
        would take longer."""
        ranges = ranges[ranges[:, 1] > ranges[:, 0]]
        if self.sparse:  # reads row by row anyway
            return self._kept(self.inner.take(compress(self._inner_ids(expand(ranges))), rng))
        rows = self.inner.take(self._wide(ranges), rng)
        own = self._is_kept(rows.ids)
        if own.all():
            return self._kept(rows)
        assert not isinstance(rows.features, Sparse)
        labels, weights = (None if one is None else one[own] for one in (rows.labels, rows.weights))
        return self._kept(Rows(rows.features[own], labels, rows.ids[own], weights))

    def pick(self, ids: Array) -> Rows:
        return self._kept(self.inner.pick(self._inner_ids(ids)))

    def labels_of(self, window: Array) -> Array:
        wide = self._wide(window[window[:, 1] > window[:, 0]])
        return self.inner.labels_of(wide)[self._is_kept(expand(wide))]

    def edges(self) -> Array | None:
        found = self.inner.edges()
        if found is None:
            return None
        inside = found[found < self._told[0]]
        return np.unique(np.append(inside - np.searchsorted(self._held, inside), self.rows))

    def column(self, index: int) -> Array:
        return np.delete(self.inner.column(index)[: self._told[0]], self._held)

    def row_weights(self) -> Array:
        return np.delete(self.inner.row_weights()[: self._told[0]], self._held)

    def keys(self) -> Array:
        return np.delete(self.inner.keys()[: self._told[0]], self._held)

    def describe(self) -> Description:
        rows, part, seed = self._told
        return {
            "kind": self.kind,
            "inner": self.inner.describe(),
            "dtype": self.dtype.name,
            "rows": rows,
            "part": part,
            "seed": seed,
        }

    @classmethod
    def from_description(cls, description: Description) -> Source:
        inner = source_from(description["inner"])
        return cls(inner, description["rows"], description["part"], description["seed"])
