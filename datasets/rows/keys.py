"""Keys of rows: rows of one key stay together on one worker (`--keep-together COLUMN`). The column is then no feature.

Which worker gets which keys follows from the keys, the number of workers and the seed alone (`deal_keys`), so that
every process finds the same. Never reads more of the rows than that column.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from flegel.core.key_borders import order_by_key
from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.descriptions import source_from
from flegel.datasets.rows.partition import Partition, shard_rng
from flegel.datasets.rows.source import Description, Rows, Source, WrappedSource
from flegel.errors import DataError, UsageError
from flegel.wording import counted, option


def keys_from_column(source: Source, wanted: str | int) -> KeyedSource:
    """The rows without one of their columns, which holds the keys."""
    if source.sparse:
        raise DataError(
            f"{source.origin} is sparse, so no column of it can hold keys; {option('keep_together')} needs dense rows."
        )
    at = source.feature_of(wanted, "column of keys")
    if source.columns == 1:
        raise DataError(f"{source.origin} has no column but the keys; give a file with features.")
    keyed = KeyedSource(source, at=at)
    if source.treatment is not None:
        keyed.treatment = source.treatment.without(at, "the key of each row")
        told = f"  {source.names[at]}: rows of one value stay together; no feature" if source.names else ""
        keyed.report = (*source.report, *filter(None, [told]))
    return keyed


class KeyedSource(WrappedSource):
    """Rows of `inner`, each with a key: of the array `known`, or of the column `at`, which is then no feature."""

    kind = "keyed"
    keyed = True

    def __init__(self, inner: Source, known: Array | None = None, at: int | None = None) -> None:
        self.inner, self.known, self.at = inner, known, at
        self.rows, self.origin = inner.rows, inner.origin
        self.labelled, self.classes, self.sparse = inner.labelled, inner.classes, inner.sparse
        self.weighted, self.label_values = inner.weighted, inner.label_values
        self.columns, self.names = inner.columns - (at is not None), inner.names
        if inner.names is not None and at is not None:
            self.names = inner.names[:at] + inner.names[at + 1 :]

    def keys(self) -> Array:
        """The key of each row as a number from 0."""
        if self.known is None:
            assert self.at is not None
            found = np.unique(self.inner.column(self.at), return_inverse=True)[1].reshape(-1)
            self.known = found.astype(np.int32) if len(found) < 2**31 else found
        return self.known

    def take(self, ranges: Array, rng: np.random.Generator | None = None) -> Rows:
        return self._features(self.inner.take(ranges, rng))

    def pick(self, ids: Array) -> Rows:
        return self._features(self.inner.pick(ids))

    def _features(self, rows: Rows) -> Rows:
        if self.at is None:
            return rows
        assert not isinstance(rows.features, Sparse)
        return rows._replace(features=np.delete(rows.features, self.at, axis=1))

    def edges(self) -> Array | None:
        return self.inner.edges()

    def windows(self, ranges: Array) -> Iterator[Array]:
        return self.inner.windows(ranges)

    def row_weights(self) -> Array:
        return self.inner.row_weights()

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


def deal_keys(keys: Array, count: int, wanted: Partition, seed: int) -> list[Array]:
    """Row numbers of each worker: whole keys, the largest first, each to the worker that lacks most of its share;
    equally large ones in random order."""
    sizes = np.bincount(keys)
    working = _shares(count, wanted)
    if len(sizes) < np.count_nonzero(working):
        raise UsageError(
            f"{option('keep_together')}: {counted(int(np.count_nonzero(working)), 'worker')} need as many keys, and "
            f"the rows have {len(sizes)}; use at most {counted(len(sizes), 'worker')}."
        )
    shuffled = shard_rng(seed, count).permutation(len(sizes))
    owners = np.empty(len(sizes), np.int64)
    surplus = [(-share * len(keys), worker) for worker, share in enumerate(working.tolist()) if share > 0]
    heapq.heapify(surplus)  # rows beyond the share of each worker, the least first
    for key in shuffled[np.argsort(-sizes[shuffled], kind="stable")].tolist():
        rows, owner = surplus[0]
        owners[key] = owner
        heapq.heapreplace(surplus, (rows + int(sizes[key]), owner))
    _nobody_without(owners, sizes, working)
    of_rows, dealt = owners[keys], []
    for worker in range(count):
        mine = np.flatnonzero(of_rows == worker)
        dealt.append(mine[order_by_key(keys[mine], shard_rng(seed, worker))])
    return dealt


def _shares(count: int, wanted: Partition) -> Array:
    """The part of the rows that each worker is to get."""
    shares = np.ones(count)
    for worker, share in wanted.shares:
        if worker < count:
            shares[worker] = share
    return np.asarray(shares / shares.sum())


def _nobody_without(owners: Array, sizes: Array, working: Array) -> None:
    """Who works has a key at least: the smallest one of whoever has most keys."""
    for worker in np.flatnonzero(working > 0).tolist():
        if not (owners == worker).any():
            giver = int(np.bincount(owners, minlength=len(working)).argmax())
            theirs: Sequence[int] = np.flatnonzero(owners == giver).tolist()
            owners[min(theirs, key=lambda key: int(sizes[key]))] = worker
