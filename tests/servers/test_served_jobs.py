"""Whole jobs with parameter servers in real processes: the bits of one coordinator, also where processes are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.nmf import NMF
from flegel.core import pytree
from flegel.core.shard import Sparse
from flegel.errors import UsageError
from flegel.job import check_server_change
from flegel.machine.server.care import FIRST_SERVER
from flegel.runtime.server import file_arrays, job_servers

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(3000, 4)) + RNG.integers(0, 5, size=(3000, 1)) * 3.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[flegel.LocalCluster]:
    with flegel.LocalCluster(2) as found:
        yield found


def train(cluster: flegel.LocalCluster, **options: Any) -> Any:
    return cluster.run(KMeans(k=9), ROWS, **{"sync": "bsp", "max_iterations": 8, "tolerance": 0, "seed": 1, **options})


def same(one: Any, other: Any) -> bool:
    pairs = zip(pytree.flatten(one.parameter), pytree.flatten(other.parameter), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs) and one.objective == other.objective


def check_against_calm(cluster: flegel.LocalCluster, found: Any, worker_lost: bool = False) -> None:
    """θ is that of as many rounds without servers and kills, to the last bit."""
    calm = train(cluster, max_iterations=found.iterations)
    if worker_lost:  # its points may be added up in another order
        assert found.objective == pytest.approx(calm.objective, rel=1e-9)
    else:
        assert same(calm, found)


def test_servers_give_the_bits_of_one_coordinator(cluster: flegel.LocalCluster) -> None:
    alone = train(cluster)
    for servers in (1, 4):
        assert same(alone, train(cluster, servers=servers)), f"{servers} servers"


def test_also_where_workers_get_θ_from_servers_alone_and_the_coordinator_keeps_it_in_a_file(
    cluster: flegel.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train(cluster, audit="off", max_iterations=4)
    for module in (file_arrays, job_servers):
        monkeypatch.setattr(module, "FILE_ARRAY_FROM_BYTES", 1)
    assert same(alone, train(cluster, audit="off", max_iterations=4, servers=2))


RATINGS = Sparse(  # of each worker a tenth of the columns: parts of slices travel
    np.arange(0, 241, 4), np.sort(RNG.integers(0, 100, (60, 4)) * 4 + np.arange(4), axis=1).ravel(),
    RNG.integers(1, 6, 240).astype(np.float64), 800,
)  # fmt: skip


@pytest.mark.parametrize(
    "algorithm", [GMM(k=5), GMM(k=5, covariance="tied"), NMF(rank=3)], ids=["GMM", "tied GMM", "NMF"]
)
def test_other_algorithms_too(cluster: flegel.LocalCluster, algorithm: Any) -> None:
    options: dict[str, Any] = {"sync": "bsp", "max_iterations": 4, "tolerance": 0, "seed": 1}
    rows: Any = RATINGS if isinstance(algorithm, NMF) else np.abs(ROWS[:600])
    alone = cluster.run(algorithm, rows, **options)
    assert same(alone, cluster.run(algorithm, rows, **options, servers=2))
    assert same(alone, cluster.run(algorithm, rows, **options, servers="colocated"))


def test_reports_go_to_servers_while_their_workers_train_on(cluster: flegel.LocalCluster) -> None:
    found = train(cluster, servers=2, sync="asp", waiting="training", max_iterations=150)
    assert found.iterations >= 150
    assert found.objective <= 1.05 * train(cluster, max_iterations=40).objective


def test_a_killed_server_is_replaced_and_no_bit_changes(cluster: flegel.LocalCluster) -> None:
    killed: list[int] = []

    def kill(job: Any) -> str | None:
        if job.iteration >= 3 and not killed:
            process = cluster.registry.processes[FIRST_SERVER + 1]
            killed.append(process.pid)  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)
        replaced = job.servers is not None and job.servers.lost and len(job.servers.servers) == 3
        return "the server was replaced" if replaced else None

    found = train(cluster, servers=3, max_iterations=1_000_000, callbacks=[Killer(kill)])
    assert killed and found.servers["lost"] == 1 and found.reason == "the server was replaced"
    assert same(train(cluster, max_iterations=found.iterations), found)


def test_servers_join_and_leave_a_running_job_and_no_bit_changes(cluster: flegel.LocalCluster) -> None:
    steps, asked = [4, 1, 3], [2]
    begun = threading.Event()

    def scale(snapshot: Any) -> str | None:
        assert begun.wait(600)
        now = snapshot.servers
        if now is None or not asked[-1] == now.wanted == len(now.servers):
            return None  # some come or go
        if not steps:
            return "all servers have come and gone"
        asked.append(steps.pop(0))
        job.scale(servers=asked[-1])
        return None

    job = cluster.submit(
        KMeans(k=9), ROWS, callbacks=[Killer(scale)], sync="bsp", max_iterations=100_000, tolerance=0, seed=1, servers=2
    )
    begun.set()
    found = job.result(300)
    assert not steps and found.servers["left"] >= 3 and found.servers["joined"] >= 4 and found.servers["lost"] == 0
    assert same(train(cluster, max_iterations=found.iterations), found)


@pytest.mark.parametrize(
    ("servers", "wanted", "victim"), [(2, 3, "stays"), (2, 3, "joins"), (3, 1, "leaves"), (2, 3, "worker")]
)
def test_a_process_that_is_killed_while_servers_come_or_go_costs_neither_the_job_nor_its_result(
    cluster: flegel.LocalCluster, servers: int, wanted: int, victim: str
) -> None:
    """The kill follows the order at once, or when the new server has a process; it may be up by then, or not."""
    number = {"stays": FIRST_SERVER, "joins": FIRST_SERVER + 2, "leaves": FIRST_SERVER + 2, "worker": 1}[victim]
    killed: list[int] = []
    calm_rounds: list[int] = []
    begun = threading.Event()

    def act(snapshot: Any) -> str | None:
        assert begun.wait(600)
        if snapshot.iteration < 3 or snapshot.servers is None:
            return None
        if not killed:
            if snapshot.servers.wanted != wanted:
                job.scale(servers=wanted)
            if (process := cluster.registry.processes.get(number)) is None:
                return None  # not started yet
            killed.append(process.pid)  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)
        settled = len(snapshot.servers.servers) == snapshot.servers.wanted == wanted and len(snapshot.workers) == 2
        calm_rounds[:] = [*calm_rounds, snapshot.iteration] if settled else []
        return "all are there" if len(calm_rounds) > 5 else None

    options: dict[str, Any] = {"sync": "bsp", "max_iterations": 1_000_000, "tolerance": 0, "seed": 1}
    job = cluster.submit(KMeans(k=9), ROWS, callbacks=[Killer(act)], servers=servers, **options)
    begun.set()
    found = job.result(300)
    assert killed and found.reason == "all are there"
    check_against_calm(cluster, found, worker_lost=victim == "worker")


@pytest.mark.parametrize("victim", ["stays", "comes and goes", "worker"])
def test_servers_scaled_in_quick_succession_while_a_process_is_killed_change_no_bit(
    cluster: flegel.LocalCluster, victim: str
) -> None:
    """2 to 5 to 1 to 4 at three barriers in turn, none of which waits for servers; the kill comes after the first."""
    number = {"stays": FIRST_SERVER, "comes and goes": FIRST_SERVER + 1, "worker": 1}[victim]
    steps = [5, 1, 4]
    killed: list[int] = []
    calm_rounds: list[int] = []
    begun = threading.Event()

    def act(snapshot: Any) -> str | None:
        assert begun.wait(600)
        if snapshot.iteration < 3 or snapshot.servers is None:
            return None
        if len(steps) == 2 and not killed:
            killed.append(cluster.registry.processes[number].pid)  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)
        if steps:
            job.scale(servers=steps.pop(0))
        now = snapshot.servers
        settled = not steps and len(now.servers) == now.wanted == 4 and len(snapshot.workers) == 2
        calm_rounds[:] = [*calm_rounds, snapshot.iteration] if settled else []
        return "all are there" if len(calm_rounds) > 5 else None

    options: dict[str, Any] = {"sync": "bsp", "max_iterations": 1_000_000, "tolerance": 0, "seed": 1}
    job = cluster.submit(KMeans(k=9), ROWS, callbacks=[Killer(act)], servers=2, **options)
    begun.set()
    found = job.result(300)
    assert killed and found.reason == "all are there"
    check_against_calm(cluster, found, worker_lost=victim == "worker")


@pytest.mark.parametrize("load", ["elastic", "published"])
def test_a_server_that_is_killed_while_every_round_has_a_plan_of_its_own_changes_no_bit(
    cluster: flegel.LocalCluster, load: str
) -> None:
    killed: list[int] = []

    def kill(snapshot: Any) -> str | None:
        if snapshot.iteration >= 3 and not killed:
            killed.append(cluster.registry.processes[FIRST_SERVER + 1].pid)  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)
        seen = snapshot.servers
        return "it was replaced" if killed and seen.lost and len(seen.servers) == 3 else None

    found = train(cluster, servers=3, server_load=load, max_iterations=1_000_000, callbacks=[Killer(kill)])
    assert killed and found.servers["lost"] == 1 and found.reason == "it was replaced"
    check_against_calm(cluster, found)


@pytest.mark.parametrize(
    ("servers", "wanted", "most", "why"),
    [
        (0, 2, 0, "This job has no parameter servers; start it with servers="),
        ("colocated", 2, 0, "one parameter server on each host of its workers"),
        (2, 0, 0, "A job that has parameter servers keeps 1 to 64 of them, not 0"),
        (2, 7, 5, "θ of this job can be cut into 5 slices, so that 7 servers are too many"),
    ],
)
def test_a_number_of_servers_that_a_job_cannot_have_is_refused(
    servers: int | str, wanted: int, most: int, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        check_server_change(servers, wanted, most)


class Killer(flegel.Callback):
    """Calls a function at each barrier, in a thread of its own."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def after_barrier(self, snapshot: Any) -> Any:
        return self._act(snapshot)


def test_what_servers_cannot_do_is_refused(cluster: flegel.LocalCluster) -> None:
    for options, why in (
        ({"attribute": True}, "attribute= needs θ and the statistics in one place"),
        ({"topology": "allreduce"}, "use topology=.coordinator"),
        ({"servers": "many"}, "must be a number from 0 to 64, or colocated"),
        ({"replicas": -1}, "replicas=-1 must be 0 to 8"),
        ({"servers": 0, "server_load": "elastic"}, 'server_load="elastic" divides θ among parameter servers; give'),
    ):
        with pytest.raises(UsageError, match=why):
            train(cluster, **{"servers": 2, **options})


def test_a_resumed_job_goes_on_with_the_same_bits(tmp_path: Any) -> None:
    options: dict[str, Any] = {"sync": "bsp", "workers": 2, "seed": 1, "tolerance": 0, "servers": 2}
    whole = flegel.run(KMeans(k=9), ROWS, **options, max_iterations=9)
    flegel.run(KMeans(k=9), ROWS, **options, max_iterations=4, checkpoint=tmp_path / "job")
    assert same(whole, flegel.resume(tmp_path / "job", data=ROWS, max_iterations=9))
