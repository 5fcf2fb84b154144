"""Reports of which few rows changed: the same sums to the last bit, by fewer bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import flegel
from flegel.algorithm import Algorithm
from flegel.algorithms.kmeans import KMeans
from flegel.configuration.active import using
from flegel.core.changed_rows import ChangedRows, changed_rows, read_changed_rows
from flegel.core.pytree import Array
from flegel.params.ledger import Ledger
from flegel.params.local import LocalStore
from flegel.runtime.worker import process


class Sums(NamedTuple):
    sums: Array
    counts: Array


class Kept(Algorithm):
    """Statistics that are added."""


def zero() -> Sums:
    return Sums(np.zeros((50, 3)), np.zeros(50))


def change(rng: np.random.Generator, rows: int) -> Sums:
    made, some = zero(), rng.choice(50, rows, replace=False)
    made.sums[some], made.counts[some] = rng.normal(size=(rows, 3)), rng.normal(size=rows)
    return made


@pytest.fixture(autouse=True)
def small_statistics_count() -> Iterator[None]:
    with using({"transport.changed_rows_from_bytes": 0}):
        yield


def test_rows_are_found_by_any_of_their_fields() -> None:
    made = zero()
    made.sums[4, 2], made.counts[9] = 1e-300, -1.0
    found = changed_rows(made)
    assert found is not None and found.numbers.tolist() == [4, 9]
    assert found.fields[0].shape == (2, 3) and found.fields[1].tolist() == [0.0, -1.0]
    nothing = changed_rows(zero())
    assert nothing is not None and not len(nothing.numbers)


def test_most_rows_other_lengths_and_small_statistics_travel_whole() -> None:
    assert changed_rows(change(np.random.default_rng(0), 26)) is None
    assert changed_rows((np.zeros((5, 2)), np.zeros(4))) is None
    assert changed_rows((np.zeros(()),)) is None
    with using({"transport.changed_rows_from_bytes": 10**6}):
        assert changed_rows(zero()) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_ledger_of_rows_is_that_of_whole_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole, sparse = Ledger(Kept(), zero()), Ledger(Kept(), zero())
    for _ in range(6):
        owners = list(rng.permutation(4)[: rng.integers(1, 5)])
        changes = [change(rng, int(rng.integers(0, 40))) for _ in owners]
        whole.commit_all(owners, changes)
        sparse.commit_all(owners, [changed_rows(one) or one for one in changes])
    for ledger in (whole, sparse):
        ledger.forget(2)
        assert ledger.discrepancy() < 1e-12
    for one, other in zip(whole.total, sparse.total, strict=True):
        assert np.array_equal(one, other)


def test_two_reports_of_a_worker_become_one() -> None:
    rng = np.random.default_rng(3)
    first, second = change(rng, 10), change(rng, 10)
    store = LocalStore(Kept(), np.zeros(1), zero())
    few = changed_rows(first)
    assert few is not None
    merged = store.merged(store.reported(0, 1, few.arrays(), sparse=True), store.reported(0, 2, second))
    assert np.array_equal(merged.sums, first.sums + second.sums)


@pytest.mark.parametrize(
    "arrays",
    [
        (np.array([3, 3]), np.zeros((2, 3)), np.zeros(2)),
        (np.array([-1]), np.zeros((1, 3)), np.zeros(1)),
        (np.array([50]), np.zeros((1, 3)), np.zeros(1)),
        (np.array([1.0]), np.zeros((1, 3)), np.zeros(1)),
        (np.array([1]), np.zeros((1, 2)), np.zeros(1)),
        (np.array([1]), np.zeros((1, 3))),
    ],
)
def test_rows_that_do_not_fit_are_refused(arrays: tuple[Array, ...]) -> None:
    with pytest.raises(ValueError, match="worker 7 committed rows of statistics in the shapes"):
        read_changed_rows(arrays, zero(), "worker 7")


def test_a_job_whose_reports_are_sparse_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    rows = (4 * rng.normal(size=(30, 3)))[rng.integers(30, size=900)] + rng.normal(size=(900, 3))
    sent: list[Any] = []

    def seen(arrays: Any) -> ChangedRows | None:
        found = changed_rows(arrays) if arrays else None
        sent.append(found)
        return found

    monkeypatch.setattr(process, "changed_rows", seen)
    options: dict[str, Any] = {"workers": 2, "sync": "bsp", "seed": 2, "processes": False}
    few = flegel.run(KMeans(k=30, init="random"), rows, **options)
    assert any(one is not None for one in sent), "late rounds change few clusters"
    with using({"transport.changed_rows_from_bytes": 10**9}):
        whole = flegel.run(KMeans(k=30, init="random"), rows, **options)
    assert np.array_equal(few.parameter.centroids, whole.parameter.centroids) and few.objective == whole.objective
