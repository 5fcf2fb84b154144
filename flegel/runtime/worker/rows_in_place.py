"""Rows that stay in the memory of the process that started the job: each worker fetches its own from there.

The caller's array is neither shuffled nor copied first. A worker knows from sizes and seed which rows are its own
(`own_rows`), fetches them window by window, looks for values that are not finite, and lays them out at once. So the
data exist twice, the caller's and those of the workers. Works for dense rows of workers on this host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.row_windows import RowWindow, RowWindows
from flegel.core.shard import Sparse
from flegel.datasets import Rows
from flegel.datasets.rows.partition import OwnRows, own_rows, parse, rows_of_block
from flegel.datasets.rows.row_ranges import compress
from flegel.errors import DataError
from flegel.runtime.transport.process_memory import ProcessArray
from flegel.runtime.transport.shared_memory import JobArray

MAX_COLUMNS_IN_PLACE = 1 << 16  # a window has 64 rows at least, and a worker holds two windows
FETCHED_ROWS_AT_ONCE = 1 << 13  # rows of another process that are fetched at a time

IN_PLACE = "in-place"  # the kind of source

OpenArray = Callable[[dict[str, Any]], Any]
"""From the description of an array to the array, or to what fetches it when it is indexed or read."""


class RowsInPlace:
    """What workers are told about rows in the memory of this process."""

    def __init__(self, source: dict[str, Any], lent: list[JobArray]) -> None:
        self._source, self._lent = source, lent

    def describe(self) -> dict[str, Any]:
        return self._source

    def close(self) -> None:
        for array in self._lent:
            array.close()
        self._lent.clear()


def suits(rows: int, columns: int, itemsize: int, partition: str) -> bool:
    """Whether rows of this kind are fetched more quickly than they are copied for everybody."""
    rules = active().transport
    kind, block = parse(partition).kind, rows_of_block(rows, columns)
    side_by_side = kind == "contiguous" or (
        kind == "shuffle" and block * columns * itemsize >= rules.rows_in_place_range_bytes
    )
    return (
        side_by_side and rows * columns * itemsize >= rules.rows_in_place_from_bytes and columns <= MAX_COLUMNS_IN_PLACE
    )


def lend_rows(rows: Rows, partition: str, lend: Callable[[Array], JobArray | None]) -> RowsInPlace | None:
    """Rows of this process, lent to its workers; None where these cannot read them."""
    lent: list[JobArray] = []
    source: dict[str, Any] = {"kind": IN_PLACE, "partition": partition}
    for name, array in (("features", rows.features), ("labels", rows.labels), ("weights", rows.weights)):
        assert not isinstance(array, Sparse)
        source[name] = None
        if array is not None:
            own = lend(np.ascontiguousarray(array))
            if own is None:
                return None
            lent.append(own)
            source[name] = own.describe()
    return RowsInPlace(source, lent)


class FetchedRows(NamedTuple):
    """The rows of one worker."""

    features: RowWindows
    """Read when they are iterated over."""
    labels: Array | None
    ids: Array
    weights: Array | None


def fetch_own(source: dict[str, Any], index: int, count: int, seed: int, open_array: OpenArray) -> FetchedRows:
    """The rows of partition `index` of `count`, fetched from the process that has them."""
    features = open_array(source["features"])
    rows, columns = features.shape
    own = own_rows(rows, columns, index, count, parse(source["partition"]), seed)
    ids = own.ids()

    def complain() -> None:
        raise DataError("A value is not finite.")  # whoever has all rows names the first of these

    found = RowWindows((len(ids), columns), features.dtype, lambda: _windows(features, own, ids), complain)
    labels, weights = (_fetched(source[name], own, ids, open_array) for name in ("labels", "weights"))
    return FetchedRows(found, labels, ids, weights)


def fetch_ids(source: dict[str, Any], wanted_ids: Array, open_array: OpenArray) -> Rows:
    """Rows by their numbers, in this order, whoever owned them before."""
    ordered = np.argsort(wanted_ids)
    own = OwnRows(compress(wanted_ids[ordered]), FETCHED_ROWS_AT_ONCE)
    found = [_fetched(source[name], own, wanted_ids[ordered], open_array) for name in ("features", "labels", "weights")]
    features, labels, weights = (None if a is None else a[np.argsort(ordered)] for a in found)
    assert features is not None
    return Rows(features, labels, wanted_ids, weights)


def _fetched(described: dict[str, Any] | None, own: OwnRows, ids: Array, open_array: OpenArray) -> Array | None:
    """The rows `ids` of an array that another process describes, in that order; None where there is no such array."""
    if described is None:
        return None
    array = open_array(described)
    if isinstance(array, np.ndarray) and own.mixed is None and len(own.ranges) == 1:
        return array[own.ranges[0, 0] : own.ranges[0, 1]]
    found: Array = np.empty((len(ids), *array.shape[1:]), array.dtype)
    first = 0
    for rows, permutation in _windows(array, own, ids):
        np.take(rows, permutation, axis=0, out=found[first : first + len(permutation)], mode="clip")
        first += len(permutation)
    return found


def _windows(array: Array | ProcessArray, own: OwnRows, ids: Array) -> Iterator[RowWindow]:
    """The rows `ids` of an array. Of an array of this process all at once, without a stop for the interpreter's lock;
    of another process window by window, in memory that is used again for the next. A window comes with the permutation
    of its rows: the order in which this worker has them."""
    if isinstance(array, np.ndarray):
        yield RowWindow(array, ids)
        return
    fetched = np.empty((min(own.window, len(ids)), *array.shape[1:]), array.dtype)
    shown = fetched.view()
    shown.flags.writeable = False
    for ranges in own.windows():
        rows = int((ranges[:, 1] - ranges[:, 0]).sum())
        array.read(ranges, fetched[:rows])
        yield RowWindow(shown[:rows], own.order(rows))
