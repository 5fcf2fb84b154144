"""Workers fetch their rows out of the caller's array: the right ones, the same results, and clear errors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import flegel
from flegel import LocalCluster
from flegel.algorithm import Sample
from flegel.algorithms.kmeans import KMeans
from flegel.configuration.active import using
from flegel.core.parallel_sums import in_pieces
from flegel.core.shard import make_shard
from flegel.datasets import Rows
from flegel.datasets.rows import partition
from flegel.errors import DataError, DecodeError, OutOfReach
from flegel.runtime.job import prepared_job
from flegel.runtime.transport import process_memory
from flegel.runtime.transport.process_memory import LentArray, ProcessArray
from flegel.runtime.transport.shared_memory import open_shared
from flegel.runtime.worker import rows_in_place
from flegel.runtime.worker.rows_in_place import fetch_ids, fetch_own, lend_rows, suits

pytestmark = pytest.mark.skipif(not process_memory.readable(None), reason="this process may not be read by others")
HELD: list[rows_in_place.RowsInPlace] = []
RNG = np.random.default_rng(0)


def lent(rows: Rows, how: str = "shuffle") -> dict[str, Any]:
    """Read by this process itself, which is as much another process as any to the kernel."""
    found = lend_rows(rows, how, LentArray)
    assert found is not None
    HELD.append(found)
    return found.describe()


@pytest.mark.parametrize("how", ["shuffle", "shuffle:1=3", "contiguous"])
@pytest.mark.parametrize(("rows", "columns", "many"), [(5003, 3, 1000), (901, 7, 10_000), (300, 1100, 100), (65, 1, 1)])
def test_workers_fetch_every_row_once(
    rows: int, columns: int, many: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "MANY_ROWS", many)
    data = RNG.normal(size=(rows, columns)).astype(np.float32)
    labels, weights = np.arange(rows, dtype=np.float64), np.arange(rows) / 8
    source = lent(Rows(data, labels, np.empty(0, np.int64), weights), how)
    numbers = []
    for index in range(3):
        features, own_labels, ids, own_weights = fetch_own(source, index, 3, 5, open_shared)
        assert own_labels is not None and own_weights is not None
        assert features.shape == (len(ids), columns) and features.dtype == np.float32
        np.testing.assert_array_equal(features.whole(), data[ids])
        np.testing.assert_array_equal(own_labels, labels[ids])
        np.testing.assert_array_equal(own_weights, weights[ids])
        state = np.zeros((len(ids), 1), np.float32)
        for layout in ("rows", "tiles"):
            one, other = (make_shard(f, None, state, layout).features for f in (features, data[ids]))
            np.testing.assert_array_equal(one, other)
        numbers.append(ids)
    np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(rows))
    wanted = RNG.permutation(rows)[: rows // 2]
    some = fetch_ids(source, wanted, open_shared)
    assert some.labels is not None and some.weights is not None
    np.testing.assert_array_equal(some.features, data[wanted])
    np.testing.assert_array_equal(some.labels, labels[wanted])
    np.testing.assert_array_equal(some.weights, weights[wanted])


def test_shares_of_sorted_rows_look_alike_and_neighbours_part() -> None:
    rows, workers = 1 << 20, 16
    for index in (0, 15):
        own = partition.own_rows(rows, 28, index, workers, partition.parse("shuffle"), 3)
        ids = own.ids()
        classes = np.bincount(ids * 8 // rows, minlength=8)
        assert abs(classes / len(ids) - 1 / 8).max() < 0.002  # every worker has its part of each class
        tiles = ids[: len(ids) // 64 * 64].reshape(-1, 64) * 8 // rows
        assert np.mean([len(np.unique(tile)) for tile in tiles]) > 7.5  # and so has nearly every tile
        assert not np.array_equal(
            ids, partition.own_rows(rows, 28, index, workers, partition.parse("shuffle"), 4).ids()
        )


def test_a_lone_worker_takes_labels_without_a_copy_and_threads_find_the_value_that_is_not_finite() -> None:
    rows, labels = RNG.normal(size=(4_000, 64)), np.arange(4_000.0)
    source = {"features": {"is": "rows"}, "labels": {"is": "labels"}, "weights": None, "partition": "contiguous"}
    found = fetch_own(source, 0, 1, 3, lambda described: {"rows": rows, "labels": labels}[described["is"]])
    assert np.shares_memory(found.labels, labels) and np.shares_memory(found.features.in_place(in_pieces), rows)
    for row in (0, 2_500, 3_999):
        rows[row, 63] = np.nan
        with pytest.raises(DataError, match="not finite"):
            found.features.in_place(in_pieces)
        rows[row, 63] = 0.0


def test_which_rows_stay_in_place() -> None:
    assert suits(11_000_000, 28, 4, "shuffle") and suits(11_000_000, 28, 4, "shuffle:0=5")
    assert suits(100_000, 1000, 4, "shuffle") and suits(500_000, 28, 4, "contiguous")
    assert suits(300_000, 28, 4, "shuffle")  # blocks of 64 rows
    assert not suits(60_000, 100, 4, "shuffle")  # rows one by one, 400 bytes each
    assert not suits(1000, 1000, 4, "shuffle")  # too few to be worth it
    assert not suits(11_000_000, 28, 4, "dirichlet:0.3") and not suits(11_000_000, 28, 4, "sorted-by 1")


def test_memory_that_is_not_there_and_rows_that_do_not_fit() -> None:
    rows = np.arange(24.0).reshape(6, 4)
    held = LentArray(rows)
    described = held.describe()
    into = np.empty((2, 4))
    ProcessArray(described).read(np.array([[5, 6], [0, 1]]), into)
    np.testing.assert_array_equal(into, rows[[5, 0]])
    with pytest.raises(OutOfReach, match="cannot be read"):
        ProcessArray({**described, "process": 2**22 + 1})
    with pytest.raises(OutOfReach, match="is not the one"):
        ProcessArray({**described, "mark": [rows.ctypes.data, described["mark"][1]]})
    with pytest.raises(OutOfReach, match="cannot be read"):
        ProcessArray({**described, "address": 8}).read(np.array([[0, 2]]), into)
    for ranges in ([[5, 7]], [[-1, 1]], [[0, 3]], [[2, 0], [0, 4]]):
        with pytest.raises(DecodeError, match="outside"):
            ProcessArray(described).read(np.array(ranges), into)
    with pytest.raises(DecodeError, match="wrongly"):
        ProcessArray({**described, "dtype": "|O"})


def test_what_decides_whether_others_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for scope, capable, expected in ((0, False, True), (1, True, True), (1, False, False), (3, True, False)):
        monkeypatch.setattr(process_memory, "_scope", partial(int, scope))
        monkeypatch.setattr(process_memory, "_has_capability", partial(bool, capable))
        assert process_memory.readable(None) is expected


@pytest.fixture
def wide() -> Iterator[np.ndarray]:
    """Rows that stay in place though they are few, dealt as they always were."""
    rows = RNG.normal(size=(400, 520))
    rows[:200] += 1.0
    with using({"transport.rows_in_place_from_bytes": 0}):
        yield rows


@pytest.mark.processes
def test_results_are_those_of_copied_rows(
    wide: np.ndarray, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, weights = (wide[:, 0] > 0).astype(float), RNG.random(len(wide))
    train = partial(flegel.run, workers=2, sync="bsp", max_iterations=3, tolerance=0, cluster=cluster)
    jobs = (
        (KMeans(k=3, init=wide[:3]), (wide, labels, weights), "standard"),
        (KMeans(k=3, init=wide[:3]), wide[:, ::-1], "none"),
    )
    there = [train(algorithm, data, scale=scale) for algorithm, data, scale in jobs]
    monkeypatch.setattr(LocalCluster, "lend_array", lambda *_: None)
    for one, (algorithm, data, scale) in zip(there, jobs, strict=True):
        other = train(algorithm, data, scale=scale)
        assert one.objective == other.objective
        np.testing.assert_array_equal(one.predict(wide), other.predict(wide))


@pytest.mark.processes
def test_the_first_value_that_is_not_finite_is_named(
    wide: np.ndarray, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Sample(wide[:300], None, len(wide), wide.shape[1])
    monkeypatch.setattr(prepared_job, "take_sample", lambda *_: few)  # of many rows these are not all
    wide[360, 2] = wide[399, 0] = np.inf
    with pytest.raises(DataError, match=r"row 360, column 2 is inf"):
        flegel.run(KMeans(k=3, init=wide[:3]), wide, workers=2, cluster=cluster)


@pytest.mark.processes
def test_rows_that_workers_cannot_read_are_copied(
    wide: np.ndarray, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = LentArray.describe
    monkeypatch.setattr(process_memory, "_refused", [])
    monkeypatch.setattr(LentArray, "describe", lambda lent: {**described(lent), "process": 2**22 + 1})
    found = flegel.run(
        KMeans(k=3, init=wide[:3]), wide, workers=2, sync="bsp", max_iterations=3, tolerance=0, cluster=cluster
    )
    assert found.iterations == 3
    assert not process_memory.readable(None), "the next job does not try again"
