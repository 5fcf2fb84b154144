"""Slaves as pods, against an API server of the test's own: placed, scaled, evicted, and nothing left."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from kubernetes_mock import PREFIX, TOKEN, mock_api

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cluster.launch.k8s import KubernetesCluster, KubernetesPlacer, PodOptions, ending
from flegel.cluster.launch.kubernetes_api import ApiError, KubernetesApi
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.errors import FlegelError, UsageError
from flegel.runtime.transport.curve import new_key_pair

PAIR = new_key_pair()


def ticket(number: int) -> SlaveTicket:
    return SlaveTicket(f"k8s-{number}", "abcd", "tcp://h:1", PAIR.public, PAIR)


def evict(server: str, pod: str) -> None:
    """As `kubectl drain` does."""
    request = urllib.request.Request(
        f"{server}{PREFIX}pods/{pod}/eviction", b"{}", {"Authorization": f"Bearer {TOKEN}"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=60).close()


def test_pods_are_placed_scaled_evicted_and_removed_with_their_secrets(tmp_path: Path) -> None:
    with mock_api(tmp_path, run=False) as (server, mock):
        placer = KubernetesPlacer(PodOptions("flegel:1", cpus=2, memory=2**30, gpus=1))
        placer.api = KubernetesApi(server, "test", TOKEN)
        placer.open(tmp_path)
        for number in range(4):
            placer.place(ticket(number))
        pods = mock.objects["pods"]
        assert set(pods) == set(mock.objects["secrets"]) == {f"flegel-abcd-k8s-{n}" for n in range(4)}
        assert PAIR.secret not in json.dumps(pods), "the secret is in the Secret only"
        assert placer.ended() == {}
        mock.down = True
        assert placer.ended() == {}, "a server that does not answer says nothing about pods"
        mock.down = False
        evict(server, "flegel-abcd-k8s-0")
        mock.fail("flegel-abcd-k8s-1", "NodeLost")
        assert placer.ended() == {"k8s-0": "was evicted or deleted", "k8s-1": "was ended by Kubernetes (NodeLost)"}
        placer.remove(["k8s-3"])
        assert set(pods) == {"flegel-abcd-k8s-2"} and placer.ended() == {"k8s-3": "was evicted or deleted"}
        placer.close()
        assert not pods and not mock.objects["secrets"]
        placer.close()


def test_what_kubernetes_refuses_is_told_in_a_sentence(tmp_path: Path) -> None:
    with mock_api(tmp_path, run=False) as (server, _):
        placer = KubernetesPlacer(PodOptions("flegel:1"))
        placer.api = KubernetesApi(server, "test", "wrong")
        with pytest.raises(ApiError, match="Kubernetes refused to GET pods: Unauthorized"):
            placer.open(tmp_path)
    placer.api = KubernetesApi(server, "test", TOKEN)
    with pytest.raises(FlegelError, match="did not answer"):
        placer.open(tmp_path)
    with pytest.raises(UsageError, match="which image"):
        KubernetesCluster(1, image="")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"phase": "Pending"}, ""),
        ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, ""),
        ({"phase": "Failed", "reason": "Evicted"}, "was ended by Kubernetes (Evicted)"),
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]},
         "was ended by Kubernetes (exit code 137)"),
        ({"phase": "Succeeded"}, "ended"),
        ({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
         "cannot start: ErrImagePull"),
        ({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
    ],
)  # fmt: skip
def test_how_a_pod_ended_is_read_from_its_status(status: dict[str, object], why: str) -> None:
    assert ending({"status": status}) == why


def wait_until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 150
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.1)


def here(cluster: KubernetesCluster) -> int:
    return sum(slave.state == "here" for slave in cluster.slaves())


@pytest.mark.slow
@pytest.mark.processes
def test_a_job_outlives_the_eviction_of_a_slave_which_drains_and_uses_pods_that_are_added(tmp_path: Path) -> None:
    options = {"sync": "bsp", "tolerance": 0.0, "straggler": "all:20ms/200"}
    with mock_api(tmp_path, run=True) as (server, mock):
        with KubernetesCluster(2, image="flegel:1", api=KubernetesApi(server, "test", TOKEN)) as cluster:
            job = cluster.submit(KMeans(k=4, init="first"), "blobs:4000", workers=2, max_iterations=200, **options)
            wait_until(lambda: (seen := job.progress()) is not None and seen.iteration > 1)
            victim = next(slave.name for slave in cluster.slaves() if slave.name != job.view().place)
            evict(server, f"flegel-{cluster.launch}-{victim}")
            wait_until(lambda: victim in cluster.lost and here(cluster) == 2)
            assert cluster.lost[victim] == "was evicted or deleted"
            cluster.scale(3)
            wait_until(lambda: here(cluster) == 3)
            job.scale(3)
            wait_until(lambda: len(job.view().slots) == 3)
            result = job.result(timeout=600)
        assert not mock.objects["pods"] and not mock.objects["secrets"]
    local = flegel.run(KMeans(k=4, init="first"), "blobs:4000", workers=2, sync="bsp")
    assert result.iterations == 200 and result.objective == pytest.approx(local.objective, rel=1e-9)
    kinds = [each["kind"] for each in result.incidents]
    assert "left" in kinds and "lost" not in kinds, "the evicted slave has handed its points over"
