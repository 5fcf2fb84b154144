"""θ and objective made anew for changed rows alone: the bits of `updateParameter`, after any history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.kmeans import Centroids, KMeansSums
from flegel.configuration.active import using
from flegel.core import pytree
from flegel.core.changed_rows import changed_rows
from flegel.core.pytree import Array
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold, Folded
from flegel.params.row_updates import makes_rows

K, COLUMNS, WORKERS, EACH = 40, 3, 3, 200


@pytest.fixture(autouse=True)
def small_statistics_count() -> Iterator[None]:
    with using({"transport.changed_rows_from_bytes": 0}):
        yield


def watch(monkeypatch: pytest.MonkeyPatch, algorithm: KMeans) -> list[int]:
    """Grows whenever all of θ is made anew."""
    calls: list[int] = []
    made = type(algorithm).updateParameter

    def updating(self: KMeans, *args: Any) -> Centroids:
        calls.append(1)
        return made(self, *args)

    monkeypatch.setattr(KMeans, "updateParameter", updating)
    return calls


class World:
    """Workers with points in clusters, and the store that they report to."""

    def __init__(self, seed: int, metric: str = "euclidean") -> None:
        self.rng = np.random.default_rng(seed)
        self.algorithm = KMeans(k=K, metric=metric)
        self.points = self.rng.normal(size=(WORKERS, EACH, COLUMNS))
        self.clusters = np.full((WORKERS, EACH), -1)
        origin = self.rng.normal(size=COLUMNS)
        points = np.array([float(WORKERS * EACH), 100.0, 0.0, 0.0])
        theta = Centroids(self.rng.normal(size=(K, COLUMNS)), origin, np.empty((0, COLUMNS)), np.full(K, 1 / K), points)
        zero = KMeansSums(np.zeros((K, COLUMNS)), np.zeros(K), np.zeros(K))
        self.store, self.zero = LocalStore(self.algorithm, theta, zero), zero
        self.round = 0

    def report(self, worker: int, moving: int, into: range = range(K)) -> Any:
        """This worker's points, or so many of them, are in other clusters now."""
        sums, counts, squares = pytree.copy(self.zero)
        for i in self.rng.choice(EACH, moving, replace=False):
            x = self.points[worker, i] - self.store.parameter.origin  # type: ignore[union-attr]
            new = into[int(self.rng.integers(len(into)))]
            for cluster, sign in ((self.clusters[worker, i], -1.0), (new, 1.0)):
                if cluster >= 0:
                    sums[cluster] += sign * x
                    counts[cluster] += sign
                    squares[cluster] += sign * (x @ x)
            self.clusters[worker, i] = new
        change = KMeansSums(sums, counts, squares)
        few = changed_rows(change)
        return self.store.reported(worker, self.round, change if few is None else few.arrays(), few is not None)

    def fold(self, changes: dict[int, Any]) -> Folded:
        """One barrier, and what all of θ and the objective would be."""
        before, self.round = self.store.parameter, self.round + 1
        found = self.store.fold(Fold(self.round, tuple(changes), tuple(changes.values()), "round"))
        total = self.store.statistics
        wanted = KMeans.updateSlice(self.algorithm, total, before, 0, K, None)  # type: ignore[arg-type]
        for name, one, other in zip(Centroids._fields, self.store.parameter, wanted, strict=True):
            assert np.array_equal(one, other), name
        assert found.objective == self.algorithm.objective(total, wanted)  # type: ignore[arg-type]
        return found


def complete(seed: int, metric: str = "euclidean") -> World:
    """Every point has been visited, and no cluster is empty."""
    world = World(seed, metric)
    world.fold({w: world.report(w, EACH) for w in range(WORKERS)})
    world.fold({0: world.report(0, 5, range(4))})
    return world


@pytest.mark.parametrize("seed", range(4))
def test_rows_give_the_bits_of_the_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = complete(seed)
    calls, rounds = watch(monkeypatch, world.algorithm), 12
    for _ in range(rounds):
        workers = world.rng.permutation(WORKERS)[: world.rng.integers(1, WORKERS + 1)]
        world.fold({int(w): world.report(int(w), int(world.rng.integers(0, 4))) for w in workers})
    assert len(calls) < rounds, "few clusters changed, and all of θ was made"


def test_all_of_theta_follows_where_any_row_may_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = complete(7)
    calls = watch(monkeypatch, world.algorithm)

    def made_whole(changes: dict[int, Any]) -> bool:
        before = len(calls)
        world.fold(changes)
        return len(calls) > before

    assert not made_whole({0: world.report(0, 2)})
    world.store.join(0, 1)
    assert not made_whole({1: world.report(1, 2)})
    world.store.forget(2)
    assert made_whole({0: world.report(0, 1)}), "the total was summed anew"
    world.clusters[2] = -1
    made_whole({2: world.report(2, EACH)})
    assert not made_whole({2: world.report(2, 1)})
    world.store.set_parameter(world.store.parameter)
    assert made_whole({1: world.report(1, 1)}), "that θ was not made from these statistics"
    assert not made_whole({1: world.report(1, 1)})
    world.store.restore(pytree_state(world.store.state()))
    assert made_whole({1: world.report(1, 1)}), "another state"
    world.store.clear_statistics()
    world.clusters[:] = -1
    assert made_whole({w: world.report(w, EACH) for w in range(WORKERS)})


def pytree_state(state: dict[str, Any]) -> dict[str, Any]:
    """A copy: what a checkpoint would bring back."""
    return {
        **state,
        "parameter": [np.array(a) for a in state["parameter"]],
        "statistics": [np.array(a) for a in state["statistics"]],
        "accounts": {owner: [np.array(a) for a in arrays] for owner, arrays in state["accounts"].items()},
    }


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_cluster_that_becomes_empty_and_fills_again(metric: str) -> None:
    world = complete(9, metric)
    emptied = {w: empty_cluster(world, w, 5) for w in range(WORKERS)}
    world.fold(emptied)
    assert world.store.statistics.counts[5] == 0  # type: ignore[union-attr]
    world.fold({0: world.report(0, 1, range(6, 9))})
    world.fold({0: world.report(0, 3, range(5, 6))})
    world.fold({1: world.report(1, 2)})


def empty_cluster(world: World, worker: int, cluster: int) -> Any:
    """Its points go to the next one."""
    sums, counts, squares = pytree.copy(world.zero)
    for i in np.flatnonzero(world.clusters[worker] == cluster):
        x = world.points[worker, i] - world.store.parameter.origin  # type: ignore[union-attr]
        for where, sign in ((cluster, -1.0), (cluster + 1, 1.0)):
            sums[where] += sign * x
            counts[where] += sign
            squares[where] += sign * (x @ x)
        world.clusters[worker, i] = cluster + 1
    few = changed_rows(KMeansSums(sums, counts, squares))
    assert few is not None
    return world.store.reported(worker, world.round, few.arrays(), sparse=True)


def test_what_is_not_finite_is_refused_as_ever() -> None:
    world = complete(3)
    change = pytree.copy(world.zero)
    change.sums[4, 0] = np.nan
    few = changed_rows(change)
    assert few is not None
    before = world.store.parameter
    found = world.store.fold(Fold(9, (0,), (world.store.reported(0, 9, few.arrays(), sparse=True),), "round"))
    assert "not finite" in found.diverged and world.store.parameter is before


class OtherStep(KMeans):
    def updateParameter(self, aggregator: KMeansSums, oldParameter: Centroids) -> Centroids:
        return oldParameter


class OtherObjective(KMeans):
    def objective(self, aggregator: KMeansSums, parameter: Centroids) -> float:
        return 1.0


class OtherRows(OtherStep):
    def updateRows(self, aggregator: KMeansSums, oldParameter: Centroids, rows: Array) -> Centroids | None:
        return oldParameter._replace(centroids=oldParameter.centroids[rows])


def test_a_subclass_with_another_step_or_objective_is_asked_for_the_whole() -> None:
    assert makes_rows(KMeans()) and makes_rows(OtherRows())
    assert not makes_rows(OtherStep()) and not makes_rows(OtherObjective())
