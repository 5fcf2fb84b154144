"""Real worker processes are killed, frozen, crashed by user code, added and sent away in the middle of a job."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import poisonous
import pytest
from stories import Story, check_contributions, check_kmeans, kill, recovered, train

import flegel
from flegel import LocalCluster
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.shapes import is_wide
from flegel.api.jobs import resolve
from flegel.errors import FlegelError, ProtocolError, WorkerLost
from flegel.messages import Envelope
from tests import needs
from tests.contributing import ByContribution, ByHidden

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(workers=3) as warm:
        yield warm


@pytest.mark.parametrize("workers", [1, 3])
def test_a_team_that_shares_its_sums_survives_a_kill(local_cluster: LocalCluster, workers: int) -> None:
    """What its threads have decided and not added is lost with it, and nothing is counted twice."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(3000, 256)) + 4.0 * rng.normal(size=(40, 256))[rng.integers(40, size=3000)]
    algorithm = KMeans(k=192, init="first")
    assert is_wide(algorithm.k, rows.shape[1])
    story = Story(kill(local_cluster, workers - 1), recovered(1))
    result, machine = train(algorithm, rows, local_cluster, story, workers=workers, threads=2, sync="bsp")
    assert result.threads == 2
    check_kmeans(rows, result, machine)


def test_kmeans_survives_kills_and_its_objective_only_improves(local_cluster: LocalCluster, points: np.ndarray) -> None:
    story = Story(kill(local_cluster, 1), recovered(1), kill(local_cluster, 2), recovered(2))
    result, machine = train("kmeans", points, local_cluster, story)
    check_kmeans(points, result, machine)
    lost = [i for i in result.incidents if i["kind"] == "lost"]
    assert [i["worker"] for i in lost] == [1, 2]
    seen = [r["objective"] for r in result.rows if r["objective"] is not None]
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(seen)), "what was lost is revisited under the same θ"


def test_rows_of_lost_workers_are_normalized_again_where_angles_are_compared(
    local_cluster: LocalCluster, points: np.ndarray
) -> None:
    story = Story(kill(local_cluster, 1), recovered(1))
    shifted = points - points.mean(axis=0)
    result, machine = train(KMeans(k=4, metric="cosine"), shifted, local_cluster, story, audit="1000")
    units = shifted / np.linalg.norm(shifted, axis=1, keepdims=True)
    check_kmeans(units, result, machine)
    assert [i["worker"] for i in result.incidents if i["kind"] == "lost"] == [1]
    seen = [r["objective"] for r in result.rows if r["objective"] is not None]
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(seen)), "what was lost is revisited under the same θ"


def test_weights_stay_with_their_points_when_workers_are_lost(local_cluster: LocalCluster, points: np.ndarray) -> None:
    weights = 1.0 + np.arange(len(points)) % 3
    story = Story(kill(local_cluster, 1), recovered(1), kill(local_cluster, 2), recovered(2))
    result, machine = train("kmeans", (points, None, weights), local_cluster, story, replace=False)
    check_kmeans(points, result, machine, weights)
    assert [i["worker"] for i in result.incidents if i["kind"] == "lost"] == [1, 2]


def test_models_without_a_barrier_survive_a_kill(local_cluster: LocalCluster, points: np.ndarray) -> None:
    result, machine = train("kmeans", points, local_cluster, Story(kill(local_cluster, 0), recovered(1)), sync="asp")
    check_kmeans(points, result, machine)


def test_workers_that_train_on_while_their_reports_travel_survive_a_kill(
    local_cluster: LocalCluster, points: np.ndarray
) -> None:
    """What was trained after a worker's last report is in its points and was never sent, so totals alone can agree."""
    story = Story(kill(local_cluster, 0), recovered(1))
    _, machine = train("kmeans", points, local_cluster, story, sync="asp", waiting="training")
    assert machine.store.statistics.counts.sum() == len(points) and machine.store.discrepancy() < 1e-9


@pytest.mark.parametrize("sync", ["fsp", "asp"])
def test_what_the_engine_keeps_of_points_survives_a_kill(
    local_cluster: LocalCluster, points: np.ndarray, sync: str
) -> None:
    story = Story(kill(local_cluster, 1), recovered(1))
    result, machine = train(ByContribution(k=4), points, local_cluster, story, sync=sync)
    assert result.kernel == "compiled" and [i["worker"] for i in result.incidents if i["kind"] == "lost"] == [1]
    check_contributions(result, machine)


@pytest.mark.parametrize("topology", ["coordinator", "allreduce"])
def test_hidden_values_survive_a_kill(local_cluster: LocalCluster, points: np.ndarray, topology: str) -> None:
    weights = 1.0 + np.arange(len(points)) % 3
    story = Story(kill(local_cluster, 1), recovered(1))
    result, machine = train(ByHidden(k=4), (points, None, weights), local_cluster, story, topology=topology)
    visited, best, far = result.state.T
    assert (visited == 1).all()
    total = machine.store.statistics
    assert np.array_equal(np.bincount(best.astype(int), weights, minlength=4), total.counts)
    np.testing.assert_allclose(total.far, (weights * far).sum(), rtol=1e-9)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_that_merge_reports_among_themselves_survive_losses(
    local_cluster: LocalCluster, points: np.ndarray, how: int
) -> None:
    story = Story(kill(local_cluster, 1, how), recovered(1, worker=1))
    timeout = 60.0 if how == signal.SIGKILL else 3.0
    result, machine = train("kmeans", points, local_cluster, story, topology="allreduce", worker_timeout=timeout)
    check_kmeans(points, result, machine)
    lost = [i["worker"] for i in result.incidents if i["kind"] == "lost"]
    assert lost == [1] or (how == signal.SIGSTOP and 1 in lost), "others may be silent for 3 s on a busy host"
    seen = [r["objective"] for r in result.rows if r["objective"] is not None]
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(seen)), "what was lost is revisited under the same θ"


@pytest.mark.parametrize("algorithm", ["gmm", "nmf", "sizedkmeans", "kmodes"])
def test_mixtures_and_factorizations_survive_a_kill(
    local_cluster: LocalCluster, points: np.ndarray, algorithm: str
) -> None:
    data: Any = points
    if algorithm == "nmf":
        sparse = needs.library("scipy.sparse")
        data = sparse.random(3000, 60, density=0.2, random_state=0, format="csr")
    if algorithm == "kmodes":
        data = np.floor(np.abs(points))
    chosen = resolve(algorithm)
    chosen = type(chosen)(rank=3) if algorithm == "nmf" else type(chosen)(k=4)
    story = Story(kill(local_cluster, 0), recovered(1))
    result, machine = train(chosen, data, local_cluster, story, tolerance=1e-4)
    assert [i["worker"] for i in result.incidents if i["kind"] == "lost"] == [0]
    assert machine.store.discrepancy() <= 1e-10
    assert len(result.state) == 3000


def test_rows_of_a_file_are_read_again_by_the_others(
    local_cluster: LocalCluster, points: np.ndarray, tmp_path: Any
) -> None:
    path = tmp_path / "points.csv"
    np.savetxt(path, points, delimiter=",")
    story = Story(kill(local_cluster, 1), recovered(1))
    result, machine = train("kmeans", str(path), local_cluster, story, scale="standard", replace=False)
    z = result.state[:, 0]
    assert (z >= 0).all() and np.array_equal(np.bincount(z, minlength=10), machine.store.statistics.counts)
    assert sorted(machine.view.workers) == [0, 2]


def test_workers_join_and_leave_a_running_job(points: np.ndarray) -> None:
    with LocalCluster(workers=2) as cluster:

        def scale(n: int) -> Callable[[Any], bool]:
            def act(machine: Any) -> bool:
                thread = threading.Thread(target=cluster.scale, args=(n,))
                thread.start()
                thread.join()
                return True

            return act

        def active_are(n: int) -> Callable[[Any], bool]:
            return lambda m: len(m.view.workers) == n and not m.membership.changing and m.state.points == len(points)

        def drain(machine: Any) -> bool:
            cluster.drain(0)
            return True

        story = Story(
            scale(4), active_are(4), scale(3), active_are(3), drain, active_are(2), kill(cluster, 1), recovered(1)
        )
        result, machine = train("kmeans", points, cluster, story, workers=2)
        check_kmeans(points, result, machine)
        kinds = [i["kind"] for i in result.incidents]
        assert kinds.count("joined") == 2 and kinds.count("left") == 2
        assert 0 not in machine.view.workers


class Lenient(LocalCluster):
    """Does not kill workers that it evicts, as if they were out of reach: they may come back and send messages."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.registry.end = lambda worker, process, gently: self.registry.departing.append(process)  # type: ignore[method-assign]
        self.stale: list[str] = []

    def dismiss(self, envelope: Envelope) -> None:
        self.stale.append(type(envelope.body).__name__)
        super().dismiss(envelope)


def test_a_frozen_worker_that_comes_back_is_fenced_and_told_to_go(points: np.ndarray) -> None:
    with Lenient(workers=2) as cluster:
        frozen: list[subprocess.Popen[bytes]] = []

        def freeze(machine: Any) -> bool:
            process = cluster.registry.processes.get(1)
            if not kill(cluster, 1, signal.SIGSTOP)(machine):
                return False
            assert process is not None
            frozen.append(process)
            return True

        trains_again = recovered(1, worker=1)

        def evicted(machine: Any) -> bool:
            """Another process has its place, or nobody."""
            return cluster.registry.processes.get(1) is not frozen[0] and trains_again(machine)

        def wake(machine: Any) -> bool:
            frozen[0].send_signal(signal.SIGCONT)
            return True

        def gone(machine: Any) -> bool:
            return frozen[0].poll() is not None

        story = Story(freeze, evicted, wake, gone)
        result, machine = train("kmeans", points, cluster, story, workers=2, worker_timeout=3.0)
        check_kmeans(points, result, machine)
        assert frozen[0].returncode == 0, "it was told to go, and went by itself"
        assert cluster.stale, "it spoke, and was not listened to"


POISON = np.random.default_rng(0).normal(size=(1200, 2))
POISON[900, 0] = 5000.0


@pytest.mark.filterwarnings("ignore:.*runs interpreted")
@pytest.mark.parametrize(
    ("algorithm", "error", "cause", "seconds"),
    [
        (poisonous.Exits, WorkerLost, "ended with exit code 7", 60.0),
        (poisonous.Crashes, WorkerLost, "SIGSEGV", 60.0),
        (poisonous.Loops, ProtocolError, "does updateDataPoint return", 4.0),
        (poisonous.Prepares, ProtocolError, "in initState .* in the loading phase; does initState return", 4.0),
    ],
)
def test_poison_in_user_code_ends_the_job_with_its_cause(
    local_cluster: LocalCluster, algorithm: Any, error: type[FlegelError], cause: str, seconds: float
) -> None:
    with pytest.raises(error, match=cause):
        flegel.run(
            algorithm(), POISON, cluster=local_cluster, workers=2, sync="bsp", max_iterations=5, hook_timeout=seconds
        )
