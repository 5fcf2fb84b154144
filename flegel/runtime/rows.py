"""Where a worker's rows come from: shared memory of this host, or its own part of a data set. Reads only."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.datasets import Rows, read_rows, read_share
from flegel.errors import DataError, ProtocolError
from flegel.runtime.memory import SharedArray, open_shared
from flegel.share import Sparse
from flegel.tree import Array


class SharedRows:
    """The whole data in shared memory, each worker's rows (`owners`: their numbers) beside each other."""

    def __init__(self, features: Array | Sparse, labels: Array | None, owners: list[Array]) -> None:
        self._owned: list[SharedArray] = []
        order = np.concatenate(owners)
        self._bounds = np.cumsum([0, *map(len, owners)]).tolist()
        if isinstance(features, Sparse):
            features = reorder(features, order)
            self._features: dict[str, Any] = {
                "indptr": self._put(features.indptr),
                "indices": self._put(features.indices),
                "values": self._put(features.values),
                "columns": features.columns,
            }
        else:
            self._features = {"dense": self._put(features, order)}
        self._labels = self._put(labels, order) if labels is not None else None
        self._ids = self._put(order)

    def _put(self, values: Array, order: Array | None = None) -> dict[str, Any]:
        shared = SharedArray(values.shape, values.dtype)
        if order is None:
            shared.array[...] = values
        else:
            np.take(values, order, axis=0, out=shared.array, mode="clip")  # other modes make a second copy first
        self._owned.append(shared)
        return shared.describe()

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "memory",
            "bounds": self._bounds,
            "features": self._features,
            "labels": self._labels,
            "ids": self._ids,
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


def by_number(description: dict[str, Any], ids: Array) -> Rows:
    """Any rows of a data set in any order."""
    order = np.argsort(ids, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    rows = read_rows(description, ids[order])
    features = reorder(rows.features, back) if isinstance(rows.features, Sparse) else rows.features[back]
    return Rows(features, None if rows.labels is None else rows.labels[back], np.array(ids))


def open_rows(source: dict[str, Any], index: int, count: int, seed: int, ids: Array | None = None) -> Rows:
    """This worker's features and labels, and the numbers of its rows in the whole data.

    `ids`: the rows must be these, in this order. Those of a share as it was dealt are read as ever and compared.
    """
    rows = _open_rows(source, index, count, seed, ids)
    if ids is not None and not np.array_equal(rows.ids, ids):
        raise DataError("The rows of this share are not those of the checkpoint; the data have changed.")
    return rows


def _open_rows(source: dict[str, Any], index: int, count: int, seed: int, ids: Array | None) -> Rows:
    if source.get("kind") == "rows":
        assert ids is not None, "rows by number need their numbers"
        return by_number(source["description"], ids)
    if source.get("kind") == "dataset":
        return read_share(source["description"], index, count, source["partition"], seed)
    if source.get("kind") != "memory":
        raise ProtocolError(f"Rows of kind {source.get('kind')!r} are not known.")
    lo, hi = source["bounds"][index : index + 2]
    described = source["features"]
    labels = open_shared(source["labels"])[lo:hi] if source["labels"] else None
    ids = open_shared(source["ids"])[lo:hi]
    if "dense" in described:
        return Rows(open_shared(described["dense"])[lo:hi], labels, ids)
    indptr = open_shared(described["indptr"])
    first, last = int(indptr[lo]), int(indptr[hi])
    rows = Sparse(
        indptr[lo : hi + 1] - first,
        open_shared(described["indices"])[first:last],
        open_shared(described["values"])[first:last],
        int(described["columns"]),
    )
    return Rows(rows, labels, ids)
