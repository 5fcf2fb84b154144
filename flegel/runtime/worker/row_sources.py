"""Where a worker's rows come from: memory of this host or of another, or its own part of a data set. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array
from flegel.core.row_windows import RowWindows
from flegel.core.shard import Sparse
from flegel.core.unit_rows import unit_dense, unit_entries
from flegel.datasets import Rows, read_rows, read_shard, stream_shard
from flegel.datasets.rows import scale
from flegel.datasets.rows.keys import deal_keys
from flegel.datasets.rows.partition import parse
from flegel.errors import DataError, ProtocolError
from flegel.messages import LoadShard
from flegel.runtime.system.freed_memory import return_freed_memory
from flegel.runtime.transport.shared_memory import JobArray, SharedArray, open_shared
from flegel.runtime.worker.rows_in_place import IN_PLACE, OpenArray, fetch_ids, fetch_own

ROWS_PER_COPY = 1 << 16  # rows that a thread copies at a time


class ShardRows(NamedTuple):
    """Rows of a shard: as `Rows`, but features may be read only when they are laid out."""

    features: Array | Sparse | RowWindows
    labels: Array | None
    ids: Array
    weights: Array | None


class SharedRows:
    """The whole data in memory that workers can read, each one's rows (`owners`: their numbers) beside each other."""

    def __init__(
        self,
        features: Array | Sparse,
        labels: Array | None,
        owners: list[Array],
        new_array: Callable[[tuple[int, ...], np.dtype[Any]], JobArray] = SharedArray,
        weights: Array | None = None,
        unit: bool = False,
    ) -> None:
        """`unit`: the copies get the length 1."""
        self._owned: list[JobArray] = []
        self._new_array = new_array
        self._bounds = np.cumsum([0, *map(len, owners)]).tolist()
        order, self._ids = self._lay_side_by_side(owners)
        if isinstance(features, Sparse):
            features = reorder(features, order)
            if unit:
                features = features._replace(values=unit_entries(features.indptr, features.values, own=True))
            self._features: dict[str, Any] = {
                "indptr": self._put(features.indptr),
                "indices": self._put(features.indices),
                "values": self._put(features.values),
                "columns": features.columns,
            }
        else:
            self._features = {"dense": self._put(features, order)}
            if unit:
                unit_dense(self._owned[-1].array, own=True)
        self._labels = self._put(labels, order) if labels is not None else None
        self._weights = self._put(weights, order) if weights is not None else None

    def _lay_side_by_side(self, owners: list[Array]) -> tuple[Array, dict[str, Any]]:
        """The numbers of all rows in the order of their owners, and the description of that array."""
        shared = self._new_array((self._bounds[-1],), np.result_type(*owners))
        self._owned.append(shared)
        into, bounds = shared.array, self._bounds

        def copy(first: int, _: int) -> None:
            into[bounds[first] : bounds[first + 1]] = owners[first]

        in_pieces(len(owners), 1, copy)
        return into, shared.describe()

    def _put(self, values: Array, order: Array | None = None) -> dict[str, Any]:
        """Copy an array, or its rows in this `order`, into memory that all workers can open; returns how they find
        it."""
        shared = self._new_array(values.shape, values.dtype)
        if order is None:
            shared.array[...] = values
        else:
            into, rows = shared.array, order

            def gather(start: int, end: int) -> None:  # modes other than clip make a second copy first
                np.take(values, rows[start:end], axis=0, out=into[start:end], mode="clip")

            in_pieces(len(rows), ROWS_PER_COPY, gather)
        self._owned.append(shared)
        return shared.describe()

    def describe(self) -> dict[str, Any]:
        """The arrays as plain data, by which `load_rows` opens them in a worker; the rows of worker i lie between
        bounds i and i + 1."""
        return {
            "kind": "memory",
            "bounds": self._bounds,
            "features": self._features,
            "labels": self._labels,
            "ids": self._ids,
            "weights": self._weights,
        }

    def close(self) -> None:
        for shared in self._owned:
            shared.close()
        self._owned.clear()


def reorder(features: Sparse, order: Array) -> Sparse:
    """Rows of a sparse matrix in another order, or some of them."""
    lengths = np.diff(features.indptr)[order]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    gather = np.repeat(features.indptr[:-1][order] - indptr[:-1], lengths) + np.arange(indptr[-1])
    return Sparse(indptr, features.indices[gather], features.values[gather], features.columns)


def open_ids(source: dict[str, Any], wanted: Array, open_array: OpenArray = open_shared) -> Rows:
    """Rows by their numbers, in the order of these, whoever had them before."""
    if source.get("kind") == IN_PLACE:
        return _as_shared(fetch_ids(source, wanted, open_array))
    if source.get("kind") == "dataset":
        rows = read_rows(source["description"], wanted)
        order = np.searchsorted(rows.ids, wanted)
    else:
        rows = open_rows({**source, "bounds": [0, source["bounds"][-1]]}, 0, 1, 0, open_array=open_array)
        order = np.flatnonzero(rows.ids == wanted[0]) if len(wanted) == 1 else _places(rows.ids)[wanted]
    features, labels = rows.features, rows.labels
    found: Array | Sparse = reorder(features, order) if isinstance(features, Sparse) else features[order]
    weights = None if rows.weights is None else rows.weights[order]
    kept = Rows(found, None if labels is None else labels[order], rows.ids[order], weights)
    return kept if source.get("kind") == "dataset" else _as_shared(kept)


def _places(ids: Array) -> Array:
    """Where each number is."""
    places = np.empty(len(ids), np.int64)
    places[ids] = np.arange(len(ids))
    return places


def _as_shared(rows: Rows) -> Rows:
    """Read-only where rows in shared memory are: to compiled code these are different types."""
    features = rows.features
    arrays = [features.indices, features.values] if isinstance(features, Sparse) else [features]
    for array in [*arrays, *(a for a in (rows.labels, rows.weights) if a is not None)]:
        array.flags.writeable = False
    return rows


def open_rows(
    source: dict[str, Any],
    index: int,
    count: int,
    seed: int,
    ids: Array | None = None,
    open_array: OpenArray = open_shared,
) -> Rows:
    """Features, labels, weights and ids of the rows of one worker.

    `ids`: the rows must be these, in this order. Those of a share as it was dealt are read as ever and compared.
    `open_array`: how the arrays that a source describes are opened.
    """
    rows = _open_rows(source, index, count, seed, open_array)
    _check_ids(rows.ids, ids)
    return rows


def load_rows(
    load: LoadShard,
    scaling: tuple[Array, ...],
    ids: Array | None,
    measured: tuple[Any, Rows] | None,
    open_array: OpenArray,
) -> ShardRows:
    """The rows of a shard: those that were just `measured`, or read now; scaled where that was asked for."""
    if load.source.get("kind") == IN_PLACE and not load.empty:
        return _fetched(load, scaling, ids, open_array)
    if load.empty:
        one = np.zeros(1, np.int64)  # to show what rows look like
        rows = open_ids(load.source, one, open_array)
    elif measured is not None and measured[0] == (load.source, load.index, load.count, load.seed):
        rows = measured[1]
    else:
        by_shares = "=" in load.source.get("partition", "")  # which may depend on the devices of this time
        moved = load.kept is not None and (load.kept.version or by_shares)
        if moved and ids is not None and load.source.get("kind") == "dataset":
            rows = open_ids(load.source, ids, open_array)
        else:
            if load.source.get("kind") == "dataset" and ids is None and not scaling and "keys" not in load.source:
                where = load.source["description"], load.index, load.count, load.source["partition"], load.seed
                if (streamed := stream_shard(*where)) is not None:
                    return_freed_memory()  # windows come and go
                    return ShardRows(*streamed)
            rows = open_rows(load.source, load.index, load.count, load.seed, ids, open_array)
    features = scale.apply(rows.features, scale.Scaling(*scaling)) if scaling else rows.features
    return ShardRows(features, rows.labels, rows.ids, rows.weights)


def _fetched(load: LoadShard, scaling: tuple[Array, ...], ids: Array | None, open_array: OpenArray) -> ShardRows:
    """Rows in the memory of the process that started the job, read when they are laid out."""
    features, labels, own, weights = fetch_own(load.source, load.index, load.count, load.seed, open_array)
    _check_ids(own, ids)
    scaled = scale.apply(features.whole(), scale.Scaling(*scaling)) if scaling else features
    return ShardRows(scaled, labels, own, weights)


def _check_ids(found_ids: Array, wanted_ids: Array | None) -> None:
    if wanted_ids is not None and not np.array_equal(found_ids, wanted_ids):
        raise DataError("The rows of this shard are not those of the checkpoint; the data have changed.")


def open_keys(source: dict[str, Any], open_array: OpenArray) -> Array | None:
    """The key of each row of the whole data; None where rows need not stay together."""
    return None if "keys" not in source else np.asarray(open_array(source["keys"])[:])


def _open_rows(source: dict[str, Any], index: int, count: int, seed: int, open_array: OpenArray) -> Rows:
    """The rows of partition `index` of `count`, as `source` describes them: read from a data set, or opened in shared
    memory, dense or sparse."""
    if source.get("kind") == "dataset":
        if (keys := open_keys(source, open_array)) is not None:
            return open_ids(source, deal_keys(keys, count, parse(source["partition"]), seed)[index], open_array)
        return read_shard(source["description"], index, count, source["partition"], seed)
    if source.get("kind") != "memory":
        raise ProtocolError(f"Rows of kind {source.get('kind')!r} are not known.")
    lo, hi = source["bounds"][index : index + 2]
    described = source["features"]
    labels = open_array(source["labels"])[lo:hi] if source["labels"] else None
    ids = open_array(source["ids"])[lo:hi]
    weights = open_array(source["weights"])[lo:hi] if source["weights"] else None
    if "dense" in described:
        return Rows(open_array(described["dense"])[lo:hi], labels, ids, weights)
    indptr = open_array(described["indptr"])
    first, last = int(indptr[lo]), int(indptr[hi])
    rows = Sparse(
        indptr[lo : hi + 1] - first,
        open_array(described["indices"])[first:last],
        open_array(described["values"])[first:last],
        int(described["columns"]),
    )
    return Rows(rows, labels, ids, weights)
