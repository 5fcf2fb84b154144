"""Every cluster behaves as `cluster_protocol.Cluster` says: one check for real ones and for the fake of other tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_cluster import FakeCluster
from waiting import until

from bench.common.remote_cluster import RemoteCluster
from flegel.api.jobs import LocalCluster
from flegel.errors import UsageError, WorkerLost
from flegel.machine.coordinator.events import LeaveJob, ScaleTo
from flegel.messages import Envelope, Exit, Hello, ReleaseJob
from flegel.runtime.processes.cluster_protocol import Cluster
from flegel.runtime.processes.inline_cluster import InlineCluster
from flegel.runtime.processes.thread_cluster import ThreadCluster


def check_cluster(make: Callable[[int], Cluster]) -> None:
    """Start a cluster of two workers, use all that a job uses, and close it."""
    cluster = make(2)
    try:
        cluster.start()
        cluster.wait_ready()
        _check_fresh(cluster)
        _check_lost_worker(cluster)
        _check_job(cluster)
        _check_evicted_worker(cluster)
        _check_requests(cluster)
        cluster.end_job()
        assert cluster.take_requests() == [], "requests end with their job"
    finally:
        cluster.close()
    cluster.close()
    with pytest.raises(UsageError, match="closed"):
        cluster.send(0, ReleaseJob())


def _check_fresh(cluster: Cluster) -> None:
    assert cluster.workers == 2
    assert cluster.incarnations() == {0: 0, 1: 0}
    assert cluster.deaths() == [] and cluster.take_requests() == []
    assert cluster.start_worker(0) and cluster.start_worker(1), "both are ready"
    with pytest.raises(UsageError):
        cluster.drain(0)
    with pytest.raises(UsageError):
        cluster.scale(0)


def _check_job(cluster: Cluster) -> None:
    first = cluster.new_job()
    cluster.end_job()
    assert cluster.new_job() != first
    shared = cluster.new_array((3, 2), np.dtype("f8"))
    shared.array[...] = 1.0
    assert shared.describe()
    shared.close()
    assert cluster.crowded(1 << 30) in (True, False)
    cluster.prepare_spare()


def _hello(cluster: Cluster, worker: int) -> Envelope:
    """The next hello of this worker, which the caller accepts or not."""
    found: list[Envelope] = []

    def came() -> bool:
        arrived = [envelope for envelope, _ in cluster.receive(0.05)]  # beats of an earlier incarnation are among them
        found.extend(e for e in arrived if e.worker == worker and isinstance(e.body, Hello))
        return bool(found)

    assert until(came)
    return found[0]


def _check_lost_worker(cluster: Cluster) -> None:
    cluster.send(0, Exit())
    assert until(lambda: [death.worker for death in cluster.deaths()] == [0])
    assert cluster.deaths()[0].why == "ended with exit code 0"
    cluster.evict(0)
    assert cluster.deaths() == [], "an evicted worker is not reported any more"
    assert not cluster.start_worker(0), "it has not said hello yet"
    assert cluster.incarnations() == {0: 1, 1: 0}
    hello = _hello(cluster, 0)
    former = Envelope(hello.job, hello.epoch, hello.worker, 0, hello.sequence, hello.body)
    assert not cluster.accept_hello(former), "it says that it is a former incarnation"
    assert cluster.accept_hello(hello) and cluster.start_worker(0)
    cluster.dismiss(former)


def _check_evicted_worker(cluster: Cluster) -> None:
    cluster.evict(1, gently=True)

    def unreachable() -> bool:
        try:
            cluster.send(1, ReleaseJob())
        except WorkerLost:
            return True
        return False

    assert until(unreachable)
    cluster.evict(1)
    assert not cluster.start_worker(1)
    assert cluster.accept_hello(_hello(cluster, 1))
    assert cluster.incarnations() == {0: 1, 1: 1}


def _check_requests(cluster: Cluster) -> None:
    cluster.scale(3)
    cluster.drain(1)
    assert cluster.workers == 3
    assert cluster.take_requests() == [ScaleTo(3), LeaveJob(1)]
    assert cluster.take_requests() == []
    cluster.scale(2)


@pytest.mark.processes
@pytest.mark.parametrize("make", [LocalCluster, RemoteCluster])
def test_a_cluster_of_processes_behaves_as_the_protocol_says(make: Callable[[int], Cluster]) -> None:
    check_cluster(make)


def test_a_cluster_of_threads_behaves_as_the_protocol_says() -> None:
    check_cluster(ThreadCluster)


def test_the_fake_cluster_behaves_as_the_protocol_says() -> None:
    check_cluster(FakeCluster)


def test_a_worker_that_is_called_without_messages_stays_alone() -> None:
    cluster = InlineCluster()
    cluster.start()
    cluster.wait_ready()
    try:
        assert cluster.workers == 1 and cluster.incarnations() == {0: 0} and cluster.deaths() == []
        first = cluster.new_job()
        cluster.end_job()
        assert cluster.new_job() != first
        held = cluster.new_array((3, 2), np.dtype("f8"))
        assert held.describe() and not cluster.crowded(1 << 30)
        held.close()
        assert list(cluster.receive(0.0)) == [], "nothing was ordered, and between jobs nobody hears heartbeats"
        for refused in (lambda: cluster.scale(2), lambda: cluster.drain(0)):
            with pytest.raises(UsageError, match="as one worker"):
                refused()
        with pytest.raises(WorkerLost, match="one too many"):
            cluster.start_worker(1)
    finally:
        cluster.close()
    cluster.close()
    with pytest.raises(UsageError, match="closed"):
        cluster.send(0, ReleaseJob())
