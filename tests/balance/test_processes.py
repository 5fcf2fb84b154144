"""Points move between real worker processes: dense, labelled, sparse, users' own classes; kills and refusals."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest

import flegel
from flegel import Accepts, Algorithm, Learning, LocalCluster
from flegel.algorithms.clusters.sized_kmeans import SizedKMeans
from flegel.datasets.rows import memory
from flegel.machine.balance.part import BalancePart
from flegel.machine.migration.migrations import Migrations
from flegel.messages import MoveReady, MoveSent, WindowArrived
from flegel.plan.balance.planner import Balance, BalancePlan, Proposal
from flegel.plan.termination import Progress, Termination, Verdict
from tests import needs
from tests.contributing import ByContribution, ByHidden
from tests.coordinators import coordinators

pytestmark = pytest.mark.processes


class Sums(NamedTuple):
    total: Any
    count: Any


class Labelled(Algorithm):
    """Σ label · x over all points, kept: each point remembers what it gave."""

    accepts = Accepts(labels="required")
    learning = Learning(averaged=True)

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(1)

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Sums:
        new = dataPoint.label * (1.0 + iterationNum % 3)
        old = dataPoint.state[0]
        dataPoint.state[0] = new
        return Sums(dataPoint.features * (new - old), np.ones(1))

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + 1.0

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(1.0 + aggregator.count[0])


class Rows(Algorithm):
    """Sparse rows: Σ of the entries, kept, and the number of rows."""

    accepts = Accepts(sparse=True)

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.ones(1)

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        new = dataPoint.features.values.sum() * (1.0 + iterationNum % 3)
        change = np.array([new - dataPoint.state[0]])
        dataPoint.state[0] = new
        return change

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return float(aggregator[0])


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalCluster]:
    with LocalCluster(workers=3) as warm:
        yield warm


def moving(monkeypatch: pytest.MonkeyPatch, *moves: tuple[int, int, int]) -> None:
    """A plan that makes these moves one after the other; the job ends when the last one is over, however long."""
    left, over = list(moves), []

    def plan(self: Balance, loads: Any, remaining: Any, now: float, carriage: Any = None) -> BalancePlan:
        if any(w.busy for w in loads):
            return BalancePlan((), "as the test wants")
        if left:
            return BalancePlan((Proposal(*left.pop(0), "the test wants it"),), "as the test wants")
        over.append(now)
        return BalancePlan((), "nothing more")

    def judge(self: Termination, progress: Progress, user_says_stop: bool) -> Verdict | None:
        return Verdict(True, "all has moved") if len(over) > 5 and progress.exact else None

    monkeypatch.setattr(Balance, "plan", plan)
    monkeypatch.setattr(Balance, "due", lambda self, now: True)
    monkeypatch.setattr(Termination, "judge", judge)


def run(algorithm: Any, data: Any, cluster: LocalCluster, **more: Any) -> tuple[flegel.Result, Any]:
    options = {"tolerance": 1e-9, "interval": "10ms", "balance": "async"} | more
    with coordinators() as found:
        result = flegel.run(
            algorithm, data, cluster=cluster, workers=3, collect_state=True, watch=lambda seen: None, **options
        )
    return result, found[-1]


MOVES = [(0, 1, 3000), (0, 2, 2000), (1, 0, 3000), (2, 1, 1000)]


@pytest.mark.parametrize("cls", [ByContribution, ByHidden])
def test_what_the_engine_keeps_of_points_moves_with_them(
    workers: LocalCluster, monkeypatch: pytest.MonkeyPatch, points: np.ndarray, cls: Any
) -> None:
    data = np.tile(points, (10, 1)) + np.random.default_rng(1).normal(size=(30_000, 6)) * 0.1
    moving(monkeypatch, *MOVES)
    result, machine = run(cls(k=4), data, workers)
    assert machine.part(BalancePart).control.migrations.points >= 5000
    total, state = machine.store.statistics, result.state
    if cls is ByContribution:
        kept = np.concatenate([np.ravel(total.sums), total.counts, np.ravel(total.far)])
        np.testing.assert_allclose(state.sum(axis=0), kept, rtol=1e-9, atol=1e-7)
    else:
        assert (state[:, 0] == 1).all()
        assert np.array_equal(np.bincount(state[:, 1].astype(int), minlength=4), total.counts)
        np.testing.assert_allclose(total.far, state[:, 2].sum(), rtol=1e-9)


def test_turns_and_sizes_move_with_their_points(
    workers: LocalCluster, monkeypatch: pytest.MonkeyPatch, points: np.ndarray
) -> None:
    data = np.tile(points, (10, 1)) + np.random.default_rng(1).normal(size=(30_000, 6)) * 0.1
    moving(monkeypatch, *MOVES)
    result, machine = run(SizedKMeans(k=3, size_min=9_000), data, workers)
    assert machine.part(BalancePart).control.migrations.points >= 5000
    total, state = machine.store.statistics, result.state[:, 0].astype(int)
    assert np.array_equal(np.bincount(state // 2, minlength=3), total.counts)
    assert np.array_equal(np.bincount(state % 2, minlength=2), total.turns)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_kmeans_keeps_its_statistics_while_points_move(
    workers: LocalCluster, monkeypatch: pytest.MonkeyPatch, points: np.ndarray, mode: str
) -> None:
    data = np.tile(points, (10, 1)) + np.random.default_rng(1).normal(size=(30_000, 6)) * 0.1
    moving(monkeypatch, *MOVES)
    result, machine = run("kmeans", data, workers, balance=mode)
    assert machine.part(BalancePart).control.migrations.points >= 5000
    z = result.state[:, 0]
    assert (z >= 0).all()
    total, origin = machine.store.statistics, machine.parameter.origin
    assert np.array_equal(np.bincount(z, minlength=10), total.counts)
    for j in range(10):
        expected = (data[z == j] - origin).sum(axis=0)
        assert np.allclose(total.sums[j], expected, rtol=1e-10, atol=1e-8)
    values = [r["objective"] for r in result.rows if r["objective"] is not None]
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(values))
    assert result.to_json()["balance"]["bytes"] > 0


def test_labels_travel_with_their_points(
    workers: LocalCluster, monkeypatch: pytest.MonkeyPatch, points: np.ndarray
) -> None:
    data, labels = np.tile(points, (4, 1)), np.random.default_rng(2).normal(size=4 * len(points))
    moving(monkeypatch, (0, 1, 1000), (1, 0, 1000), (0, 2, 500))
    result, machine = run(Labelled(), (data, labels), workers)
    assert machine.part(BalancePart).control.migrations.points >= 2 * 512
    expected = (data * result.state).sum(axis=0)
    assert np.allclose(machine.store.statistics.total, expected, rtol=1e-10, atol=1e-9)
    assert {round(v, 6) for v in (result.state[:, 0] / labels)} <= {1.0, 2.0, 3.0}


def test_sparse_rows_travel(workers: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = needs.library("scipy.sparse")
    matrix = sparse.random(9_000, 40, density=0.1, random_state=0, format="csr")
    moving(monkeypatch, (0, 1, 1000), (1, 0, 1000), (2, 0, 500))
    result, machine = run(Rows(), matrix, workers)
    assert machine.part(BalancePart).control.migrations.points >= 2 * 512
    assert np.isclose(machine.store.statistics[0], result.state.sum(), rtol=1e-10)
    per_row = np.asarray(matrix.sum(axis=1)).ravel()
    times = result.state[:, 0][per_row > 0] / per_row[per_row > 0]
    assert np.allclose(times, np.round(times)) and set(np.round(times)) <= {1.0, 2.0, 3.0}


@pytest.mark.parametrize("transport", ["memory", "socket"])
def test_neighbours_send_states_and_others_send_points(
    monkeypatch: pytest.MonkeyPatch, points: np.ndarray, transport: str
) -> None:
    """The same moves; through a socket each point takes its features, label, number, state and vote."""
    monkeypatch.setenv("FLEGEL_MOVE", "socket" if transport == "socket" else "")
    moving(monkeypatch, (0, 1, 640))
    data = np.ascontiguousarray(points)
    with LocalCluster(workers=2) as cluster:
        result = flegel.run(
            "kmeans", data, cluster=cluster, workers=2, tolerance=1e-9, interval="10ms", balance="async", attribute=True
        )
    moved = result.balance["points"]
    assert moved == 640
    if transport == "socket":
        assert result.balance["bytes"] > moved * data.shape[1] * data.itemsize
    else:
        assert result.balance["bytes"] < moved * data.shape[1] * data.itemsize / 2
    course = result.to_json()["balance"]["course"]
    assert course[-1]["passes"] == result.rows[-1]["passes"] and len(course[-1]["gains"]) == 2
    assert any(moment["in_flight"] for moment in course) or len(result.rows) > 64


@pytest.mark.parametrize("victim", ["source", "target"])
@pytest.mark.parametrize("step", [MoveReady, WindowArrived, MoveSent])
def test_a_worker_killed_in_the_middle_of_a_move_loses_no_point_and_doubles_none(
    workers: LocalCluster, monkeypatch: pytest.MonkeyPatch, points: np.ndarray, step: type, victim: str
) -> None:
    moving(monkeypatch, (0, 1, 1000))
    answer, number, killed = Migrations.answer, 0 if victim == "source" else 1, []

    def kill(self: Migrations, worker: int, body: Any, now: float) -> Any:
        if isinstance(body, step) and not killed:
            killed.append(number)
            os.kill(workers.registry.processes[number].pid, signal.SIGKILL)
        return answer(self, worker, body, now)

    monkeypatch.setattr(Migrations, "answer", kill)
    result, machine = run("kmeans", points, workers)
    assert [i["worker"] for i in result.incidents if i["kind"] == "lost"] == [number]
    z, total = result.state[:, 0], machine.store.statistics
    assert (z >= 0).all() and np.array_equal(np.bincount(z, minlength=10), total.counts)
    for j in range(10):
        expected = (points[z == j] - machine.parameter.origin).sum(axis=0)
        assert np.allclose(total.sums[j], expected, rtol=1e-10, atol=1e-8)


@pytest.mark.slow
def test_a_target_short_of_memory_refuses_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, points: np.ndarray
) -> None:
    share = points.nbytes // 2
    monkeypatch.setenv("FLEGEL_MEMORY", str(share + 10_000))  # for one array: the rows of a worker are in memory
    moving(monkeypatch, (0, 1, int(0.7 * len(points) / 2)))
    with LocalCluster(workers=2) as cluster:
        result = flegel.run(
            "kmeans", points, cluster=cluster, workers=2, tolerance=1e-9, interval="5ms",
            balance="async",
        )  # fmt: skip
    assert result.balance["points"] == 0
    assert any("are free" in note for note in result.balance["notes"])


@pytest.mark.slow
def test_points_that_move_lie_in_a_scratch_file_where_the_rows_of_their_new_owner_do(
    monkeypatch: pytest.MonkeyPatch, points: np.ndarray
) -> None:
    monkeypatch.setenv("FLEGEL_MEMORY", "30K")  # less than half of it is free for what arrives: votes and states
    monkeypatch.setenv("FLEGEL_MOVE", "socket")  # as between processes, which cannot read each other's files
    moving(monkeypatch, (0, 1, 1000))
    made: list[tuple[int, ...]] = []
    scratch = memory.scratch

    def noted(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        made.append(shape)
        return scratch(shape, dtype)

    monkeypatch.setattr(memory, "scratch", noted)
    result = flegel.run(
        "kmeans", points, workers=2, processes="no", tolerance=1e-9, interval="5ms", balance="async",
        collect_state=True,
    )  # fmt: skip
    assert result.balance["points"] > 900
    assert len(made) > 2, "two shards, and what arrived"
    assert np.bincount(result.state[:, 0].astype(int), minlength=10).sum() == len(points)
