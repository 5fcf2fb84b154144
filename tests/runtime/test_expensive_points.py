"""Visits of points that are too expensive are abandoned: nothing of them counts, and training goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.core.pytree import Array
from flegel.core.shard import Shard
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError
from flegel.runtime.backends.numba.abandoned_visits import AbandoningBackend, AbandoningKernel
from flegel.terminal.display import summary

ENTERED, GO_ON = threading.Event(), threading.Event()
BLOCKING = -1.0
"""The first column of a point whose visit does not return before `GO_ON`."""


class Totals(flegel.Algorithm):
    """Sums of columns."""

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(sample.columns)

    def initState(self, points: int, columns: int, rng: Any) -> Any:
        return np.zeros((points, 1))

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return np.asarray(aggregator)

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return -float(np.sum(parameter))


class Sums(Totals):
    """Points with a first column of -1 wait for a sign."""

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        new = (1.0 - dataPoint.state[0]) * dataPoint.features
        dataPoint.state[0] = 1.0
        if dataPoint.features[0] == BLOCKING:
            ENTERED.set()
            while not GO_ON.wait(0.01):
                pass
        return new


class Endless(Totals):
    """Visits of points with a first column of -1 never return."""

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        new = (1.0 - dataPoint.state[0]) * dataPoint.features
        dataPoint.state[0] = 1.0
        while dataPoint.features[0] == -1.0:
            time.sleep(0.01)
        return new


class LongLoop(Totals):
    """Compiled: visits of points with a first column of -1 take about ten seconds of one processor."""

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        new = (1.0 - dataPoint.state[0]) * dataPoint.features
        dataPoint.state[0] = 1.0
        if dataPoint.features[0] == -1.0:
            value = 0.5
            for _ in range(4_000_000_000):
                value = 3.9 * value * (1.0 - value)
            new[0] += value
        return new


@pytest.fixture(autouse=True)
def signs() -> Any:
    ENTERED.clear(), GO_ON.clear()
    yield
    GO_ON.set()  # visits that were left end


def rows(blocking: tuple[int, ...] = (3,), points: int = 8) -> Array:
    data = np.arange(2.0 * points).reshape(points, 2)
    data[list(blocking), 0] = BLOCKING
    return data


def shard_of(data: Array) -> Shard:
    points = len(data)
    state, halted = np.zeros((points, 1)), np.zeros(points, np.uint8)
    return Shard(data, np.zeros(points), state, halted, points, 2, np.arange(points))


def built(data: Array, retries: bool, point_seconds: float = 1000.0) -> tuple[AbandoningKernel, Shard]:
    shard = shard_of(data)
    kernel = AbandoningBackend(retries, point_seconds).build(Sums(), shard, np.zeros(2), np.zeros(2), True)
    assert isinstance(kernel, AbandoningKernel)
    return kernel, shard


def signalled(kernel: AbandoningKernel, shard: Shard, start: int = 0, go_on_after: float | None = None) -> int:
    """Run until the expensive point is being visited, then give the signal of a barrier, and so many seconds later
    the sign for which the point waits."""
    flag = new_flag()

    def signal() -> None:
        ENTERED.wait(600)
        flag[0] = 1
        if go_on_after is not None:
            time.sleep(go_on_after)
            GO_ON.set()

    thread = threading.Thread(target=signal)
    thread.start()
    reached = kernel.run(shard, start, shard.points, 1, flag)
    ENTERED.set()
    thread.join()
    return reached


def test_a_visit_is_left_after_a_signal_and_nothing_of_it_counts() -> None:
    data = rows()
    kernel, shard = built(data, retries=False)
    assert signalled(kernel, shard) == 4 and kernel.abandoned == 1
    np.testing.assert_array_equal(kernel.statistics()[0], data[:3].sum(axis=0))
    assert shard.state[:4, 0].tolist() == [1.0, 1.0, 1.0, 0.0]
    GO_ON.set()
    assert kernel.run(shard, 4, 8, 1, new_flag()) == 8
    np.testing.assert_array_equal(kernel.statistics()[0], data.sum(axis=0) - data[3])
    assert kernel.run(shard, 3, 4, 2, new_flag()) == 4  # in the next pass it is visited again
    np.testing.assert_array_equal(kernel.statistics()[0], data.sum(axis=0))


def test_with_retry_the_visit_is_made_again_and_no_signal_ends_it() -> None:
    data = rows()
    kernel, shard = built(data, retries=True)
    assert signalled(kernel, shard) == 3 and kernel.abandoned == 1
    ENTERED.clear()
    later = 0.2  # long after the signal's grace
    assert signalled(kernel, shard, 3, later) == 4 and kernel.abandoned == 1
    np.testing.assert_array_equal(kernel.statistics()[0], data[:4].sum(axis=0))


def test_a_point_that_takes_as_long_as_a_hook_may_is_not_visited_again() -> None:
    data = rows()
    kernel, shard = built(data, retries=True, point_seconds=1.0)
    assert kernel.run(shard, 0, 8, 1, new_flag()) == 4
    assert kernel.run(shard, 4, 8, 1, new_flag()) == 8
    assert kernel.run(shard, 0, 8, 2, new_flag()) == 8 and kernel.abandoned == 1
    np.testing.assert_array_equal(kernel.statistics()[0], data.sum(axis=0) - data[3])


def test_errors_of_a_hook_are_raised_as_ever() -> None:
    kernel, shard = built(rows(()), retries=False)
    shard.state = np.zeros((8, 0))
    with pytest.raises(IndexError):
        kernel.run(shard, 0, 8, 1, new_flag())


def test_abandoned_visits_that_do_not_end_are_bounded() -> None:
    class Holding(Sums):
        def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
            GO_ON.wait()  # cannot be interrupted, as compiled code cannot
            return dataPoint.features

    shard = shard_of(rows(()))
    with flegel.settings({"training.most_abandoned_visits": 2}):
        kernel = AbandoningBackend(False, 0.02).build(Holding(), shard, np.zeros(2), np.zeros(2), True)
        assert kernel.run(shard, 0, 8, 1, new_flag()) == 1 and kernel.run(shard, 1, 8, 1, new_flag()) == 2
        with pytest.raises(TimeoutError, match="2 abandoned visits have not ended"):
            kernel.run(shard, 2, 8, 1, new_flag())


@pytest.mark.parametrize("expensive", ["abandon", "retry"])
def test_a_job_goes_on_without_an_endless_point_and_says_so(expensive: str) -> None:
    data = rows(points=40)
    result = flegel.run(
        Endless(), data, workers=2, processes=False, sync="bsp", expensive=expensive, hook_timeout=4.0, max_iterations=3
    )
    np.testing.assert_array_equal(result.parameter, data.sum(axis=0) - data[3])
    assert result.abandoned == result.to_json()["abandoned"] == 1
    assert "1 visit of expensive points abandoned" in summary(result)


def test_a_barrier_does_not_wait_for_an_expensive_point() -> None:
    """The visit never returns, and `hook_timeout` is far away: signals of barriers end it."""
    data = rows(points=40)
    result = flegel.run(
        Endless(), data, workers=2, processes=False, sync="fsp", interval=0.3, expensive="abandon", hook_timeout=600.0,
        max_iterations=6, tolerance=0, balance="off", resting="off",
    )  # fmt: skip
    assert result.abandoned >= 1 and result.iterations == 6
    np.testing.assert_array_equal(result.parameter, data.sum(axis=0) - data[3])


@pytest.mark.processes
@pytest.mark.parametrize("sync", ["bsp", "fsp"])
def test_a_worker_that_abandoned_a_visit_is_killed_and_its_replacement_goes_on(sync: str) -> None:
    """In the round after a loss no signal ends a visit, under fsp either: it takes as long as a hook may."""
    data, killed = rows(points=40), []
    with flegel.LocalCluster(workers=2) as cluster:

        def kill(seen: Any) -> None:
            if seen.iteration >= 2 and not killed:
                killed.append(cluster.registry.processes[0].pid)
                os.kill(killed[0], signal.SIGKILL)

        result = flegel.run(
            Endless(), data, cluster=cluster, sync=sync, expensive="abandon", hook_timeout=4.0, max_iterations=200,
            tolerance=0, max_seconds=300, watch=kill,
        )  # fmt: skip
    assert killed and any(incident["worker"] == 0 for incident in result.incidents)
    np.testing.assert_array_equal(result.parameter, data.sum(axis=0) - data[3])


@pytest.mark.processes
def test_compiled_visits_are_abandoned_in_processes_too() -> None:
    data = rows((5,), points=40)
    result = flegel.run(
        LongLoop(), data, workers=2, processes=True, sync="bsp", expensive="abandon", hook_timeout=4.0, max_iterations=3
    )
    assert result.kernel == "compiled" and result.abandoned == 1
    np.testing.assert_array_equal(result.parameter, data.sum(axis=0) - data[5])


def test_where_visits_cannot_be_abandoned_a_sentence_says_so() -> None:
    with pytest.raises(UsageError, match="KMeans visits points in a kernel of its own"):
        flegel.run(KMeans(k=2), rows(), expensive="abandon")
    with pytest.raises(UsageError, match="needs workers of one thread each; omit threads="):
        flegel.run(Sums(), rows(), expensive="retry", threads=2, workers=1)
    with pytest.raises(UsageError, match="must be fail, abandon or retry"):
        flegel.run(Sums(), rows(), expensive="later")
